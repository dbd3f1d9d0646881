"""What an installation weighs: `python -m tests.benchmarks.install_weight`.

Run it with the Python of a fresh virtual environment into which the suite alone was
installed. A distribution's weight is that of its files; who asks for it stands beside.
"""

import re
from importlib import metadata

SHOWN = 12


def weights():
    """Return distribution -> MiB of its files."""
    sizes = {}
    for each in metadata.distributions():
        files = [each.locate_file(file) for file in each.files or []]
        sizes[plain(each.name)] = (
            sum(f.stat().st_size for f in files if f.is_file()) / 2**20
        )
    return sizes


def asked_by():
    """Return distribution -> those that require it without an extra."""
    askers = {}
    for each in metadata.distributions():
        for need in each.requires or []:
            if "extra ==" not in need:
                needed = plain(re.split(r"[^\w.-]", need)[0])
                askers.setdefault(needed, set()).add(plain(each.name))
    return askers


def plain(name):
    """Return a distribution's name as all spellings of it are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main():
    """Print a table of the heaviest, and the rest in one line."""
    sizes, askers = weights(), asked_by()
    order = sorted(sizes, key=lambda name: -sizes[name])
    print("| package | MiB | asked for by |\n| --- | --- | --- |")
    for name in order[:SHOWN]:
        by = ", ".join(sorted(askers.get(name, ()))[:4])
        print(f"| {name} | {sizes[name]:.0f} | {by} |")
    rest = sum(sizes[name] for name in order[SHOWN:])
    print(f"| {len(order) - SHOWN} others | {rest:.0f} | |")
    print(f"| all | {sum(sizes.values()):.0f} | |")


if __name__ == "__main__":
    main()
