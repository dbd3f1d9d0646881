"""Plug-ins that each commit one fault on purpose, in the way an author would.

`tests/scorecard/test_faults.py` runs them and expects the flag of that fault.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from audit.clipping import no_clip, soft_clip
from audit.data.pool import class_means
from audit.mechanisms.noise import gaussian
from audit.mechanisms.noisy_sgd import noisy_sgd
from audit.mechanisms.query import gradient
from audit.mechanisms.sampler import full_batch, poisson, shuffled_epochs
from audit.rng import stream
from audit.types import (
    Attack,
    Count,
    Defense,
    Positive,
    Release,
    Task,
    ThreatModel,
    TrainingSet,
)
from defenses.noisy_sum import noisy_sum


def _built(task, query, noise, steps, sampler=None) -> Defense:
    sampler = full_batch() if sampler is None else sampler
    return noisy_sgd(task, query, sampler, noise, optimizer=optax.sgd(0.1), steps=steps)


def half_noise(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
) -> Defense:
    """Wrong sigma: half of the noise that is accounted is drawn."""
    own = gaussian(noise_multiplier * clip_norm)
    drawn = gaussian(noise_multiplier * clip_norm / 2)
    query = gradient(task, soft_clip(clip_norm))
    return _built(task, query, own._replace(sample=drawn.sample), steps)


def accounted_elsewhere(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
) -> Defense:
    """Wrong sigma, by two copies of the settings: accounted for twice the noise."""
    query = gradient(task, soft_clip(clip_norm))
    trained = _built(task, query, gaussian(noise_multiplier * clip_norm), steps)
    other = _built(task, query, gaussian(2 * noise_multiplier * clip_norm), steps)
    return trained._replace(fisher=other.fisher, rdp=other.rdp, pld=other.pld)


def unclipped(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
) -> Defense:
    """No clipping, and the sensitivity of a clip all the same."""
    clip = no_clip()._replace(norm_bound=soft_clip(clip_norm).norm_bound)
    noise = gaussian(noise_multiplier * clip_norm)
    return _built(task, gradient(task, clip), noise, steps)


def unclipped_in_the_sum(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
) -> Defense:
    """A closed form that forgets the clip its own `fn` has."""
    query = gradient(task, soft_clip(clip_norm))
    unclipped_total = gradient(task, no_clip()).closed_forms.total
    forms = query.closed_forms._replace(total=unclipped_total)
    query = query._replace(closed_forms=forms)
    return _built(task, query, gaussian(noise_multiplier * clip_norm), steps)


def one_key(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
) -> Defense:
    """A seed of its own: every run and every step adds the same noise."""
    own = gaussian(noise_multiplier * clip_norm)
    same = own._replace(sample=lambda key, v: own.sample(jax.random.key(7), v))
    return _built(task, gradient(task, soft_clip(clip_norm)), same, steps)


def same_noise_every_step(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
) -> Defense:
    """The step's number is not folded into the key."""
    query = gradient(task, soft_clip(clip_norm))
    built = _built(task, query, gaussian(noise_multiplier * clip_norm), steps)
    mechanism = built.mechanism

    def step(key, state, data):
        after, view = mechanism.step(key, state._replace(t=jnp.zeros((), int)), data)
        return after._replace(t=state.t + 1), view

    def train(key, side, data):
        body = lambda state, _: (step(key, state, data)[0], None)  # noqa: E731
        last = jax.lax.scan(body, mechanism.init(key, side), length=steps)[0]
        return Release(last.params)

    return built._replace(train=train, mechanism=mechanism._replace(step=step))


def shuffled_as_poisson(
    task: Task,
    *,
    clip_norm: Positive = 1.0,
    noise_multiplier: Positive = 1.0,
    steps: Count = 12,
    batch_size: Count = 8,
) -> Defense:
    """Shuffled epochs are trained, Poisson sampling is accounted."""
    claimed, drawn = poisson(batch_size), shuffled_epochs(batch_size)
    sampler = claimed._replace(
        draw=drawn.draw, denominator=drawn.denominator, schedule=drawn.schedule
    )
    query = gradient(task, soft_clip(clip_norm))
    noise = gaussian(noise_multiplier * clip_norm)
    return _built(task, query, noise, steps, sampler)


def half_sum(
    task: Task, *, clip_norm: Positive = 20.0, noise_stddev: Positive = 0.01
) -> Defense:
    """Release a sum of records with half of the noise that is accounted."""
    said = noisy_sum(task, clip_norm=clip_norm, noise_stddev=noise_stddev)
    done = noisy_sum(task, clip_norm=clip_norm, noise_stddev=noise_stddev / 2)
    return said._replace(train=done.train)


def nan_guess(task: Task) -> Attack:
    """An attack that divides by zero."""
    threat_model = ThreatModel("reconstruction", sees=frozenset({"params"}))

    def guess(state, key, seen):
        return jnp.full(task.features, jnp.nan)

    return Attack(threat_model, lambda key, known: (jnp.zeros(()), {}), guess)


def knows_the_seed(task: Task) -> Attack:
    """Shadow models under the referee's own key, worked out from the seed."""
    threat_model = ThreatModel(
        "reconstruction",
        sees=frozenset({"params"}),
        knows=frozenset({"fixed", "label", "train"}),
    )

    def fit(key, known):
        theirs = stream(stream(jax.random.key(0), "defense dpsgd"), "target runs")
        known.train(theirs, TrainingSet(known.fixed, known.pool))
        return class_means(known, task.classes), {}

    return Attack(threat_model, fit, lambda means, key, seen: means[seen.label])
