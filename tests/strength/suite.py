"""What is played: scenarios at smoke size, on data that come with the packages.

One run of a scenario gives many cells. Budgets are small on purpose: an attack that has
long converged would not show that half of its steps are gone.
"""

from __future__ import annotations

from typing import NamedTuple

from audit.strength import Cell


class Play(NamedTuple):
    """One scenario, run once a seed."""

    words: tuple[str, ...]  # as after `python -m audit run`
    cells: tuple[Cell, ...]


def cells(metric: str, attacks: list[str], defenses: list[str]) -> tuple[Cell, ...]:
    return tuple(Cell(a, d, metric) for a in attacks for d in defenses)


PLAYS = {
    "shadow_models": Play(
        (
            "scenario=binary_mnist",
            "data=digits",
            "defenses=[sgd,dpsgd,dpsgd_strong,prune]",
            "runs=4",
            "accounting_runs=1",
            "attack.reconstructor.epochs=12",
        ),
        (
            *cells("mse", ["reconstructor"], ["sgd", "dpsgd", "dpsgd_strong", "prune"]),
            *cells("mse", ["class_mean", "nearest_neighbour"], ["sgd"]),
        ),
    ),
    "calibration": Play(
        (
            "scenario=calibration",
            "data=digits",
            "defenses=[noisy_sum,{noisier: {use: noisy_sum, noise_stddev: 0.1}}]",
            "defense.noisier.clip_norm=20.0",
            "runs=40",
        ),
        cells("mse", ["sum_inversion"], ["noisy_sum", "noisier"]),
    ),
    "glm_intercept": Play(
        (
            "scenario=glm_reconstruction",
            "data=digits",
            "defenses=[perturbed,{noisier: {use: output_perturbed_glm, noise_stddev: 1.0e-4}}]",
            "runs=100",
        ),
        (
            *cells("mse_typical", ["glm_attack"], ["perturbed", "noisier"]),
            *cells("mse", ["glm_attack_clamped"], ["perturbed", "noisier"]),
        ),
    ),
    "glm_plain": Play(
        (
            "scenario=glm_output_perturbation",
            "data=digits",
            "defenses=[{quiet: {use: output_perturbed_glm, noise_stddev: 1.0e-5}},{noisier: {use: output_perturbed_glm, noise_stddev: 1.0e-4}}]",
            "runs=100",
        ),
        (
            *cells("mse_typical", ["glm_attack"], ["quiet", "noisier"]),
            *cells("mse", ["glm_attack_clamped"], ["quiet", "noisier"]),
        ),
    ),
    "attributes": Play(
        ("scenario=glm_attributes", "data=diabetes", "runs=100"),
        cells("success", ["whitebox_inverter", "fredrikson"], ["low_noise", "noise", "high_noise"]),
    ),
    "attributes_of_classes": Play(
        ("scenario=glm_adult", "data=breast_cancer", "runs=100"),
        cells("success", ["whitebox_inverter", "fredrikson"], ["low_noise", "noise", "high_noise"]),
    ),
    "membership": Play(
        (
            "scenario=mia_mnist5k",
            "data=digits",
            "defenses=[sgd,dpsgd_weak]",
            "runs=16",
            "membership.shadows=32",
            "membership.calibration=2",
        ),
        cells(
            "auc",
            ["loss_threshold", "attack_p", "attack_s", "attack_r", "lira", "rmia", "lira_offline", "rmia_offline"],
            ["sgd", "dpsgd_weak"],
        ),
    ),
    "transcript": Play(
        ("scenario=epsilon_audit", "runs=2000", "defenses=[epsilon_1,epsilon_4,epsilon_8]", "lanes.tile=4000"),
        cells("auc", ["gradient_llr"], ["epsilon_1", "epsilon_4", "epsilon_8"]),
    ),
    "one_run": Play(
        ("scenario=epsilon_one_run", "defenses=[epsilon_4,epsilon_8]", "canaries.audits=1", "canaries.count=1000"),
        cells("auc", ["one_run"], ["epsilon_4", "epsilon_8"]),
    ),
    "gradient_inversion": Play(
        (
            "scenario=dirdp_mnist5k",
            "data=digits",
            "sets.digits.splits.targets=32",
            "defenses=[sgd,dpsgd,vmf_500]",
            "training.steps=45",
            "attacks=[mean_image,analytic,iga,map,dlg,idlg]",
            "attack.iga.steps=60",
            "attack.map.steps=60",
            "attack.dlg.use=gradient_inversion",
            "attack.dlg.preset=dlg",
            "attack.dlg.steps=40",
            "attack.idlg.use=gradient_inversion",
            "attack.idlg.preset=idlg",
            "attack.idlg.steps=40",
        ),
        cells("mse", ["analytic", "iga", "map", "dlg", "idlg"], ["sgd", "dpsgd", "vmf_500"]),
    ),
}  # fmt: skip
