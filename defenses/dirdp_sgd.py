"""DirDP-SGD: a random direction around each gradient's (Faustini et al. 2023)."""

from __future__ import annotations

import math
from typing import Literal

from audit.mechanisms import (
    SAMPLERS,
    batch_direction,
    gradient,
    mean_field,
    modules,
    no_clip,
    noisy_sgd,
    normalise,
    optimizers,
    vmf,
    von_mises_fisher,
)
from audit.types import (
    Count,
    Defense,
    Nominal,
    NonNegative,
    Optimizer,
    Positive,
    Sampler,
    Sampling,
    Task,
)


def dirdp_sgd(
    task: Task,
    *,
    concentration: Positive = 5.0,
    variant: Literal["joint", "layers", "regularised", "batch"] = "joint",
    margin: Positive = 0.01,
    aggregate: Literal["exact", "mean_field"] = "exact",
    learning_rate: Positive = 0.1,
    optimizer: Optimizer = "sgd",
    steps: Count = 100,
    sampling: Sampling = "full",
    batch_size: Count | None = None,
    weight_decay: NonNegative = 0.0,
) -> Defense:
    """Train on means of von Mises-Fisher draws around unit gradients.

    Args:
      task: what is learnt.
      concentration: kappa; larger is less noise. The paper's epsilon is 2 kappa.
      variant: `joint` is Algorithm 1, one draw a record in the space of all parameters.
        `layers` normalises and draws each top-level module on its own.
        `regularised` draws around g / (|g| + margin), the shorter the noisier.
        `batch` makes one draw a step, around the direction of the batch's sum.
      margin: of `regularised`, in units of the gradient.
      aggregate: `mean_field` replaces the draws of a step by one Gaussian; fast, and
        an approximation, so that the card claims nothing. `joint` alone.
      learning_rate: of the optimizer.
      optimizer: post-processing of the noised mean.
      steps: how many.
      sampling: who takes part in a step; Algorithm 1 says `uniform`.
      batch_size: records a step; None with full batches.
      weight_decay: added to the mean gradient, times the parameters.

    Raises:
      ValueError: if only `joint` can be approximated.
    """
    sizes = modules(task)
    whole = sum(sizes.values())
    if aggregate == "mean_field" and variant != "joint":
        raise ValueError(f"aggregate=mean_field: variant=joint alone, not {variant}")
    query = gradient(task, normalise())
    noise = von_mises_fisher(concentration, whole)
    if variant == "layers":
        query = gradient(task, normalise(), apart=True)
        noise = von_mises_fisher(concentration, sizes)
    elif variant == "regularised":
        query = gradient(task, normalise(margin))
        noise = von_mises_fisher(concentration, whole, unit=False)
    elif variant == "batch":
        # no reading of the Fisher information: it depends on all other records
        query = gradient(task, no_clip())._replace(smooth=False)
        noise = batch_direction(concentration, whole)
    elif aggregate == "mean_field":
        noise = mean_field(concentration, whole)
    sampler = SAMPLERS[sampling](batch_size)
    defense = noisy_sgd(
        task,
        query,
        sampler,
        noise,
        optimizer=optimizers.named(optimizer, learning_rate, weight_decay),
        steps=steps,
    )
    draws = sizes if variant == "layers" else {"": whole}

    def nominal(n: int) -> tuple[Nominal, ...]:
        kappa = float(concentration)
        return _in_numbers(kappa, list(draws.values()), sampler, n, steps, aggregate)

    approximate = {"approximate"} if aggregate == "mean_field" else set()
    return defense._replace(nominal=nominal, traits=defense.traits | approximate)


PURE = "Weggenmann and Kerschbaum 2021"
MOMENTS = "Mardia and Jupp 2000, section 9.3"
PAPER = "Faustini et al. 2023"


def _in_numbers(
    kappa: float,
    draws: list[int],
    sampler: Sampler,
    n: int,
    steps: int,
    aggregate: str,
) -> tuple[Nominal, ...]:
    """Return what the card says beside epsilon(delta), and what the paper would say."""
    batch, m = sampler.denominator(n), len(draws)
    epoch = math.ceil(n / batch)
    one = 2 * kappa * m
    void = "mean_field is no such draw" if aggregate == "mean_field" else None
    in_epoch, in_all = sampler.visits(n, epoch), sampler.visits(n, steps)
    paper = 2 * kappa * math.sqrt(m)
    left_out = [
        f"counts one of {in_all} steps a record may be in" if in_all > 1 else "",
        f"{m} modules cost {m} draws, not sqrt({m})" if m > 1 else "",
    ]
    wrong = "; ".join(part for part in left_out if part) or void
    named = "2 kappa sqrt(m)" if m > 1 else "2 kappa"
    found = [
        Nominal("pure epsilon, replace-one, one record and step", one, PURE, void),
        Nominal("pure epsilon, one epoch", one * in_epoch, PURE, void),
        Nominal("pure epsilon, whole run, composed", one * in_all, PURE, void),
        Nominal(f"epsilon as published, {named}", paper, f"{PAPER}, Cor. 2", wrong),
        Nominal(
            "equivalent noise multiplier sqrt(L K) / kappa",
            math.sqrt(batch * sum(draws)) / kappa,
            MOMENTS,
            None,
        ),
    ]
    for k in sorted(set(draws)):
        value = float(vmf.mean_cosine(k, kappa))
        found.append(Nominal(f"mean cosine A_K, K = {k}", value, MOMENTS, None))
    return tuple(found)
