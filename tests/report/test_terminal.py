"""What a run prints: it fits, and what had no room is named."""

import io

import pytest

from audit.report import columns, terminal
from audit.scorecard import schema
from tests import pages
from tests.pages import RESULTS

CARDS = sorted(RESULTS.glob("*/scorecard.json"))
ONE_PER_GAME = {
    "binary_mnist-mnist5k", "dirdp_scale_mia-digits", "epsilon_audit-digits",
    "glm_output_perturbation-mnist", "rero_mnist-mnist", "fim_anatomy-mnist",
}  # fmt: skip
EVERY = [
    pytest.param(p, marks=[] if p.parent.name in ONE_PER_GAME else pytest.mark.slow)
    for p in CARDS
]


def headers(text):
    """The words of the first row of a table."""
    return text.split("\n")[0].split()


@pytest.mark.parametrize("path", EVERY, ids=lambda p: p.parent.name)
def test_no_row_is_wrapped_or_wider_than_the_terminal(path):
    card = schema.load(path)
    for most in (80, 120):
        text = terminal.page(card, most)
        assert max(map(len, text.split("\n"))) <= most
        table = text.split("\n\n")[0].split("\n")
        assert len(table) == 2 + len(card.defenses)
        assert not any("…" in row for row in table)
        assert [row.split()[0] for row in table[2:]] == list(card.defenses)


def test_columns_are_dropped_in_order_and_named():
    card = pages.card()
    narrow, wide = terminal.page(card, 80), terminal.page(card, 200)
    assert {"defense", "accuracy", "strongest", "transcript"} <= set(headers(narrow))
    assert "1/dFIL" not in headers(narrow)
    dropped = narrow.split("no room for: ")[1].split(" (scorecard.md")[0]
    assert {"1/dFIL", "finite prior"} <= set(dropped.replace("\n ", "").split(", "))
    assert "no room for" not in wide
    # a footer explains a column that is there, and no other
    assert "finite prior:" not in narrow
    assert "finite prior:" in wide
    assert "every row: floor .0467" in narrow
    assert "docs/scorecards.md" in narrow


def test_flags_that_have_no_column_have_lines():
    text = " ".join(terminal.page(pages.card(), 80).split())
    assert "flag few-targets: dpsgd, prune, public_mean" in text
    assert "flag no-bound: sgd" in text


def test_what_matters_most_is_dropped_last():
    card = pages.card()
    order = [c.header for c in columns.ranked(card, columns.columns(card))]
    first = ["defense", "strongest", "MSE ± s.e.", "transcript", "accuracy", "ε upper"]
    assert order[:6] == first
    assert order.index("finite prior") < order.index("flags") < order.index("HCR")


def test_a_file_is_eighty_wide(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "200")
    assert terminal.width() == 80


def test_an_estimated_dfil_says_how_far_it_may_be_off():
    data = pages.plain()
    for label, defense in data["defenses"].items():
        if defense["dfil"]:
            defense["dfil"]["relative_se"] = 0.0312 if label == "dpsgd" else 0.0
    text = "standard error of a record's dFIL, over that dFIL: dpsgd 3.1%"
    assert text in terminal.notes(pages.card(data)).split("\n")
    assert text not in terminal.notes(pages.card(data), {"defense"})
    data["defenses"]["dpsgd"]["dfil"]["probe_se"] = 0.0312
    alone = "of dpsgd, of the probes of one released run alone"
    assert f"{text}; {alone}" in terminal.notes(pages.card(data)).split("\n")
    data["defenses"]["dpsgd"]["dfil"]["relative_se"] = 0.0
    assert "standard error of a record" not in terminal.notes(pages.card(data))


def test_who_sees_nothing_is_no_substitute_for_attacks_that_are_void():
    data = pages.plain()
    dead = {"name": "attack-dead", "level": "error", "text": "it learns nothing"}
    for trial in data["trials"]:
        if trial["defense"] == "dpsgd" and trial["attack"] != "class_mean":
            trial["flags"] = [dead]
    card = pages.card(data)
    assert columns.strongest(card, "dpsgd") is None
    untouched = columns.strongest(pages.card(pages.plain()), "dpsgd_eps8")
    assert untouched is not None
    assert columns.strongest(card, "dpsgd_eps8") == untouched
    lines = {line.label: columns.flags_of(line) for line in columns.lines(card)}
    assert lines["dpsgd"] == "no valid attack, attack-dead"
    assert "valid" not in lines["dpsgd_eps8"]
    assert "flag no valid attack: dpsgd" in terminal.page(card, 80).split("\n")
    lost = {"name": "diverged", "level": "error", "text": "2 of 3 runs have no number"}
    data["defenses"]["dpsgd"]["flags"] = [lost]
    lines = {line.label: line for line in columns.lines(pages.card(data))}
    assert columns.flags_of(lines["dpsgd"]) == "no valid attack, attack-dead, diverged"
    data["trials"] = [t for t in data["trials"] if t["attack"] == "class_mean"]
    assert columns.strongest(pages.card(data), "dpsgd").attack == "class_mean"
