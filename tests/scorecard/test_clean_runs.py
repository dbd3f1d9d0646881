"""Runs without a fault, and the notes each scenario is known to raise.

A note belongs to its scenario, so that the same words under another seed raise the
same notes; a warning or an error would be a false one.
"""

from typing import NamedTuple

import pytest

from audit import pipeline
from audit.engine import shadow
from tests.commands import composed


class Clean(NamedTuple):
    """One scenario, cut down where it takes long."""

    words: tuple[str, ...]
    seeds: tuple[int, ...]
    notes: frozenset[str]


SMALL = "{public: 20, fixed: 80, pool: 150, targets: 30, test: 60, order: shuffled}"
STAND_IN = {"data-stand-in"}
RUNS = {
    "calibration": Clean(
        ("scenario=calibration", "data=digits"),
        (0, 1, 2, 3, 4, 5),
        frozenset(STAND_IN | {"no-control"}),
    ),
    "binary_mnist": Clean(
        (
            "scenario=binary_mnist", "data=digits", f"sets.digits.splits={SMALL}",
            "defenses=[sgd,dpsgd]", "defense.dpsgd.noise_multiplier=0.01",
            "attack.reconstructor.epochs=200", "lanes.tile=128",
        ),
        (0, 1),
        frozenset(STAND_IN | {"no-bound", "augmented-pool"}),
    ),
    "epsilon_audit": Clean(
        ("scenario=epsilon_audit", "data=digits", "runs=500"),
        (0, 1, 2),
        frozenset(),
    ),
    "epsilon_one_run": Clean(
        ("scenario=epsilon_one_run", "data=digits", "canaries.audits=2"),
        (0, 1),
        frozenset(),
    ),
    "glm_adult": Clean(
        ("scenario=glm_adult", "data=breast_cancer", "runs=10"),
        (0, 1),
        frozenset(STAND_IN),
    ),
    "glm_output_perturbation": Clean(
        ("scenario=glm_output_perturbation", "data=digits", "runs=10"),
        (0, 1),
        frozenset(STAND_IN | {"no-bound", "below-bound-biased", "attack-below-floor"}),
    ),
    "dirdp_scale": Clean(
        (
            "scenario=dirdp_scale", "data=digits", "defenses=[sgd,gauss_4,vmf_4]",
            "attacks=[mean_image,class_mean,iga]", "attack.iga.steps=100", "runs=2",
            "accounting_runs=1",
        ),
        (0,),
        frozenset(
            STAND_IN
            | {"no-bound", "below-bound-biased", "few-runs", "attack-below-floor"}
        ),
    ),
    "mia_mnist5k": Clean(
        (
            "scenario=mia_mnist5k", "data=digits", "membership.shadows=16",
            "membership.calibration=4", "runs=4", "defenses=[sgd,dpsgd]",
            "attacks=[coin,loss_threshold,attack_r]",
        ),
        (0,),
        frozenset(STAND_IN),
    ),
    "fim": Clean(
        (
            "scenario=binary_mnist", "data=digits", f"sets.digits.splits={SMALL}",
            "defenses=[prune,public_mean,fim]", "attacks=[class_mean]", "runs=2",
            "accounting_runs=1",
        ),
        (0,),
        frozenset(STAND_IN | {"below-bound-biased", "augmented-pool"}),
    ),
}  # fmt: skip
QUICK = {("calibration", seed) for seed in (0, 1, 2)}
EACH = [(name, seed) for name, own in RUNS.items() for seed in own.seeds]


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow)
        for one in EACH
    ],
)
def test_a_run_without_a_fault_raises_its_notes_and_nothing_else(name, seed):
    clean = RUNS[name]
    scenario, _ = composed(*clean.words, f"seed={seed}")
    card = pipeline.audit(scenario, shadow.Engine(scenario.lanes))
    assert {t.status for t in card.trials} == {"ok"}
    parts = [*card.trials, *card.defenses.values()]
    raised = {(f.name, f.level) for part in parts for f in part.flags}
    assert raised == {(note, "note") for note in clean.notes}
