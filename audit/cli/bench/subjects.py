"""What the benchmark trains: models and defenses at one size, on random records.

The linear model has Edmunds' (2024) size: 1,001 records of 784 pixels, 785 parameters,
5 full-batch steps. The perceptron has Balle et al.'s (2022), with 100 full batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from audit.config import registry
from audit.engine import shadow
from audit.models import dense, networks, pretrain
from audit.types import Examples, Task, TrainingSet

FIXED, PIXELS = 1_000, (28, 28, 1)
NOISY = {"clip_norm": 1.0, "noise_multiplier": 0.05}
BATCHES = {"learning_rate": 0.1, "sampling": "uniform", "batch_size": 100, "steps": 10}
DEFENSES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "dpsgd": NOISY,
    "prune": {**NOISY, "density": 0.5},
    "fim": {
        **NOISY, "perturbation": "constant_direct", "share_steps": 2,
        "epochs": 10, "epochs_decay": 5, "least_epochs": 5,
    },
    "dirdp_sgd": {"sampling": "uniform", "batch_size": 100},  # draws for every record
}  # fmt: skip
FEWER = {"dirdp_sgd": 32}  # so many times fewer models are timed
ON_GPU = 4, 8  # times as many lanes of a program, and models that are timed
EXACT = {"loss": "logistic", "regularization": 1e-2, "intercept": True}  # of `glm`
DPSGD = "dpsgd"  # what the rivals train


class Subject(NamedTuple):
    """One model, and how every defense trains it."""

    model: Callable[..., Task]
    classes: int
    training: dict[str, Any]
    tile: int  # lanes of a program: as many as stay in a core's cache
    models: int  # that are timed
    looped: int  # of which the plain loop trains so many

    @property
    def task(self) -> Task:
        """The task of the model."""
        return self.model(PIXELS, self.classes)


_LINEAR = {"learning_rate": 0.1, "optimizer": "adam", "steps": 5}
_MLP = {"learning_rate": 0.1, "steps": 100}
SUBJECTS = {
    "linear": Subject(networks.binary_linear, 2, _LINEAR, 512, 8_192, 20),
    "mlp": Subject(networks.mlp, 10, _MLP, 64, 128, 2),
    "cnn": Subject(networks.cnn_tanh, 10, BATCHES, 1, 16, 2),
    "lenet": Subject(networks.lenet, 10, BATCHES, 1, 16, 2),
}


def sized(name: str) -> Subject:
    """Return a subject with as many lanes of a program as keep the device busy."""
    subject = SUBJECTS[name]
    if jax.default_backend() == "cpu":
        return subject
    lanes, models = ON_GPU
    return subject._replace(tile=lanes * subject.tile, models=models * subject.models)


def draw(n: int, rng: np.random.Generator, classes: int = 2) -> Examples:
    """Return random records, most of their pixels 0."""
    x = rng.uniform(size=(n, *PIXELS)) * (rng.uniform(size=(n, *PIXELS)) < 0.2)
    y = rng.integers(0, classes, n)
    return Examples(x.astype(np.float32), y.astype(np.int32))


def training_set(subject: Subject, models: int) -> TrainingSet:
    """Return the fixed records, and a target per model."""
    rng = np.random.default_rng(0)
    return TrainingSet(*(draw(n, rng, subject.classes) for n in (FIXED, models)))


def make(name: str, subject: Subject) -> shadow.Learner:
    """Return one defense at the benchmark's size; `glm` trains linear models alone."""
    given = EXACT if name == "glm" else {**subject.training, **DEFENSES[name]}
    task, key = subject.task, jax.random.key(0)
    settings = registry.check("defense", name, dict(given), name)
    public = pretrain.start(task, key, draw(100, np.random.default_rng(1)))
    factory = registry.find("defense", name)
    return shadow.learner(factory, task, settings, key=key, public=public, label=name)


def operations(task: Task, records: int = 1) -> float:
    """Return the operations of the matrix products of some records' gradients.

    A layer takes one product forward, one for its weights, and one for what it passes
    on to the layer before, of two operations per entry of the kernel and position.
    """
    params = jax.eval_shape(task.init, jax.random.key(0))
    if task.dense is None:
        assert task.linear is not None, "a model whose layers are known"
        head = task.linear[0](params)
        layers, biases = [(1, *head.kernel.shape)], [head.bias is not None]
    else:
        layers = dense.shapes(task.dense, params)
        biases = [name not in task.dense.unbiased for name in task.dense.layers]
    total = 0
    for i, (times, inputs, outputs) in enumerate(layers):
        total += (6 if i else 4) * (inputs + biases[i]) * outputs * times
    return float(total * records)


def operations_of(learner: shadow.Learner) -> float:
    """Return the operations of the matrix products of one model's training."""
    records = learner.settings["batch_size"] or FIXED + 1
    return operations(learner.task, learner.settings["steps"] * records)
