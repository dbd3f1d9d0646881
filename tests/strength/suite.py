"""What is played: scenarios at smoke size, on data that come with the packages.

One run of a scenario gives many cells. Budgets are small on purpose: an attack that has
long converged would not show that half of its steps are gone. Where a cell moved too
much between seeds for a band of 5%, its noise is larger or its releases are more; the
comments say which.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.testing import strength
from audit.testing.strength import Cell, Golden

FOLDER = Path(__file__).parent / "golden"


class Play(NamedTuple):
    """One scenario, run once a seed."""

    scenario: str
    words: str  # as after `python -m audit run`
    cells: tuple[Cell, ...]


def cells(metric: str, attacks: str, defenses: str) -> tuple[Cell, ...]:
    return tuple(Cell(a, d, metric) for a in attacks.split() for d in defenses.split())


PLAYS = {
    # SGD with long steps: after Adam's, the error is the start's doing, not the
    # attack's (45% between seeds). The fits have no start at all; even there the mean
    # square's band is 5.4% wide, whatever the noise, so that structure is held. 12
    # epochs are more than noiseless releases need: half of them went unnoticed.
    "shadow_models": Play(
        "binary_mnist",
        "data=digits runs=8 accounting_runs=1 training.optimizer=sgd "
        "training.learning_rate=2.0 training.steps=8 attack.reconstructor.epochs=6 "
        "defense.perturbed.use=output_perturbed_glm "
        "defense.perturbed.loss=logistic defense.perturbed.regularization=0.01 "
        "defense.perturbed.noise_stddev=0.003",
        cells("ssim", "reconstructor", "perturbed sgd"),
    ),
    "noised_sum": Play(
        "calibration",
        "data=digits runs=8 sets.digits.splits.augment=2000 "
        "attack.reconstructor.epochs=12 defense.noisier.use=noisy_sum "
        "defense.noisier.clip_norm=20.0 defense.noisier.noise_stddev=0.1",
        (
            *cells("mse", "sum_inversion", "noisy_sum noisier"),
            *cells("mse", "reconstructor", "noisier"),  # of less noise 7% wide
            *cells("mse", "class_mean nearest_neighbour", "noisy_sum"),
        ),
    ),
    # a play of its own, so that the goldens of the one above stay as they are
    "linear_release": Play(
        "calibration",
        "data=digits runs=8 sets.digits.splits.augment=2000 "
        "defense.noisier.use=noisy_sum defense.noisier.clip_norm=20.0 "
        "defense.noisier.noise_stddev=0.5 attack.matched_filter.repeats=2",
        cells("mse", "matched_filter ridge", "noisier"),
    ),
    # Targets are solved to the digit: how far, only decibels tell. After Adam's steps
    # that hangs on the start (30% between seeds), after long ones of SGD by 8%
    "replayed": Play(
        "binary_mnist",
        "data=digits runs=1 training.optimizer=sgd training.learning_rate=0.5 "
        "training.steps=5",
        cells("psnr_median", "unrolled_inversion", "sgd"),
    ),
    # Which records are targets moves the mean square by a tenth, structure by 2%
    "noised_steps": Play(
        "binary_mnist",
        "data=digits runs=8 defense.louder.use=dpsgd defense.louder.clip_norm=10.0 "
        "defense.louder.noise_multiplier=0.15",
        cells("ssim", "transcript_bayes candidate_bayes", "dpsgd louder"),
    ),
    # The records are other ones under every seed: with 300 targets the band of dpsgd_1
    # was 7% wide. At less noise 4,000 are not enough (dpsgd_0_1: 14%), for how much a
    # release tells there hangs on the other records of the training set.
    "published_prior": Play(
        "closed_world",
        "runs=1 sets.digits_mixture.splits.targets=1000 accounting_runs=1",
        cells("mse", "mixture_posterior", "dpsgd_1 dpsgd_3"),
    ),
    # One release's noise is shared by all records, so what counts is how many releases
    # there are, and how much of the error is noise: with 400 the bands were 6 to 7%
    # wide, with 1,000 those of `glm_label` 5.2%.
    "glm_intercept": Play(
        "glm_reconstruction",
        "data=digits runs=2000 defense.noisier.use=output_perturbed_glm "
        "defense.noisier.noise_stddev=3.0e-4",
        (
            *cells("mse_typical", "glm_attack", "noisier"),
            *cells("mse", "glm_attack_clamped", "noisier"),
        ),
    ),
    "glm_label": Play(
        "glm_output_perturbation",
        "data=digits runs=2000 defense.noisier.use=output_perturbed_glm "
        "defense.noisier.noise_stddev=3.0e-4",
        cells("mse", "glm_attack glm_attack_clamped", "noisier"),
    ),
    # A pool of 50 has either value as often as the records do, 27 to 23. That of 100
    # happens to be 50 to 50, so that nobody had a prior to forget. 400 releases: with
    # 100, a fit by a quarter of the weights went unnoticed under much noise.
    "attributes": Play(
        "glm_attributes",
        "data=diabetes sets.diabetes.splits.test=50 runs=400",
        (
            *cells("success", "whitebox_inverter", "noise high_noise"),
            *cells("success", "fredrikson", "noise high_noise"),
            *cells("success", "prior_mode ideal_imputation", "noise"),
        ),
    ),
    "attributes_of_classes": Play(
        "glm_adult",
        "data=breast_cancer",
        (
            *cells("success", "whitebox_inverter", "low_noise"),
            *cells("success", "fredrikson", "low_noise"),
        ),
    ),
    # 96 target models: with 24, RMIA on a tenth of the shadows went unnoticed, which it
    # can nearly do without, and LiRA's 2 AUC - 1 was 5 to 9% wide. Twice the scenario's
    # steps: the little that losses alone tell moves less once training has converged.
    "membership": Play(
        "mia_mnist5k",
        "data=digits runs=96 sets.digits.training.steps=420 membership.shadows=32 "
        "membership.calibration=2",
        (
            *cells("gini", "loss_threshold attack_p attack_s rmia rmia_offline", "sgd"),
            *cells("gini", "attack_r lira lira_offline", "sgd"),
            *cells("auc", "coin", "sgd"),
        ),
    ),
    # 8,000 runs: with 2,000, the one bit of `mutants` went unnoticed at epsilon 1
    "transcript": Play(
        "epsilon_audit",
        "runs=8000 lanes.tile=4000",
        cells("auc", "gradient_llr", "epsilon_1 epsilon_4 epsilon_8"),
    ),
    # Ten steps in place of a hundred at the same epsilon. 3,200 runs per seed: with
    # 1,000 the bands would be 8% wide.
    "candidates": Play(
        "rero_mnist",
        "data=digits runs=400 training.steps=10 lanes.tile=400 "
        "defense.sigma_9_5.noise_multiplier=3.0 defense.sigma_5.noise_multiplier=1.58",
        cells("success", "prior_aware likelihood", "sigma_9_5 sigma_5"),
    ),
    "one_run": Play(
        "epsilon_one_run",
        "canaries.audits=1 canaries.count=2000",
        cells("auc", "one_run", "epsilon_4 epsilon_8"),
    ),
    # 96 targets: with 32, noise moved the errors by 5% between seeds. `smooth` is iga
    # with a prior that counts; the error of an undefended search is that of the few
    # starts that get stuck, 27% wide even in the median. Under the noise of `dpsgd`
    # `map` is there in 3 steps; under that of `vmf_300k`, 20 are on the way.
    "gradient_inversion": Play(
        "dirdp_mnist5k",
        "data=digits sets.digits.splits.targets=96 training.steps=45 "
        "attack.smooth.use=gradient_inversion attack.smooth.preset=iga "
        "attack.smooth.steps=60 attack.smooth.smoothness=0.05 attack.map.steps=20",
        (
            *cells("mse", "analytic map", "dpsgd vmf_500"),
            *cells("ssim", "map", "vmf_300k"),
            *cells("mse", "smooth", "vmf_500"),
            *cells("mse", "mean_image", "dpsgd"),
        ),
    ),
    # 20 steps are on the way, so that the mean square is that of the few starts that
    # get stuck (25% between seeds) and structure is what is held. No noised step: there
    # both searches fit the noise, and are further off with every iteration.
    "label_and_image": Play(
        "dirdp_mnist5k",
        "data=digits sets.digits.splits.targets=64 training.steps=45 "
        "task.settings.hidden=16 attack.dlg.use=gradient_inversion "
        "attack.dlg.preset=dlg attack.dlg.steps=20 "
        "attack.idlg.use=gradient_inversion attack.idlg.preset=idlg "
        "attack.idlg.steps=20",
        cells("ssim", "dlg idlg", "sgd"),
    ),
}


def line_up(cells: Iterable[Cell]) -> list[str]:
    """Return the words for the attacks and defenses of some cells."""
    defenses, attacks = zip(*((c.defense, c.attack) for c in cells), strict=True)
    both = {"defenses": defenses, "attacks": attacks}
    return [f"{kind}=[{','.join(dict.fromkeys(n))}]" for kind, n in both.items()]


def words(play: Play, some: Iterable[Cell] | None = None) -> list[str]:
    """Return what runs some of a play's cells; none named: all of them.

    Randomness is addressed by name, so that a shorter line-up draws the same bits.
    """
    cells = line_up(play.cells if some is None else some)
    return [f"scenario={play.scenario}", *play.words.split(), *cells]


def golden(name: str) -> Golden:
    """Return the golden values of a play."""
    kept = strength.load(FOLDER / f"{name}.json")
    assert kept is not None, f"{name} has no golden file: --update-golden makes it"
    return kept


def measure(
    words: list[str], cells: Iterable[Cell], seeds: Iterable[int], store: Path | None
) -> dict[Cell, list[float]]:
    """Run, and return every cell's value under every seed."""
    values: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for seed in seeds:
        [card] = strength.play(words, [seed], store)
        for cell, each in values.items():
            each.append(strength.value(card, cell))
    return values


def judged(
    goldens: Golden,
    words: list[str],
    cells: Iterable[Cell],
    count: int,
    store: Path | None,
) -> dict[str, list[str]]:
    """Play the first golden seeds, and return one line per cell under its verdict."""
    lines: dict[str, list[str]] = {"holds": [], "weaker": [], "stronger": []}
    seeds = goldens.seeds[:count]
    for cell, values in measure(words, cells, seeds, store).items():
        allowed = strength.band(goldens.cells[cell.name], len(seeds))
        now = float(np.mean(values))
        verdict = strength.judge(cell, allowed, now)
        was = f"was {allowed.value:.5g} +- {allowed.width:.2g}"
        lines[verdict].append(f"{verdict}: {cell.name} is {now:.5g}, {was}")
        print(lines[verdict][-1])
    return lines
