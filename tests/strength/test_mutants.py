"""Every attack, weakened, is noticed: `pytest -m mutants`; docs/strength.md."""

import pytest

from audit.config import registry
from audit.testing.strength import band, judge
from tests.strength.mutants import MUTANTS
from tests.strength.suite import PLAYS, golden, mean, measure, words

SEEDS = 2  # fewer than a check plays: the band is wider, so noticed here is noticed


@pytest.mark.mutants
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant(name, monkeypatch, strength_store):
    mutant = MUTANTS[name]
    held = golden(mutant.play)
    cells = mutant.cells()
    mutant.apply(monkeypatch)
    asked = [*words(PLAYS[mutant.play], cells), *mutant.words.split()]
    seeds = held.seeds[:SEEDS]
    found = measure(asked, cells, seeds, strength_store)
    wanted = "holds" if mutant.harmless else "weaker"
    said = []
    for cell, values in found.items():
        allowed, now = band(held.cells[cell.name], len(seeds)), mean(values)
        verdict = judge(cell, allowed, now)
        line = f"{verdict}: {cell.name} is {now:.5g}, "
        line += f"was {allowed.value:.5g} +- {allowed.width:.2g}"
        print(line)
        if verdict != wanted:
            said.append(line)
    assert not said, f"{name} must be {wanted}: " + "; ".join(said)


def test_every_attack_has_cells_and_a_mutant_that_is_noticed():
    noticed = {m.attack for m in MUTANTS.values() if not m.harmless}
    # whoever tosses a coin cannot be made any weaker
    assert noticed | {"coin"} == set(registry.names("attack"))
