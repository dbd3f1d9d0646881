"""Where the prior is published, the best attack stands at the exact Bayes risk."""

import pytest

from audit.report import terminal
from audit.testing import strength

SMALL = [
    "scenario=closed_world", "sets.digits_mixture.splits.targets=96", "runs=2",
    "accounting_runs=1", "defenses=[dpsgd_0_1,dpsgd_3,prune]",
    "attacks=[class_mean,mixture_posterior]",
]  # fmt: skip


@pytest.mark.slow
def test_attack_and_bound_meet():
    """Beside the samples' mean on the same targets; and no row lies below the risk."""
    [card] = strength.play(SMALL)
    for label, defense in card.defenses.items():
        bound = next(b for b in defense.bounds if b.name == "closed_world")
        [trial] = [t for t in card.trials if (t.defense, t.use) == (label, ATTACK)]
        assert trial.result.mse < 1.03 * bound.genie
        assert trial.result.mse > 0.97 * bound.genie
        assert "below-bound-unexplained" not in {f.name for f in trial.flags}
        nothing = abs(bound.mean / card.floor.mse - 1) < 0.01
        assert nothing == (label == "dpsgd_3")
    assert max(map(len, terminal.table(card).split("\n"))) <= 120


ATTACK = "mixture_posterior"
