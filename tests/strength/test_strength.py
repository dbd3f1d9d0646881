"""Every attack as strong as it was: `pytest -m strength`; docs/strength.md.

`--update-golden --reason "..."` plays all golden seeds and writes the files anew.
"""

import pytest

from audit.testing import strength
from audit.testing.strength import Golden, band, judge
from tests.strength.suite import FOLDER, PLAYS, golden, mean, measure, words

pytestmark = pytest.mark.strength


@pytest.mark.parametrize("name", PLAYS)
def test_attacks_are_as_strong_as_they_were(name, request, strength_store):
    play, asked = PLAYS[name], words(PLAYS[name])
    if request.config.getoption("--update-golden"):
        update(name, request.config.getoption("--reason"), strength_store)
        return
    held = golden(name)
    assert held.words == asked, f"{name}: not what the golden values are of"
    seeds = held.seeds[: strength.PLAYED]
    found = measure(asked, play.cells, seeds, strength_store)
    said = {"weaker": [], "stronger": []}
    for cell, values in found.items():
        allowed = band(held.cells[cell.name], len(seeds))
        now = mean(values)
        verdict = judge(cell, allowed, now)
        line = (
            f"{cell.name} is {now:.5g}, was {allowed.value:.5g} +- {allowed.width:.2g}"
        )
        print(f"{verdict}: {line}")
        if verdict != "holds":
            said[verdict].append(line)
    assert not said["weaker"], "weaker: " + "; ".join(said["weaker"])
    assert not said["stronger"], (
        "stronger, so `--update-golden --reason ...` to keep it: "
        + "; ".join(said["stronger"])
    )


def update(name, reason, store):
    """Write the golden file of one play; refuse bands that hold nothing."""
    play, asked = PLAYS[name], words(PLAYS[name])
    before = strength.load(FOLDER / f"{name}.json")
    found = measure(asked, play.cells, strength.GOLDEN, store)
    for cell, values in found.items():
        own = band(values)
        print(f"{cell.name}: {own.value:.5g} +- {own.width:.2g} ({own.share:.1%})")
    said = [*(before.reasons if before else []), reason]
    held = {cell.name: values for cell, values in found.items()}
    strength.save(
        FOLDER / f"{name}.json", Golden(asked, list(strength.GOLDEN), held, said)
    )
    wide = [c.name for c, values in found.items() if band(values).share > strength.MOST]
    assert not wide, f"bands over {strength.MOST:.0%}, so enlarge the budget: {wide}"
