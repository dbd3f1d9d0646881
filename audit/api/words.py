"""Python values as the words of the command line, so that both compose alike.

Functions and modules have no word. Each is called by its name, and handed to the
registry under it (`plugins.given`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.config import hydra_app
from audit.config.plugins import KINDS
from audit.data import Dataset, local, untrusted
from audit.errors import UserError, brief

LINE_UPS = {f"{kind}s": kind for kind in ("defense", "attack", "bound")}


class Typed(NamedTuple):
    """What was called, as the command line would take it."""

    words: tuple[str, ...]
    factories: tuple[tuple[str, str, Callable], ...] = ()  # kind, name, function


def typed(settings: Mapping[str, Any]) -> Typed:
    """Return keyword arguments as words, and the functions among their values.

    Args:
      settings: data, task, defenses, attacks and bounds may hold Python objects; every
        other value is plain. Nested dictionaries become dotted words.

    Raises:
      UserError: naming the argument whose value is neither.
    """
    words: list[str] = []
    factories: dict[tuple[str, str], Callable] = {}

    def name(kind: str, factory: Callable, label: str | None = None) -> str:
        word = label or str(getattr(factory, "__name__", type(factory).__name__))
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", word):
            raise UserError(f"a {kind} called {word!r}: give it a name, by def")
        if factories.setdefault((kind, word), factory) is not factory:
            raise UserError(f"two different {KINDS[kind]} called {word!r}: rename one")
        return word

    for word, value in settings.items():
        if word in LINE_UPS:
            value = [_entry(LINE_UPS[word], entry, name) for entry in _listed(value)]
        elif word == "data":
            value = _data(value, name)
        elif word == "task":
            value = _task(value, name)
        words += _words(word, value)
    every = ((kind, name, factory) for (kind, name), factory in factories.items())
    return Typed(tuple(words), tuple(every))


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _entry(kind: str, entry: Any, name: Callable) -> Any:
    """Return one entry of a line-up: a name, or {label: {use: name, settings}}."""
    if isinstance(entry, Mapping):
        return {label: _labelled(kind, given, name) for label, given in entry.items()}
    return name(kind, entry) if callable(entry) else entry


def _labelled(kind: str, given: Any, name: Callable) -> Any:
    given = given if isinstance(given, Mapping) else {"use": given}
    return {k: name(kind, v) if callable(v) else v for k, v in given.items()}


def _data(value: Any, name: Callable) -> str:
    """Return the word of a data set: its name, or that of a file."""
    if isinstance(value, Path):
        return f"{local.PREFIX}{value}"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        parameters = inspect.signature(local.dataset).parameters
        if wrong := untrusted.misnamed(map(str, value), local.NEEDED, parameters):
            raise UserError(f"data={{...}} {wrong}; it takes {', '.join(parameters)}")
        value = local.dataset(**value)
    elif isinstance(value, (tuple, list)) and len(value) == 2:
        value = local.dataset(*value)
    if isinstance(value, Dataset):
        dataset = value
        return name("data", lambda: dataset, dataset.name)
    if callable(value):
        return name("data", value)
    raise UserError(
        f"data={brief(value)}: the name of a data set, file:PATH.npz, (x, y), "
        f"audit.dataset(x, y), or a function that returns one"
    )


def _task(value: Any, name: Callable) -> Mapping[str, Any]:
    """Return the words of a task: of its model, its classes and its settings."""
    words = dict(value) if isinstance(value, Mapping) else {"model": value}
    model = words.get("model")
    if model is not None and not isinstance(model, str):
        words["model"] = _model(model, name)
    return words


def _model(model: Any, name: Callable) -> str:
    """Return the name of a model: of (features, classes) -> Task, or a flax module."""
    import flax.linen as nn
    from flax import nnx

    if isinstance(model, (nn.Module, nnx.Module)):

        def of_module(features: tuple[int, ...], classes: int) -> Any:
            from audit.models.flax_module import from_flax

            del classes  # as many as the module has outputs
            return from_flax(model, np.zeros(features, np.float32))

        return name("model", of_module, type(model).__name__)
    if isinstance(model, type) and issubclass(model, (nn.Module, nnx.Module)):
        raise UserError(
            f"task={model.__name__} is a class: give a module, as {model.__name__}(), "
            f"or a function (features, classes) that returns audit.from_flax(...)"
        )
    if callable(model):
        return name("model", model)
    raise UserError(
        f"task={brief(model)}: the name of a model, a flax module, or a function "
        f"(features, classes) -> Task"
    )


def _words(name: str, value: Any) -> list[str]:
    """Return `name=value`, one word for each plain value of nested dictionaries."""
    if isinstance(value, Mapping):
        return [w for k, below in value.items() for w in _words(f"{name}.{k}", below)]
    return [f"{name}={_literal(value, name)}"]


def _literal(value: Any, name: str) -> str:
    """Return a plain value as Hydra reads it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, Path)):
        return hydra_app.literal(str(value))
    if isinstance(value, (list, tuple, range)):
        return f"[{','.join(_literal(v, name) for v in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{k}:{_literal(v, f'{name}.{k}')}" for k, v in value.items())
        return f"{{{','.join(pairs)}}}"
    raise UserError(
        f"{name}={brief(value)}: {type(value).__name__} is no setting; give a number, "
        f"a word, a list or a dictionary"
    )
