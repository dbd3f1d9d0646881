"""`results/REPRODUCTION.md`: all published numbers beside ours, in one table.

It is made from the pages `reproduce` left, and says of each which command made it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from audit.cli.reproduce.published import Band
from audit.cli.reproduce.verdicts import KINDS, band_text, ours, printed
from audit.report.markdown import grid

VERDICTS = tuple(kind for kind in KINDS if kind != "smoke")


def sources(folder: Path) -> dict[str, dict[str, Any]]:
    """Return source -> what its page holds, of every `SOURCE.json` of a folder.

    Raises:
      ValueError: naming a file that is not such a page.
    """
    held = {}
    for file in sorted(folder.glob("*.json")):
        try:
            page = json.loads(file.read_text())
            rows(page)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: not a page of `reproduce`: {error}") from None
        held[file.stem] = page
    return held


def rows(page: dict[str, Any]) -> list[list[str]]:
    """Return one row of cells a published number."""
    return [
        [
            number["table"],
            number["row"],
            number["quantity"],
            printed(number["published"], number["sd"]),
            ours(tuple(number["values"])),
            band_text(Band.model_validate(number["band"] | {"why": "-"})),
            number["verdict"],
        ]
        for number in page["numbers"]
    ]


def render(pages: dict[str, dict[str, Any]]) -> str:
    """Return the whole page: the share reproduced, a line a source, every number."""
    total = {k: sum(page[k] for page in pages.values()) for k in ("listed", *VERDICTS)}
    said = [
        "# Published numbers beside ours",
        f"**Of {total['listed']} published numbers, {total['reproduced']} are "
        f"reproduced ({_share(total)}), {total['differs']} differ, {total['not run']} "
        "were not run.** The share is of all that are listed: what was not run counts "
        "against it.",
        "Each number's band was committed before the run that judges it; where our "
        "number was known by then, the source's page says so. What differs does so for "
        "a reason, given there, as are the commands, devices and commits. "
        "`python -m audit reproduce all` makes this page; "
        "[how to read it](../docs/reproduction.md).",
        grid(
            ["source", "", "listed", *VERDICTS, "share"],
            (_line(name, page) for name, page in pages.items()),
        ),
    ]
    header = ["table", "", "quantity", "published", "ours", "band", "verdict"]
    for name, page in pages.items():
        table = grid(header, rows(page))
        said += [f"## {page['title']}", f"[Reasons]({_page(name)}).", table]
    return "\n\n".join(said) + "\n"


def _line(name: str, page: dict[str, Any]) -> list[str]:
    counts = [str(page[k]) for k in ("listed", *VERDICTS)]
    return [f"[{name}]({_page(name)})", page["title"], *counts, _share(page)]


def _share(counts: dict[str, Any]) -> str:
    return f"{counts['reproduced'] / max(counts['listed'], 1):.0%}"


def _page(name: str) -> str:
    return f"reproduction/{name}.md"
