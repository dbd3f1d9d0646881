"""Ridge regression of images on what shadow models release, class by class."""

from __future__ import annotations

from jax import Array

from audit.mechanisms import linear_map
from audit.mechanisms.linear_map import LinearMap
from audit.types import (
    Attack,
    Count,
    Knowledge,
    NonNegative,
    Observation,
    Positive,
    Share,
    Task,
    ThreatModel,
)


def ridge(
    task: Task,
    *,
    held_out: Share = 0.1,
    repeats: Count = 1,
    clip_features: Positive = 10.0,
    least_scale: NonNegative = 1e-3,
) -> Attack:
    """Regress images on releases of shadow models, with the best penalty per class.

    Without noise a release determines most of the image, and does so nearly linearly:
    a linear map that is solved for exactly then beats a network that is trained. With
    noise the penalty that is best on held-out images shrinks the map; `matched_filter`
    is stronger there. With that penalty the map is solved for again, on all images.

    Args:
      task: what was learnt; gives the image shape and the classes.
      held_out: share of the pool's source images that choose the penalty.
      repeats: shadow models per pool image.
      clip_features: standardised weights are clipped to so many standard deviations.
      least_scale: of a weight, in median scales: others hardly vary between shadows.
    """
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def fit(key: Array, knowledge: Knowledge) -> tuple[LinearMap, dict]:
        del key
        return linear_map.fit(
            knowledge,
            held_out=held_out,
            repeats=repeats,
            clip_features=clip_features,
            least_scale=least_scale,
        )

    def guess(fitted: LinearMap, key: Array, observation: Observation) -> Array:
        del key
        return linear_map.guess(task, fitted, observation)

    return Attack(threat_model, fit, guess)
