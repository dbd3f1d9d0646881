"""Errors against budgets, drawn."""

import copy

import pytest

from audit.report.figures import budget, drawings
from tests import pages

NAME = "mse_vs_shadows.png"


def card_of(*shadows):
    """A card on which the reconstructor has played with several budgets."""
    data = pages.plain()
    trials = [t for t in data["trials"] if t["attack"] == "reconstructor"]
    for t in trials:
        for i, count in enumerate(shadows):
            more = copy.deepcopy(t) | {"attack": f"with_{count}"}
            more["result"]["fit"]["shadows"] = count
            more["result"]["mse"] = 0.04 / (i + 1)
            data["trials"].append(more)
        data["trials"].remove(t)
    return pages.card(data)


def test_labels_of_one_attack_are_one_curve_in_order_of_their_budgets():
    curves = budget.curves(card_of(100, 3000, 1000))
    (curve,) = [v for k, v in curves.items() if k == "sgd, reconstructor"]
    assert [(p.shadows, p.mse) for p in curve] == [
        (100, 0.04), (1000, pytest.approx(0.04 / 3)), (3000, 0.02),
    ]  # fmt: skip


def test_a_card_with_one_budget_has_no_such_figure():
    assert NAME not in drawings(card_of(100))
    assert NAME not in drawings(pages.card())


def test_the_figure_shows_every_curve_the_floor_and_the_oracle():
    card = card_of(100, 1000)
    figure = drawings(card)[NAME](card)
    figure.draw_without_rendering()
    names = {text.get_text() for text in figure.axes[0].texts}
    assert {"sgd, reconstructor", "nearest_neighbour (an oracle)"} <= names
    assert "floor: ignores it" in names
    assert len(budget.curves(card)) == len(card.defenses)
