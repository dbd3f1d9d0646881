"""Plug-ins by name: file name = function name = word on the command line.

Settings are read from the source of a plug-in, not by importing it, so that a typo is
answered before JAX is even loaded.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import importlib
import importlib.util
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from audit import store as stores
from audit import types
from audit.types import UserError


class Setting(NamedTuple):
    """One keyword-only argument of a factory."""

    annotation: Any
    default: Any


KINDS = {"defense": "defenses", "attack": "attacks"}
# Modules a training run goes through: a change of their code is a miss in the store.
NUMERIC = (
    "batches", "canaries", "clip", "dense", "dissection", "fil", "fim_fit",
    "fim_fitters", "fim_steps", "fisher", "glm", "lanes", "linear", "masks",
    "mechanisms", "minimisers", "models", "noise", "optimizers", "perturbation",
    "phi", "pretrain", "queries", "reweighting", "rng", "samplers", "shadow",
    "shifted", "signals", "solvability", "vmf", "vmf_privacy",
)  # fmt: skip


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?; there is A, B, C" for an error about `word`."""
    words = sorted(words)
    close = difflib.get_close_matches(str(word), words, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint}; there is {', '.join(words) or 'nothing'}"


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.submodule_search_locations, package
    return Path(spec.submodule_search_locations[0])


def names(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind: "defense", "attack" or "model"."""
    if kind == "model":
        return sorted(n for n in _functions(_models()) if _is_model(_models(), n))
    files = _folder(KINDS[kind]).glob("*.py")
    return sorted(f.stem for f in files if not f.stem.startswith("_"))


def source(kind: str, name: str) -> Path:
    """Return the file of a plug-in.

    Raises:
      UserError: if there is none of that name.
    """
    if name not in names(kind):
        raise UserError(f"unknown {kind} {name!r}{did_you_mean(name, names(kind))}")
    return _models() if kind == "model" else _folder(KINDS[kind]) / f"{name}.py"


def find(kind: str, name: str) -> Callable:
    """Import a plug-in and return its factory."""
    path = source(kind, name)
    module = "audit.models" if kind == "model" else f"{KINDS[kind]}.{path.stem}"
    return getattr(importlib.import_module(module), name)


def version(kind: str, name: str) -> str:
    """Return a hash of the code that can change a plug-in's results.

    The plug-in and every lower layer it may call; comments and docstrings do not count.
    """
    lower = [_folder("audit") / f"{module}.py" for module in NUMERIC]
    return stores.code_version([source(kind, name), *lower])


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring."""
    if kind == "model":
        text = ast.get_docstring(_functions(_models())[name]) or ""
    else:
        text = ast.get_docstring(ast.parse(source(kind, name).read_text())) or ""
    return text.split("\n")[0]


def settings(kind: str, name: str) -> dict[str, Setting]:
    """Return a factory's settings, read from its source.

    Raises:
      UserError: if the file has no function of its own name.
    """
    path = source(kind, name)
    function = _functions(path).get(name)
    if function is None:
        raise UserError(f"{path} holds no function {name!r}; a plug-in is named so")
    known = vars(types) | vars(typing) | vars(builtins)
    arguments = function.args
    return {
        a.arg: Setting(_value(a.annotation, known), _value(d, known))
        for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }


def check(kind: str, name: str, given: dict[str, Any], where: str) -> dict[str, Any]:
    """Return all settings of a factory: the given ones validated, the others' defaults.

    Args:
      kind: of plug-in.
      name: of plug-in.
      given: what scenario and command line set.
      where: how the command line calls this, for errors, e.g. "defense.dpsgd".

    Raises:
      UserError: on an unknown setting, a wrong type or a value out of range.
    """
    return validate(settings(kind, name), given, where)


def validate(
    known: dict[str, Setting], given: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return `known` settings with the `given` values; see `check`."""
    for word in given:
        if word not in known:
            hint = did_you_mean(word, known) if known else "; it has no settings"
            raise UserError(f"unknown setting {where}.{word}{hint}")
    fields: dict[str, Any] = {k: (s.annotation, s.default) for k, s in known.items()}
    strict = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model = pydantic.create_model("settings", __config__=strict, **fields)
    try:
        return dict(model(**given))
    except pydantic.ValidationError as error:
        raise UserError(explain(error, where)) from None


def explain(error: pydantic.ValidationError, where: str = "") -> str:
    """Return a validation error as one line that names what was typed."""
    parts = []
    for e in error.errors():
        path = ".".join([*([where] if where else []), *map(str, e["loc"])])
        text = e["msg"][0].lower() + e["msg"][1:]
        typed = "" if e["type"] == "missing" else f"={e['input']!r}"
        parts.append(f"{path}{typed}: {text}")
    return "; ".join(parts)


def _models() -> Path:
    return _folder("audit") / "models.py"


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    body = ast.parse(path.read_text()).body
    return {n.name: n for n in body if isinstance(n, ast.FunctionDef)}


def _is_model(path: Path, name: str) -> bool:
    first = [a.arg for a in _functions(path)[name].args.args]
    return first == ["features", "classes"] and not name.startswith("_")


def _value(node: ast.expr | None, known: dict[str, Any]) -> Any:
    """Evaluate an annotation or default of our own source files."""
    return None if node is None else eval(ast.unparse(node), dict(known))
