"""`python -m audit new KIND NAME`: the example of a kind under a name of its own."""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from audit.config import hydra_app, plugins, registry
from audit.errors import UserError, did_you_mean

# kind -> what `new` copies: a plug-in, its test and its page
EXAMPLES = {
    "defense": "dpsgd_cosine",
    "attack": "linear_reconstructor",
    "scenario": "two_digits",
}
CHECKOUT = Path(__file__).resolve().parent.parent.parent
# where the example package lies in a checkout, and where an installed suite has a copy
EXAMPLE = CHECKOUT / "examples" / "breachmark_example" / "breachmark_example"
INSTALLED = Path(__file__).parent / "example"
TRIED = "scenario=binary_mnist data=digits"
NAME = re.compile(r"[a-z][a-z0-9_]*")


class Copy(NamedTuple):
    """What `new` writes, checked."""

    kind: str
    name: str
    folder: str | None  # of plug-ins; None = the suite's own, in a checkout
    texts: dict[Path, str]  # plug-in, test and page

    @property
    def test(self) -> Path:
        """The file that holds the plug-in against its laws."""
        return next(path for path in self.texts if path.name.startswith("test_"))


def plan(words: list[str]) -> Copy:
    """Return what `new KIND NAME` writes, or UserError; nothing is written yet."""
    if len(words) != 2:
        raise UserError(f"new what? {'|'.join(EXAMPLES)} and a name, not {words}")
    kind, name = words
    if kind not in EXAMPLES:
        raise UserError(f"cannot make a new {kind!r}{did_you_mean(kind, EXAMPLES)}")
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or name.startswith("test_"):
        raise UserError(
            f"{kind} name {name!r}: a-z, digits and _, a letter first, no word of "
            f"Python's, and not test_"
        )
    folders = plugins.named_folders()
    if len(folders) > 1:
        raise UserError(f"new {kind} in which folder? {' or '.join(folders)}")
    _check_free(kind, name)
    folder = folders[0] if folders else None
    texts = _renamed(kind, name, *_root(kind, folder))
    for path in texts:
        if path.exists():
            raise UserError(f"{path} is there already; nothing was written")
    return Copy(kind, name, folder, texts)


def _check_free(kind: str, name: str) -> None:
    """Refuse a name that is taken, wherever it is."""
    with plugins.only([f for f in plugins.named_folders() if Path(f).is_dir()]):
        places = [f / f"{name}.yaml" for f in hydra_app.folders(None)]
        if kind != "scenario":
            named = name in registry.names(kind)
            places = [registry.source(kind, name)] if named else []
        for path in places:
            if path.exists():
                raise UserError(f"{kind} {name!r} is there already: {path}")


def _root(kind: str, folder: str | None) -> tuple[Path, bool]:
    """Return the folder to write into, and whether it is flat."""
    if folder is None:
        if not (CHECKOUT / "pyproject.toml").is_file():
            raise UserError(
                f"new {kind} where? the suite is installed, not a checkout: say "
                f"--plugins DIR"
            )
        return CHECKOUT, False
    path = Path(folder)
    used = path.is_dir() and any([*path.glob("*.py"), *path.glob("*.yaml")])
    return path, used and not plugins.laid_out(path)


def _renamed(kind: str, name: str, root: Path, flat: bool) -> dict[Path, str]:
    """Return the example's files by where they go, under another name."""
    example, source = EXAMPLES[kind], EXAMPLE if EXAMPLE.is_dir() else INSTALLED
    texts = {}
    for path in sorted(source.rglob(f"*{example}.*")):
        if path.suffix in (".py", ".yaml", ".md"):
            text = path.read_text().replace(example, name)
            if flat:  # the test stands beside the plug-in
                text = re.sub(r'\.parent\.parent / "\w+"', ".parent", text)
            place = path.relative_to(source).with_name(path.name.replace(example, name))
            texts[root / (place.name if flat else place)] = text
    return texts


def write(copy: Copy) -> list[Path]:
    """Write the files; return their paths. Raises UserError where one cannot be."""
    for path, text in copy.texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
    return list(copy.texts)


def next_steps(copy: Copy) -> str:
    """Return the commands that try what was written."""
    kind, name = copy.kind, copy.name
    runs = {
        "defense": f"{TRIED} defenses=[sgd,{name}]",
        "attack": f"{TRIED} attacks=[class_mean,{name}]",
        "scenario": f"scenario={name}",
    }
    where = f" --plugins {shlex.quote(copy.folder)}" if copy.folder else ""
    lines = [
        f"python -m pytest {shlex.quote(str(copy.test))}",
        f"python -m audit run {runs[kind]}{where}",
    ]
    if copy.folder is None:
        page = f"docs/{plugins.KINDS.get(kind, plugins.SCENARIOS)}/{name}.md"
        lines.append(f"then add a row for `{name}` to docs/catalogue.md ({page})")
    return "\n".join(lines)
