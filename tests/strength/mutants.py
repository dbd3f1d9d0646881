"""Attacks weakened on purpose. Each names the cells it must break before it is run.

A mutant is a setting (`words`) or a change of the attack itself (`change`), as a slip
in its code would be. One that breaks nothing says so, and why (`harmless`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attacks.glm_attack import glm_attack
from audit.types import Attack
from tests.strength import weaken
from tests.strength.suite import PLAYS, Cell
from tests.strength.weaken import (
    LABEL_DROPPED,
    LABEL_FLIPPED,
    ONE_BIT,
    fitted,
    saying,
    seeing,
)


class Mutant(NamedTuple):
    """One weakened attack."""

    breaks: str  # defenses of the cells that must turn weaker
    change: Callable | None = None  # Attack -> Attack
    words: str = ""  # of a command line
    patch: Callable | None = None  # (MonkeyPatch) -> None, for what attacks share
    harmless: str = ""  # why the cells in `breaks` must hold instead
    play: str = ""
    label: str = ""  # of the attack in the line-up
    attack: str = ""  # its module

    def cells(self) -> list[Cell]:
        """Return the cells it is judged on."""
        pairs = {(self.label, d) for d in self.breaks.split()}
        cells = [c for c in PLAYS[self.play].cells if (c.attack, c.defense) in pairs]
        assert {(c.attack, c.defense) for c in cells} == pairs, self
        return cells

    def apply(self, monkeypatch: Any) -> None:
        """Put the weakened attack in place of the real one."""
        module = weaken.module_of(self.attack)  # a patch may put another's in its place
        if self.patch is not None:
            self.patch(monkeypatch)
        factory, change = getattr(module, self.attack), self.change or (lambda a: a)

        def weakened(task: Any, **settings: Any) -> Attack:
            return change(factory(task, **settings))

        # another function, so that nothing compiled for the real attack is used
        monkeypatch.setattr(module, self.attack, weakened)


EPSILONS = "epsilon_4 epsilon_8"
NO_LABEL = seeing(lambda o: o._replace(label=0 * o.label))
QUARTER = seeing(weaken.quarter_of_weights)
TENTH = weaken.some_pool(0.1)
FEW_SHADOWS = Mutant("sgd", words="membership.shadows=4")  # a tenth of them, made even

# Play -> what the attack is called, and what went wrong
SLIPS = {
    "noised_sum": {
        "reconstructor, half the epochs": Mutant(
            "noisier", words="attack.reconstructor.epochs=6"
        ),
        "reconstructor, a tenth of the shadows": Mutant("noisier", TENTH),
        "reconstructor, label dropped": Mutant("noisier", LABEL_DROPPED),
        "reconstructor, stale standardisation": Mutant("noisier", fitted(weaken.stale)),
        "class_mean, label dropped": Mutant("noisy_sum", LABEL_DROPPED),
        "nearest_neighbour, a tenth of the pool": Mutant("noisy_sum", TENTH),
        "sum_inversion, wrong clip": Mutant(
            "noisy_sum noisier", words="attack.sum_inversion.clip_norm=10.0"
        ),
        "sum_inversion, a record forgotten": Mutant(
            "noisy_sum noisier", weaken.knowing(weaken.one_forgotten)
        ),
        "sum_inversion, a sixth of the halvings": Mutant(
            "noisy_sum", patch=weaken.few_halvings(4)
        ),
        "sum_inversion, half of the halvings": Mutant(
            "noisy_sum noisier",
            patch=weaken.few_halvings(12),
            harmless="12 halvings find the norm to .007; noise moves it by .01 and .1",
        ),
    },
    "linear_release": {
        "matched_filter, a tenth of the shadows": Mutant("noisier", TENTH),
        "matched_filter, label dropped": Mutant("noisier", LABEL_DROPPED),
        "ridge, a tenth of the shadows": Mutant("noisier", TENTH),
        "ridge, label dropped": Mutant("noisier", LABEL_DROPPED),
    },
    "replayed": {
        "unrolled_inversion, label dropped": Mutant("sgd", LABEL_DROPPED),
        "unrolled_inversion, a single round": Mutant(
            "sgd",
            words="attack.unrolled_inversion.rounds=1 "
            "attack.unrolled_inversion.leading=1",
        ),
    },
    "noised_steps": {
        "transcript_bayes, label dropped": Mutant("dpsgd louder", LABEL_DROPPED),
        "candidate_bayes, label dropped": Mutant("dpsgd louder", LABEL_DROPPED),
        "transcript_bayes, five directions": Mutant(
            "dpsgd louder",
            words="attack.transcript_bayes.components=5",
            harmless="five directions hold most of what noised steps tell of 8 x 8 "
            "pixels: .849 beside .870, in a band of .047",
        ),
    },
    "candidates": {
        "prior_aware, one bit": Mutant("sigma_9_5 sigma_5", ONE_BIT),
    },
    "published_prior": {
        "mixture_posterior, label dropped": Mutant("dpsgd_1 dpsgd_3", LABEL_DROPPED),
    },
    "shadow_models": {
        "reconstructor, half the epochs, trained models": Mutant(
            "sgd perturbed", words="attack.reconstructor.epochs=3"
        ),
        "reconstructor, a tenth of the shadows, trained models": Mutant(
            "sgd perturbed", TENTH
        ),
    },
    "glm_intercept": {
        "glm_attack, no ridge, intercept": Mutant("noisier", seeing(weaken.no_ridge)),
        "glm_attack, label flipped, intercept": Mutant(
            "noisier",
            LABEL_FLIPPED,
            harmless="with an intercept the slope is read off its own coordinate",
        ),
        "glm_attack_clamped, label flipped": Mutant("noisier", LABEL_FLIPPED),
    },
    "glm_label": {
        "glm_attack, label flipped": Mutant("noisier", LABEL_FLIPPED),
        "glm_attack, one root": Mutant("noisier", patch=weaken.longer_root),
        "glm_attack_clamped, no clamp": Mutant(
            "noisier", patch=weaken.other_attack(glm_attack, "glm_attack_clamped")
        ),
    },
    "attributes": {
        "whitebox_inverter, a quarter of the weights": Mutant(
            "noise high_noise", QUARTER
        ),
        "fredrikson, label dropped": Mutant("noise high_noise", NO_LABEL),
        "fredrikson, prior dropped": Mutant(
            "noise high_noise", fitted(weaken.uniform_prior)
        ),
        "prior_mode, rarest value": Mutant("noise", saying(jnp.negative)),
        "ideal_imputation, label dropped": Mutant("noise", NO_LABEL),
    },
    "attributes_of_classes": {
        "whitebox_inverter, a quarter of the weights, classes": Mutant(
            "low_noise", QUARTER
        ),
        "fredrikson, label flipped, classes": Mutant("low_noise", LABEL_FLIPPED),
    },
    "membership": {
        "coin, a loaded one": Mutant(
            "sgd",
            saying(lambda s: s + jnp.arange(len(s))),
            harmless="whoever scores records without looking is right half of the time",
        ),
        "loss_threshold, right or wrong": Mutant("sgd", seeing(weaken.right_or_wrong)),
        "attack_p, a population of one": Mutant("sgd", weaken.some_population(1)),
        "attack_p, a hundredth of the population": Mutant(
            "sgd", weaken.some_population(5)
        ),
        "attack_s, label dropped": Mutant("sgd", LABEL_DROPPED),
        "attack_r, a tenth of the shadows": FEW_SHADOWS,
        "lira, a tenth of the shadows": FEW_SHADOWS,
        "lira offline, a tenth of the shadows": FEW_SHADOWS,
        "rmia, a tenth of the shadows": FEW_SHADOWS,
        "rmia offline, a tenth of the shadows": FEW_SHADOWS,
    },
    "transcript": {
        "gradient_llr, one bit": Mutant(f"epsilon_1 {EPSILONS}", ONE_BIT),
    },
    "one_run": {
        "one_run, one bit": Mutant(EPSILONS, ONE_BIT),
        "one_run, no start": Mutant(
            EPSILONS,
            fitted(lambda start: jax.tree.map(jnp.zeros_like, start)),
            harmless="gradient canaries all start at a loss of 0",
        ),
    },
    "gradient_inversion": {
        "mean_image, half of the image": Mutant(
            "dpsgd", saying(lambda x: x.at[: x.shape[0] // 2].set(0))
        ),
        "analytic, one unit": Mutant("dpsgd vmf_500", patch=weaken.one_unit),
        "analytic, no prior": Mutant("dpsgd vmf_500", fitted(weaken.flat_prior)),
        "iga, half the steps": Mutant("vmf_500", words="attack.smooth.steps=30"),
        "iga, label dropped": Mutant("vmf_500", LABEL_DROPPED),
        "iga, wrong sign of the total variation": Mutant(
            "vmf_500", patch=weaken.wrong_smoothness(-1)
        ),
        # named dpsgd and vmf_500 first, which was wrong: noise leaves so little to find
        # that 10 steps do as well as 20 (.0405 for .0408, .0352 for .0348 +- .0015)
        "map, half the steps": Mutant("vmf_300k", words="attack.map.steps=10"),
        "map, label dropped": Mutant("dpsgd vmf_500", LABEL_DROPPED),
    },
    "label_and_image": {
        "dlg, half the steps": Mutant("sgd", words="attack.dlg.steps=10"),
        "idlg, half the steps": Mutant("sgd", words="attack.idlg.steps=10"),
        # named vmf_500 too, before it was run and before that cell went: there the
        # search fits the noise, whatever the label
        "idlg, wrong label": Mutant("sgd", patch=weaken.wrong_label),
    },
}
LABELS = {
    "iga": "smooth", "lira offline": "lira_offline", "rmia offline": "rmia_offline",
}  # fmt: skip
MODULES = {
    **dict.fromkeys(("analytic", "smooth", "map", "dlg", "idlg"), "gradient_inversion"),
    "lira_offline": "lira",
    "rmia_offline": "rmia",
}


def placed(play: str, name: str, mutant: Mutant) -> Mutant:
    """Return a mutant with its play and its attack, which its name begins with."""
    shown = name.split(",")[0]
    label = LABELS.get(shown, shown)
    return mutant._replace(play=play, label=label, attack=MODULES.get(label, label))


MUTANTS = {
    name: placed(play, name, mutant)
    for play, slips in SLIPS.items()
    for name, mutant in slips.items()
}
