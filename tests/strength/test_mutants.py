"""Every attack, weakened, is noticed: `pytest -m mutants`; docs/strength.md."""

import pytest

from audit.config import registry
from tests.strength.mutants import MUTANTS
from tests.strength.suite import PLAYS, golden, judged, words

SEEDS = 2  # fewer than a check plays: the band is wider, so noticed here is noticed


@pytest.mark.mutants
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant(name, monkeypatch, strength_store):
    mutant = MUTANTS[name]
    cells = mutant.cells()
    mutant.apply(monkeypatch)
    replay = [*words(PLAYS[mutant.play], cells), *mutant.words.split()]
    lines = judged(golden(mutant.play), replay, cells, SEEDS, strength_store)
    wanted = "holds" if mutant.harmless else "weaker"
    wrong = [
        line for verdict, some in lines.items() if verdict != wanted for line in some
    ]
    assert not wrong, f"{name} must be {wanted}: " + "; ".join(wrong)


def test_every_attack_has_cells_and_a_mutant_that_is_noticed():
    noticed = {m.attack for m in MUTANTS.values() if not m.harmless}
    # whoever tosses a coin cannot be made any weaker; the error of maximum likelihood
    # moves by a tenth with the targets, and is held to the Cramer-Rao bound instead
    assert noticed | {"coin", "maximum_likelihood"} == set(registry.names("attack"))
