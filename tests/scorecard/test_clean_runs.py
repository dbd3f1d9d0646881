"""Runs without a fault, and the notes each scenario is known to raise.

A note belongs to its scenario, so that the same words under another seed raise the
same notes; a warning or an error would be a false one.
"""

import pytest

from audit import pipeline
from audit.engine import shadow
from tests.commands import composed

SMALL = "{public: 20, fixed: 80, pool: 150, targets: 30, test: 60, order: shuffled}"
STAND_IN = {"data-stand-in"}
RUNS = {  # scenario, cut down where it takes long: words, seeds, notes
    "calibration": (
        ("scenario=calibration", "data=digits"),
        (0, 1, 2, 3, 4, 5),
        STAND_IN | {"no-control", "few-targets"},
    ),
    "binary_mnist": (
        (
            "scenario=binary_mnist", "data=digits", f"sets.digits.splits={SMALL}",
            "defenses=[sgd,dpsgd]", "defense.dpsgd.noise_multiplier=0.01",
            "attack.reconstructor.epochs=200", "lanes.tile=128",
        ),
        (0, 1),
        STAND_IN
        | {
            "no-bound", "no-control", "below-bound-biased", "few-targets",
            "augmented-pool",
        },
    ),
    "epsilon_audit": (
        ("scenario=epsilon_audit", "data=digits", "runs=500"),
        (0, 1, 2),
        set(),
    ),
    "epsilon_one_run": (
        ("scenario=epsilon_one_run", "data=digits", "canaries.audits=2"),
        (0, 1),
        set(),
    ),
    "rero_mnist": (
        ("scenario=rero_mnist", "data=digits", "runs=50"),
        (0,),
        {"noise-not-measured"},
    ),
    "glm_adult": (
        ("scenario=glm_adult", "data=breast_cancer", "runs=10"),
        (0, 1),
        STAND_IN,
    ),
    "glm_output_perturbation": (
        ("scenario=glm_output_perturbation", "data=digits", "runs=10"),
        (0, 1),
        STAND_IN | {"no-bound", "below-bound-biased", "attack-below-floor"},
    ),
    "dirdp_scale": (
        (
            "scenario=dirdp_scale", "data=digits", "defenses=[sgd,gauss_4,vmf_4]",
            "attacks=[mean_image,class_mean,iga]", "attack.iga.steps=100", "runs=2",
            "accounting_runs=1",
        ),
        (0,),
        STAND_IN
        | {
            "no-bound", "below-bound-biased", "few-targets", "few-runs",
            "attack-below-floor", "noise-not-measured",
        },
    ),
    "mia_mnist5k": (
        (
            "scenario=mia_mnist5k", "data=digits", "membership.shadows=16",
            "membership.calibration=4", "runs=4", "defenses=[sgd,dpsgd]",
            "attacks=[coin,loss_threshold,attack_r]",
        ),
        (0,),
        STAND_IN | {"attack-feeble"},  # 210 steps hardly overfit
    ),
    "fim": (
        (
            "scenario=binary_mnist", "data=digits", f"sets.digits.splits={SMALL}",
            "defenses=[prune,public_mean,fim]", "attacks=[class_mean,reconstructor]",
            "attack.reconstructor.epochs=200", "lanes.tile=128", "runs=2",
            "accounting_runs=1",
        ),
        (0,),
        STAND_IN
        | {
            "no-control", "below-bound-biased", "few-targets", "attack-below-floor",
            "augmented-pool",
        },
    ),
}  # fmt: skip
# Without noise there is nothing for `transcript_bayes` to see through; with noise there
# is no run for `unrolled_inversion` to replay.
DO_NOT_APPLY = {
    "binary_mnist": {("sgd", "transcript_bayes"), ("dpsgd", "unrolled_inversion")}
}
QUICK = {("calibration", 0)}
EACH = [(name, seed) for name, (_, seeds, _) in RUNS.items() for seed in seeds]


@pytest.mark.parametrize(
    ("name", "seed"),
    [pytest.param(*e, marks=() if e in QUICK else pytest.mark.slow) for e in EACH],
)
def test_a_run_without_a_fault_raises_its_notes_and_nothing_else(name, seed):
    words, _, notes = RUNS[name]
    scenario, _ = composed(*words, f"seed={seed}")
    card = pipeline.audit(scenario, shadow.Engine(scenario.lanes))
    assert {t.status for t in card.trials} <= {"ok", "skipped"}
    skipped = {(t.defense, t.attack) for t in card.trials if t.status == "skipped"}
    assert skipped == DO_NOT_APPLY.get(name, set())
    parts = [*card.trials, *card.defenses.values()]
    raised = {(f.name, f.level) for part in parts for f in part.flags}
    assert raised == {(note, "note") for note in notes}
