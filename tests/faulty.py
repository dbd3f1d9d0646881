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
from audit.types import Attack, Defense, Release, Task, ThreatModel, TrainingSet
from defenses.noisy_sum import noisy_sum

CLIP_NORM, STEPS, BATCH = 1.0, 12, 8
NOISE = gaussian(CLIP_NORM)
SEES = ThreatModel("reconstruction", sees=frozenset({"params"}))


def _built(task, *, clip=None, query=None, noise=NOISE, sampler=None) -> Defense:
    query = query or gradient(task, clip or soft_clip(CLIP_NORM))
    sampler = sampler or full_batch()
    return noisy_sgd(task, query, sampler, noise, optimizer=optax.sgd(0.1), steps=STEPS)


def half_noise(task: Task) -> Defense:
    """Wrong sigma: half of the noise that is accounted is drawn."""
    drawn = gaussian(CLIP_NORM / 2)
    return _built(task, noise=NOISE._replace(sample=drawn.sample))


def accounted_elsewhere(task: Task) -> Defense:
    """Wrong sigma, by two copies of the settings: accounted for twice the noise."""
    other = _built(task, noise=gaussian(2 * CLIP_NORM))
    return _built(task)._replace(fisher=other.fisher, rdp=other.rdp, pld=other.pld)


def unclipped(task: Task) -> Defense:
    """No clipping, and the sensitivity of a clip all the same."""
    bound = soft_clip(CLIP_NORM).norm_bound
    return _built(task, clip=no_clip()._replace(norm_bound=bound))


def unclipped_in_the_sum(task: Task) -> Defense:
    """A closed form that forgets the clip its own `fn` has."""
    query = gradient(task, soft_clip(CLIP_NORM))
    unclipped_total = gradient(task, no_clip()).closed_forms.total
    forms = query.closed_forms._replace(total=unclipped_total)
    return _built(task, query=query._replace(closed_forms=forms))


def diverges(task: Task) -> Defense:
    """A step that no float can hold."""
    query, rule = gradient(task, soft_clip(CLIP_NORM)), optax.scale(-jnp.inf)
    return noisy_sgd(task, query, full_batch(), NOISE, optimizer=rule, steps=STEPS)


def one_key(task: Task) -> Defense:
    """A seed of its own: every run and every step adds the same noise."""
    sample = lambda key, v: NOISE.sample(jax.random.key(7), v)
    return _built(task, noise=NOISE._replace(sample=sample))


def same_noise_every_step(task: Task) -> Defense:
    """The step's number is not folded into the key."""
    built = _built(task)
    mechanism = built.mechanism

    def step(key, state, data):
        after, view = mechanism.step(key, state._replace(t=jnp.zeros((), int)), data)
        return after._replace(t=state.t + 1), view

    def train(key, side, data):
        body = lambda state, _: (step(key, state, data)[0], None)
        last = jax.lax.scan(body, mechanism.init(key, side), length=STEPS)[0]
        return Release(last.params)

    return built._replace(train=train, mechanism=mechanism._replace(step=step))


def shuffled_as_poisson(task: Task) -> Defense:
    """Shuffled epochs are trained, Poisson sampling is accounted."""
    drawn = shuffled_epochs(BATCH)
    sampler = poisson(BATCH)._replace(
        draw=drawn.draw, denominator=drawn.denominator, schedule=drawn.schedule
    )
    return _built(task, sampler=sampler)._replace(pld=None)  # ten seconds less


def half_sum(task: Task) -> Defense:
    """Release a sum of records with half of the noise that is accounted."""
    accounted = noisy_sum(task, clip_norm=20.0, noise_stddev=0.01)
    drawn = noisy_sum(task, clip_norm=20.0, noise_stddev=0.005)
    return accounted._replace(train=drawn.train)


def nan_guess(task: Task) -> Attack:
    """An attack that divides by zero."""

    def guess(state, key, observation):
        return jnp.full(task.features, jnp.nan)

    return Attack(SEES, lambda key, knowledge: (jnp.zeros(()), {}), guess)


def knows_the_seed(task: Task) -> Attack:
    """Shadow models under the referee's own key, worked out from the seed."""

    def fit(key, knowledge):
        theirs = stream(stream(jax.random.key(0), "defense dpsgd"), "target runs")
        knowledge.train(theirs, TrainingSet(knowledge.fixed, knowledge.pool))
        return class_means(knowledge, task.classes), {}

    model = SEES._replace(knows=frozenset({"fixed", "label", "train"}))
    return Attack(model, fit, lambda means, key, observation: means[observation.label])
