"""Every plug-in has a page, every page a plug-in, and no link is dead."""

import re

import pytest

from audit.config import registry
from audit.config.compose import scenario_names
from audit.config.hydra_app import BUILT_IN
from tests import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("kind", ["defense", "attack"])
def test_every_plug_in_has_a_page_and_stands_in_the_readme(kind):
    pages = {p.stem for p in (ROOT / "docs" / f"{kind}s").glob("*.md")}
    assert pages == set(registry.built_in(kind))
    readme = (ROOT / "README.md").read_text()
    for name in pages:
        assert f"| `{name}` |" in readme
        first = (ROOT / "docs" / f"{kind}s" / f"{name}.md").read_text().split("\n")[0]
        assert first.startswith(f"# `{name}`")


def test_every_scenario_stands_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for name in scenario_names([BUILT_IN]):
        assert f"| `{name}` |" in readme


def links(text):
    """Return what a text links to inside the repository."""
    targets = re.findall(r"\]\(([^)#]+)", text)
    return [target for target in targets if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in links(page.read_text()):
        assert (page.parent / target).exists(), target


def grids(text):
    """Return the Markdown tables of a text as lists of rows, header -> cell."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    split = [
        [[c.strip() for c in line[1:-1].split("|")] for line in b.strip().split("\n")]
        for b in blocks
    ]
    return [
        [dict(zip(head, row, strict=True)) for row in rows] for head, _, *rows in split
    ]


def test_the_readme_shows_the_leaderboard_as_it_is():
    """Some columns of the first table, every row."""
    readme = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- leaderboard -->\n(.*?)<!-- /", readme, re.DOTALL)
    assert block is not None
    (shown,) = grids(block[1])
    committed = grids((ROOT / "results" / "LEADERBOARD.md").read_text())[0]
    assert len(shown) == len(committed) >= 5
    for mine, theirs in zip(shown, committed, strict=True):
        assert mine == {name: theirs[name] for name in mine}
        assert len(mine) >= 8
