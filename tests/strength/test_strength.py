"""Every attack as strong as it was: `pytest -m strength`; docs/strength.md.

`--update-golden --reason "..."` plays all golden seeds and writes the files anew.
"""

import pytest

from audit.testing import strength
from audit.testing.strength import Golden
from tests.strength.suite import FOLDER, PLAYS, golden, judged, measure, words

pytestmark = pytest.mark.strength


@pytest.mark.parametrize("name", PLAYS)
def test_attacks_are_as_strong_as_they_were(name, request, strength_store):
    play, replay = PLAYS[name], words(PLAYS[name])
    if request.config.getoption("--update-golden"):
        update(name, request.config.getoption("--reason"), strength_store)
        return
    goldens = golden(name)
    assert goldens.words == replay, f"{name}: not what the golden values are of"
    lines = judged(goldens, replay, play.cells, strength.PLAYED, strength_store)
    assert not lines["weaker"], "; ".join(lines["weaker"])
    assert not lines["stronger"], (
        "`--update-golden --reason ...` to keep it: " + "; ".join(lines["stronger"])
    )


def update(name, reason, store):
    """Write the golden file of one play; refuse bands that are too wide."""
    play, replay = PLAYS[name], words(PLAYS[name])
    before = strength.load(FOLDER / f"{name}.json")
    measured = measure(replay, play.cells, strength.GOLDEN, store)
    bands = {cell.name: strength.band(values) for cell, values in measured.items()}
    for cell, b in bands.items():
        print(f"{cell}: {b.value:.5g} +- {b.width:.2g} ({b.share:.1%})")
    reasons = [*(before.reasons if before else []), reason]
    values = {cell.name: each for cell, each in measured.items()}
    goldens = Golden(replay, list(strength.GOLDEN), values, reasons)
    strength.save(FOLDER / f"{name}.json", goldens)
    wide = [cell for cell, b in bands.items() if b.share > strength.MOST]
    assert not wide, f"bands over {strength.MOST:.0%}, so enlarge the budget: {wide}"
