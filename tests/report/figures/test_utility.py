"""Accuracy per defense, drawn where nobody attacked."""

import copy

import pytest

from audit.report.figures import drawings, utility
from audit.statistics.intervals import clopper_pearson
from tests import pages

NAME = "accuracy.png"


def unattacked():
    data = copy.deepcopy(pages.plain())
    data["trials"] = []
    return pages.card(data)


def test_a_card_without_an_attack_shows_the_accuracy_of_every_defense():
    card = unattacked()
    figure = drawings(card)[NAME](card)
    figure.draw_without_rendering()
    (axis,) = figure.axes
    assert [t.get_text() for t in axis.get_yticklabels()] == list(card.defenses)
    for (label, row), bar in zip(card.defenses.items(), axis.containers, strict=True):
        share, test = row.utility.accuracy, row.utility.test
        (segment,) = bar.lines[2][0].get_segments()
        ends = clopper_pearson(round(share * test), test)
        assert segment[:, 0] == pytest.approx(ends, abs=1e-6), label


def test_cards_with_an_attack_or_one_defense_have_no_such_figure():
    assert NAME not in drawings(pages.card())
    data = copy.deepcopy(pages.plain()) | {"trials": []}
    first = next(iter(data["defenses"]))
    data["defenses"] = {first: data["defenses"][first]}
    assert not utility.accuracies(pages.card(data))
