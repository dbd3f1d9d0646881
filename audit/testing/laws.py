"""What a law is, how all laws are judged, and the laws of every factory.

A law is a public function of one argument, `case`, in a module that `audit.testing`
lists. It returns where it holds, calls `broken` with what was observed where it does
not hold, and `does_not_apply` with the reason where it says nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from audit.config import registry
from audit.config.registry import Setting
from audit.errors import in_words

Law = Callable[[Any], None]


class LawBroken(AssertionError):
    """A law that does not hold, and what was observed instead."""


class NotApplicable(Exception):
    """A law says nothing of a case, and why."""


def broken(instead: str) -> NoReturn:
    """Break the law, with what was observed instead."""
    raise LawBroken(instead)


def does_not_apply(why: str) -> NoReturn:
    """Leave the law, with the reason why it says nothing of the case."""
    raise NotApplicable(why)


def judge(subject: str, laws: Sequence[Law], case: Any) -> dict[str, str]:
    """Hold a case, e.g. of "defense dpsgd", against every law; see `check_defense`."""
    outcomes, wrong = {}, []
    for law in laws:
        name = law.__name__
        try:
            law(case)
        except NotApplicable as gap:
            outcomes[name] = f"does not apply: {gap}"
        except LawBroken as error:
            wrong.append(f"{name}: {error}")
        except Exception as error:  # a plug-in may fail in any way
            wrong.append(f"{name}: raised {in_words(error)}")
        else:
            outcomes[name] = "holds"
    if wrong:
        listed = "\n  ".join(wrong)
        raise AssertionError(
            f"{subject} breaks {len(wrong)} of {len(laws)} laws\n  {listed}"
        )
    return outcomes


# What several laws say ----------------------------------------------------------------


def _leaves(a: Any, b: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        yield np.asarray(x), np.asarray(y)


def differ(a: Any, b: Any) -> bool:
    """Return whether two trees of arrays differ in any bit."""
    return any(not np.array_equal(x, y) for x, y in _leaves(a, b))


def same_bits(a: Any, b: Any, what: str) -> None:
    """Break the law if two trees of arrays are not the same to the bit."""
    for x, y in _leaves(a, b):
        if x.shape != y.shape or x.dtype != y.dtype:
            broken(f"{what}: {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}")
        if not np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
            broken(f"{what}: {largest_gap(x, y)}")


def close(a: Any, b: Any, what: str, relative: float) -> None:
    """Break the law if trees of arrays differ by over `relative` of the largest."""
    for x, y in _leaves(a, b):
        if x.shape != y.shape:
            broken(f"{what}: shapes {list(x.shape)} and {list(y.shape)}")
        scale = max(float(np.abs(y).max(initial=0)), 1e-12)
        if not np.allclose(x, y, rtol=0, atol=relative * scale):
            broken(f"{what}: {largest_gap(x, y)}, values up to {scale:.3g}")


def largest_gap(x: np.ndarray, y: np.ndarray) -> str:
    """Return how far two arrays are apart, in words."""
    gap = np.abs(np.asarray(x, float) - np.asarray(y, float))
    return f"they differ by up to {np.nanmax(gap, initial=0):.3g}"


# Laws of every factory ----------------------------------------------------------------


def source_of(factory: Callable) -> Path:
    """Return the file a factory stands in."""
    file = inspect.getsourcefile(inspect.unwrap(factory))
    assert file is not None, factory
    return Path(file)


def settings_of(factory: Callable) -> dict[str, Setting]:
    """Return a factory's settings by its signature."""
    hints = typing.get_type_hints(factory, include_extras=True)
    return {
        p.name: Setting(hints.get(p.name), p.default)
        for p in inspect.signature(factory).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }


def file_is_named_like_the_function(case: Any) -> None:
    """The file, its function and the word on the command line are one name."""
    path, name = source_of(case.factory), case.factory.__name__
    if path.stem != name:
        broken(f"function {name!r} stands in {path.name}")


def file_says_what_it_is(case: Any) -> None:
    """The file opens with a sentence, which `list` and reports show."""
    path = source_of(case.factory)
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    if not re.search(r"[.:?]$", first):
        broken(f"the first line of {path.name} is {first!r}, no sentence")


def settings_are_keyword_only_and_typed(case: Any) -> None:
    """After the task every argument is keyword-only, annotated, and has a default."""
    _, *others = inspect.signature(case.factory).parameters.values()
    for p in others:
        if p.kind is not p.KEYWORD_ONLY:
            broken(f"{p.name!r} is not keyword-only")
        if p.annotation is p.empty:
            broken(f"{p.name!r} has no type")
        if p.default is p.empty:
            broken(f"{p.name!r} has no default")


def settings_are_read_from_the_source(case: Any) -> None:
    """What is read without importing the file is what the function takes."""
    name, path = case.factory.__name__, source_of(case.factory)
    read = registry.read_settings(path, name)
    real = settings_of(case.factory)
    if read.keys() != real.keys():
        broken(f"read {sorted(read)}, it takes {sorted(real)}")
    for word, setting in real.items():
        if read[word] != setting:
            broken(f"{word}: read {read[word]}, it is {setting}")


def settings_are_documented(case: Any) -> None:
    """The docstring says of every setting what it is."""
    text = inspect.getdoc(case.factory) or ""
    if not text:
        broken("the function has no docstring")
    for word in settings_of(case.factory):
        if not re.search(rf"^\s*{word}: \S", text, re.MULTILINE):
            broken(f"the docstring has no line '{word}: ...'")


def defaults_are_valid(case: Any) -> None:
    """Every default keeps its own annotation."""
    settings = settings_of(case.factory)
    defaults = {k: s.default for k, s in settings.items()}
    registry.validate(settings, defaults, case.factory.__name__)
