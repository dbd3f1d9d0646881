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


def error(row):
    """Return the error of one row of a card as tables show it."""
    return with_error(row.result.mse, row.result.mse_se)


def test_the_readmes_first_table_has_the_control_and_useful_epsilons():
    (table, board) = grids((ROOT / "README.md").read_text())
    epsilons = {row["defense"]: row["ε"] for row in table}
    assert epsilons["sgd"] == "none"
    assert sum(float(e) <= 8 for e in epsilons.values() if e != "none") >= 2
    card = schema.load(ROOT / "results" / readme.CARD / "scorecard.json")
    for row in table:
        best = columns.strongest(card, row["defense"])
        assert row["error, best attack on the model"] == error(best)
        assert row["floor"] == number(card.floor.mse)
    committed = grids((ROOT / "results" / "LEADERBOARD.md").read_text())[0]
    assert len(board) == len(committed) >= 5
    for mine, theirs in zip(board, committed, strict=True):
        assert mine == {name: theirs[name] for name in mine}
        assert len(mine) == 8


def test_published_numbers_stand_beside_those_of_the_card():
    card = schema.load(ROOT / "results" / "binary_mnist-mnist" / "scorecard.json")
    network = {t.defense: t for t in card.trials if t.attack == "reconstructor"}
    rows = grids((ROOT / "docs" / "published.md").read_text())[0]
    rows = {row["number"]: row for row in rows}
    for word in ("SGD", "DP-SGD", "Prune", "FIM"):
        row, defense = rows[f"Table 3.5, {word}, MSE"], word.lower().replace("-", "")
        assert row["ours, a network"] == error(network[defense])
        assert row["ours, strongest"] == error(columns.strongest(card, defense))


def test_the_row_that_is_cited_is_the_committed_one():
    where = schema.load(
        ROOT / "results" / "binary_mnist-mnist" / "scorecard.json"
    ).provenance
    text = (ROOT / "docs" / "citing.md").read_text()
    for said in (
        f"settings `{where.scenario_digest[:8]}`",
        f"`{where.git.commit[:12]}`",
    ):
        assert said in text, said


def test_errors_of_unrolled_inversion_are_those_of_the_cards():
    page = ROOT / "docs" / "attacks" / "unrolled_inversion.md"
    (table,) = grids(page.read_text())
    assert len(table) == 6
    for row in table:
        data = {"full MNIST": "mnist", "5,000 digits": "mnist5k"}[row["data"]]
        seed = {"0": "", "1": "-seed1", "2": "-seed2"}[row["seed"]]
        folder = ROOT / "results" / f"binary_mnist-{data}{seed}"
        card = schema.load(folder / "scorecard.json")
        undefended = {t.attack: t for t in card.trials if t.defense == "sgd"}
        for header, shown in row.items():
            for attack in re.findall(r"`(\w+)`", header):
                assert shown == error(undefended[attack])
        median = undefended["unrolled_inversion"].result["mse_median"]
        assert row["its median"] == number(median)


def test_the_readme_is_short():
    """Words of prose: no table, no code."""
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.S)
    prose = [line for line in text.split("\n") if not line.startswith("|")]
    assert len(" ".join(prose).split()) < 1200
