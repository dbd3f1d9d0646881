"""Where the prior is published, the best attack stands at the exact Bayes risk."""

import math

import pytest

from audit.accounting import gaps
from audit.report import terminal
from audit.testing import strength

RUNS = 4  # per target: errors of more noise, at next to no cost
SMALL = [
    "scenario=closed_world", f"runs={RUNS}", "accounting_runs=1",
    "defenses=[dpsgd_0_1,dpsgd_3,prune]", "attacks=[class_mean,mixture_posterior]",
]  # fmt: skip
ATTACK = "mixture_posterior"


@pytest.mark.slow
def test_attack_and_bound_meet():
    """Within four standard errors, of a percent or two; no row lies below the risk."""
    [card] = strength.play(SMALL)
    for label, defense in card.defenses.items():
        bound = next(b for b in defense.bounds if b.name == "closed_world")
        [trial] = [t for t in card.trials if (t.defense, t.use) == (label, ATTACK)]
        error = standard_error(bound, trial.result.targets * RUNS)
        assert error < 0.02 * bound.mean
        assert trial.result.mse == pytest.approx(bound.mean, abs=4 * error)
        assert "below-bound-unexplained" not in {f.name for f in trial.flags}
        nothing = abs(bound.mean / card.floor.mse - 1) < 0.01
        assert nothing == (label == "dpsgd_3")
    assert max(map(len, terminal.table(card).split("\n"))) <= 120


def standard_error(bound, errors):
    """Return that of the mean of so many errors around the risk."""
    variance = bound.needed / gaps.needed(bound.mean, 1.0)  # they are proportional
    return math.sqrt(variance / errors)
