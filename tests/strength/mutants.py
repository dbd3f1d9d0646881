"""Attacks weakened on purpose. Each names the cells it must break before it is run.

A mutant is a setting (`words`) or a change of the attack itself (`change`), as a slip
in its code would be. One that breaks nothing says so, and why (`harmless`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attacks.glm_attack import glm_attack
from audit.types import Attack
from tests.strength.suite import PLAYS, Cell
from tests.strength.weaken import (
    LABEL_DROPPED,
    LABEL_FLIPPED,
    ONE_BIT,
    few_halvings,
    fitted,
    flat_prior,
    knowing,
    longer_root,
    no_ridge,
    one_forgotten,
    one_unit,
    other_attack,
    quarter_of_weights,
    right_or_wrong,
    saying,
    seeing,
    some_pool,
    some_population,
    stale,
    uniform_prior,
    wrong_label,
    wrong_smoothness,
)


class Mutant(NamedTuple):
    """One weakened attack."""

    play: str
    attack: str  # its module
    breaks: str  # defenses of the cells that must turn weaker
    words: str = ""  # of a command line
    change: Callable | None = None  # Attack -> Attack
    patch: Callable | None = None  # (MonkeyPatch) -> None, for what attacks share
    harmless: str = ""  # why the cells in `breaks` must hold instead
    label: str = ""  # of the attack in the line-up, if not its module

    def cells(self) -> list[Cell]:
        """Return the cells it is judged on."""
        pairs = [(self.label or self.attack, d) for d in self.breaks.split()]
        cells = [c for c in PLAYS[self.play].cells if (c.attack, c.defense) in pairs]
        assert {(c.attack, c.defense) for c in cells} == set(pairs), self
        return cells

    def apply(self, monkeypatch: Any) -> None:
        """Put the weakened attack in place of the real one."""
        if self.patch is not None:
            self.patch(monkeypatch)
        module = importlib.import_module(f"attacks.{self.attack}")
        factory, change = getattr(module, self.attack), self.change or (lambda a: a)

        def weakened(task: Any, **settings: Any) -> Attack:
            return change(factory(task, **settings))

        # another function, so that nothing compiled for the real attack is used
        monkeypatch.setattr(module, self.attack, weakened)


FEW_SHADOWS = "membership.shadows=4"  # a tenth of them, made even

MUTANTS = {
    # reconstruction
    "reconstructor, half the epochs": Mutant(
        "noised_sum", "reconstructor", "noisier", words="attack.reconstructor.epochs=6"
    ),
    "reconstructor, a tenth of the shadows": Mutant(
        "noised_sum", "reconstructor", "noisier", change=some_pool(0.1)
    ),
    "reconstructor, label dropped": Mutant(
        "noised_sum", "reconstructor", "noisier", change=LABEL_DROPPED
    ),
    "reconstructor, stale standardisation": Mutant(
        "noised_sum", "reconstructor", "noisier", change=fitted(stale)
    ),
    "reconstructor, half the epochs, trained models": Mutant(
        "shadow_models",
        "reconstructor",
        "sgd perturbed",
        words="attack.reconstructor.epochs=3",
    ),
    "reconstructor, a tenth of the shadows, trained models": Mutant(
        "shadow_models", "reconstructor", "sgd perturbed", change=some_pool(0.1)
    ),
    "matched_filter, a tenth of the shadows": Mutant(
        "linear_release", "matched_filter", "noisier", change=some_pool(0.1)
    ),
    "matched_filter, label dropped": Mutant(
        "linear_release", "matched_filter", "noisier", change=LABEL_DROPPED
    ),
    "class_mean, label dropped": Mutant(
        "noised_sum", "class_mean", "noisy_sum", change=LABEL_DROPPED
    ),
    "mean_image, half of the image": Mutant(
        "gradient_inversion",
        "mean_image",
        "dpsgd",
        change=saying(lambda x: x.at[: x.shape[0] // 2].set(0)),
    ),
    "nearest_neighbour, a tenth of the pool": Mutant(
        "noised_sum", "nearest_neighbour", "noisy_sum", change=some_pool(0.1)
    ),
    "sum_inversion, wrong clip": Mutant(
        "noised_sum",
        "sum_inversion",
        "noisy_sum noisier",
        words="attack.sum_inversion.clip_norm=10.0",
    ),
    "sum_inversion, a record forgotten": Mutant(
        "noised_sum",
        "sum_inversion",
        "noisy_sum noisier",
        change=knowing(one_forgotten),
    ),
    "sum_inversion, a sixth of the halvings": Mutant(
        "noised_sum", "sum_inversion", "noisy_sum", patch=few_halvings(4)
    ),
    "sum_inversion, half of the halvings": Mutant(
        "noised_sum",
        "sum_inversion",
        "noisy_sum noisier",
        patch=few_halvings(12),
        harmless="12 halvings find the norm to .007; the noise moves it by .01 and .1",
    ),
    "glm_attack, no ridge, intercept": Mutant(
        "glm_intercept", "glm_attack", "noisier", change=seeing(no_ridge)
    ),
    "glm_attack, label flipped": Mutant(
        "glm_label", "glm_attack", "noisier", change=LABEL_FLIPPED
    ),
    "glm_attack, one root": Mutant(
        "glm_label", "glm_attack", "noisier", patch=longer_root
    ),
    "glm_attack, label flipped, intercept": Mutant(
        "glm_intercept",
        "glm_attack",
        "noisier",
        change=LABEL_FLIPPED,
        harmless="with an intercept the slope is read off its own coordinate",
    ),
    "glm_attack_clamped, no clamp": Mutant(
        "glm_label",
        "glm_attack_clamped",
        "noisier",
        patch=other_attack(glm_attack, "glm_attack_clamped"),
    ),
    "glm_attack_clamped, label flipped": Mutant(
        "glm_intercept", "glm_attack_clamped", "noisier", change=LABEL_FLIPPED
    ),
    # attributes
    "whitebox_inverter, a quarter of the weights": Mutant(
        "attributes",
        "whitebox_inverter",
        "noise high_noise",
        change=seeing(quarter_of_weights),
    ),
    "whitebox_inverter, a quarter of the weights, classes": Mutant(
        "attributes_of_classes",
        "whitebox_inverter",
        "low_noise",
        change=seeing(quarter_of_weights),
    ),
    "fredrikson, label dropped": Mutant(
        "attributes",
        "fredrikson",
        "noise high_noise",
        change=seeing(lambda seen: seen._replace(label=0 * seen.label)),
    ),
    "fredrikson, prior dropped": Mutant(
        "attributes", "fredrikson", "noise high_noise", change=fitted(uniform_prior)
    ),
    "fredrikson, label flipped, classes": Mutant(
        "attributes_of_classes", "fredrikson", "low_noise", change=LABEL_FLIPPED
    ),
    "prior_mode, rarest value": Mutant(
        "attributes", "prior_mode", "noise", change=saying(jnp.negative)
    ),
    "ideal_imputation, label dropped": Mutant(
        "attributes",
        "ideal_imputation",
        "noise",
        change=seeing(lambda seen: seen._replace(label=0 * seen.label)),
    ),
    # membership
    "coin, a loaded one": Mutant(
        "membership",
        "coin",
        "sgd",
        change=saying(lambda s: s + jnp.arange(len(s))),
        harmless="whoever scores records without looking is right half of the time",
    ),
    "loss_threshold, right or wrong": Mutant(
        "membership", "loss_threshold", "sgd", change=seeing(right_or_wrong)
    ),
    "attack_p, a population of one": Mutant(
        "membership", "attack_p", "sgd", change=some_population(1)
    ),
    "attack_p, a hundredth of the population": Mutant(
        "membership", "attack_p", "sgd", change=some_population(5)
    ),
    "attack_s, label dropped": Mutant(
        "membership", "attack_s", "sgd", change=LABEL_DROPPED
    ),
    "attack_r, a tenth of the shadows": Mutant(
        "membership", "attack_r", "sgd", words=FEW_SHADOWS
    ),
    "lira, a tenth of the shadows": Mutant(
        "membership", "lira", "sgd", words=FEW_SHADOWS
    ),
    "lira offline, a tenth of the shadows": Mutant(
        "membership", "lira", "sgd", label="lira_offline", words=FEW_SHADOWS
    ),
    "rmia, a tenth of the shadows": Mutant(
        "membership", "rmia", "sgd", words=FEW_SHADOWS
    ),
    "rmia offline, a tenth of the shadows": Mutant(
        "membership", "rmia", "sgd", label="rmia_offline", words=FEW_SHADOWS
    ),
    "gradient_llr, one bit": Mutant(
        "transcript", "gradient_llr", "epsilon_1 epsilon_4 epsilon_8", change=ONE_BIT
    ),
    "one_run, one bit": Mutant(
        "one_run", "one_run", "epsilon_4 epsilon_8", change=ONE_BIT
    ),
    "one_run, no start": Mutant(
        "one_run",
        "one_run",
        "epsilon_4 epsilon_8",
        change=fitted(lambda start: jax.tree.map(jnp.zeros_like, start)),
        harmless="gradient canaries all start at a loss of 0",
    ),
    # gradient inversion
    "analytic, one unit": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "dpsgd vmf_500",
        label="analytic",
        patch=one_unit,
    ),
    "analytic, no prior": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "dpsgd vmf_500",
        label="analytic",
        change=fitted(flat_prior),
    ),
    "iga, half the steps": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "vmf_500",
        label="smooth",
        words="attack.smooth.steps=30",
    ),
    "iga, label dropped": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "vmf_500",
        label="smooth",
        change=LABEL_DROPPED,
    ),
    "iga, wrong sign of the total variation": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "vmf_500",
        label="smooth",
        patch=wrong_smoothness(-1),
    ),
    # named dpsgd and vmf_500 first, which was wrong: noise leaves so little to find
    # that 10 steps do as well as 20 (.0405 for .0408, .0352 for .0348 +- .0015)
    "map, half the steps": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "vmf_300k",
        label="map",
        words="attack.map.steps=10",
    ),
    "map, label dropped": Mutant(
        "gradient_inversion",
        "gradient_inversion",
        "dpsgd vmf_500",
        label="map",
        change=LABEL_DROPPED,
    ),
    "dlg, half the steps": Mutant(
        "label_and_image",
        "gradient_inversion",
        "sgd",
        label="dlg",
        words="attack.dlg.steps=10",
    ),
    "idlg, half the steps": Mutant(
        "label_and_image",
        "gradient_inversion",
        "sgd",
        label="idlg",
        words="attack.idlg.steps=10",
    ),
    # named vmf_500 too, before it was run and before that cell went: there the search
    # fits the noise, whatever the label
    "idlg, wrong label": Mutant(
        "label_and_image", "gradient_inversion", "sgd", label="idlg", patch=wrong_label
    ),
}
