"""What publications claim of a defense, printed beside what the suite can prove."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from audit.accounting import vmf
from audit.mechanisms.glm.solvability import longest
from audit.mechanisms.query import modules, row_sizes
from audit.mechanisms.sampler import SAMPLERS
from audit.types import Task


class PublishedClaim(NamedTuple):
    """One published number, computed for the settings at hand."""

    quantity: str  # in words
    value: float
    source: str
    void: str | None  # why it does not hold here; None = it does


Claims = tuple[PublishedClaim, ...]


def published_claims(
    defense: str, settings: dict[str, Any], task: Task, n: int
) -> Claims:
    """Return what publications claim of a defense with these settings; mostly nothing.

    Settings are host values; n is the number of records of one run.
    """
    claims = CLAIMS.get(defense)
    return () if claims is None else claims(settings, task, n)


def _dirdp_sgd(settings: dict[str, Any], task: Task, n: int) -> Claims:
    """Return the pure epsilon of DirDP-SGD, and the epsilon its paper gives."""
    kappa, steps, sampling = (
        settings[word] for word in ("concentration", "steps", "sampling")
    )
    variant = settings["variant"]
    sizes = row_sizes(task) if variant == "rows" else list(modules(task).values())
    draws = sizes if variant in ("layers", "rows") else [sum(sizes)]
    batch, m = SAMPLERS[sampling](settings["batch_size"]).denominator(n), len(draws)
    epoch = math.ceil(n / batch)
    shuffled = sampling == "shuffled"
    # in how many steps one record can be, in one epoch and in the whole run
    once, visits = (math.ceil(t / epoch) if shuffled else t for t in (epoch, steps))
    pure, paper = 2 * kappa * m, 2 * kappa * math.sqrt(m)
    left_out = []
    if visits > 1:
        left_out.append(f"counts one of {visits} steps a record may be in")
    if m > 1:
        left_out.append(f"{m} parts cost {m} draws, not sqrt({m})")
    name = "2 kappa sqrt(m)" if m > 1 else "2 kappa"
    multiplier = math.sqrt(batch * sum(draws)) / kappa
    law, article = "Weggenmann and Kerschbaum 2021", "Faustini et al. 2023, Cor. 2"
    moments = "Mardia and Jupp 2000, section 9.3"
    claims = [
        ("pure epsilon, replace-one, one record and step", pure, law, None),
        ("pure epsilon, one epoch", pure * once, law, None),
        ("pure epsilon, whole run, composed", pure * visits, law, None),
        (f"epsilon as published, {name}", paper, article, "; ".join(left_out) or None),
        ("equivalent noise multiplier sqrt(L K) / kappa", multiplier, moments, None),
    ]
    for k in sorted(set(draws)):
        cosine = float(vmf.mean_cosine(k, kappa))
        claims.append((f"mean cosine A_K, K = {k}", cosine, moments, None))
    return tuple(PublishedClaim(*claim) for claim in claims)


def _output_perturbed_glm(settings: dict[str, Any], task: Task, n: int) -> Claims:
    """Return the figures of Guo et al., who take no record to be longer than 1."""
    if settings["loss"] != "logistic" or not math.isfinite(task.domain[1]):
        return ()
    scale = n * settings["regularization"] * settings["noise_stddev"]
    divergence = 4 / scale**2
    reach = longest(task, settings["max_norm"], settings["intercept"])
    taken = "it takes the norm of every record for at most 1"
    void = f"{taken}; here it is up to {reach:.4g}" if reach > 1 else None
    source = "Guo et al. 2022, section 7.1"
    bound = 0.25 / math.expm1(divergence) if divergence < 700 else 0.0
    return (
        PublishedClaim("Renyi divergence of order 2", divergence, source, void),
        PublishedClaim("MSE bound", bound, source, void),
    )


CLAIMS: dict[str, Callable] = {
    "dirdp_sgd": _dirdp_sgd,
    "output_perturbed_glm": _output_perturbed_glm,
}
