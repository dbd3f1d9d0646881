"""Every plug-in has a page, every page a plug-in, and no link is dead."""

import re

import pytest

from audit.config import registry
from audit.config.compose import scenario_names
from audit.config.hydra_app import BUILT_IN
from audit.report import columns, readme
from audit.scorecard import schema
from audit.scorecard.view import number, with_error
from tests import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("kind", ["defense", "attack"])
def test_every_plug_in_has_a_page_and_stands_in_the_catalogue(kind):
    pages = {p.stem for p in (ROOT / "docs" / f"{kind}s").glob("*.md")}
    assert pages == set(registry.built_in(kind))
    catalogue = (ROOT / "docs" / "catalogue.md").read_text()
    for name in pages:
        assert f"| `{name}` |" in catalogue
        first = (ROOT / "docs" / f"{kind}s" / f"{name}.md").read_text().split("\n")[0]
        assert first.startswith(f"# `{name}`")


def test_every_scenario_stands_in_the_catalogue():
    catalogue = (ROOT / "docs" / "catalogue.md").read_text()
    for name in scenario_names([BUILT_IN]):
        assert f"| `{name}` |" in catalogue


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


def test_the_readme_shows_committed_results_as_they_are():
    """Made again by `python -m audit.report.readme`."""
    text = (ROOT / "README.md").read_text()
    blocks = readme.blocks(ROOT / "results")
    assert all(f"<!-- {name} -->\n" in text for name in blocks)
    assert readme.filled(text, blocks) == text
    assert "10^" not in text


def test_the_readmes_first_table_has_the_control_and_useful_epsilons():
    (table, board) = grids((ROOT / "README.md").read_text())
    epsilons = {row["defense"]: row["ε"] for row in table}
    assert epsilons["sgd"] == "none"
    assert sum(float(e) <= 8 for e in epsilons.values() if e != "none") >= 2
    card = schema.load(ROOT / "results" / readme.CARD / "scorecard.json")
    for row in table:
        best = columns.strongest(card, row["defense"])
        start = with_error(best.result.mse, best.result.mse_se)
        assert row["error, best attack on the model"] == start
        assert row["floor"] == number(card.floor.mse)
    committed = grids((ROOT / "results" / "LEADERBOARD.md").read_text())[0]
    assert len(board) == len(committed) >= 5
    for mine, theirs in zip(board, committed, strict=True):
        assert mine == {name: theirs[name] for name in mine}
        assert len(mine) == 8


def test_the_readme_is_short():
    """Words of prose: no table, no code."""
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.S)
    prose = [line for line in text.split("\n") if not line.startswith("|")]
    assert len(" ".join(prose).split()) < 1200
