"""Every defense names the attack that knows it best, and cards bear that out."""

import re

import numpy as np
import pytest

from audit.config import registry
from tests import ROOT, pages

NAMED = re.compile(r"\*\*Adaptive attack\.\*\* \[`(\w+)`\]\(\.\./attacks/\1\.md\)")
CARDS = [
    pages.card(pages.plain(path.parent))
    for path in sorted((ROOT / "results").glob("*/scorecard.json"))
]
NOISE = 2.0  # standard errors by which an attack may seem weaker


def adaptive(defense):
    return NAMED.search((ROOT / f"docs/defenses/{defense}.md").read_text())


@pytest.mark.parametrize("defense", registry.names("defense"))
def test_it_is_named_and_no_weaker_than_any_other(defense):
    """On every card that plays it; an attack that ignores the release is no rival."""
    named = adaptive(defense)
    assert named is not None, "the page says which attack is adapted to the defense"
    assert named[1] in registry.names("attack")
    for card in CARDS:
        for label, row in card.defenses.items():
            played = [
                (trial.use, trial.result.headline)
                for trial in card.trials
                if trial.defense == label and row.use == defense
                if trial.result is not None and not trial.result.oracle
                if trial.result.headline.value != trial.result.headline.floor
            ]
            mine = [h for use, h in played if use == named[1]]
            if not mine:
                continue
            best = max(mine, key=lambda h: h.strength)
            for use, other in played:
                errors = [h.standard_error or 0.0 for h in (best, other)]
                margin = NOISE * np.hypot(*errors)
                assert best.strength > other.strength - margin, (label, use)
