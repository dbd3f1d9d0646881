"""Which code made a number, where it was written in Python and not in a plug-in's file.

A function of a notebook has no file. It is what its bytecode, its defaults, what it
closes over and the globals it uses are, each by its content. Installed packages count
by their names alone, as elsewhere (`code`). What has no content that could be read gets
a mark of its own in every process: then nothing stored is taken for the same.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from audit.config import plugins
from audit.engine import store

OPAQUE = uuid.uuid4().hex  # of this process
DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
MOST = 100_000  # objects looked at


def version(value: Any) -> str:
    """Return a hash of a Python object: functions, classes, arrays, plain data."""
    return store.digest(_content(value, {}))


def _content(value: Any, visited: dict[int, Any]) -> Any:
    """Return plain data that say what an object is; `visited` cuts circles.

    It holds what was looked at, as the id of what is gone is given to something else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, complex, range, type(...))):
        return [type(value).__name__, repr(value)]
    if id(value) in visited:
        return ["again", visited[id(value)][0]]
    visited[id(value)] = len(visited), value
    if len(visited) > MOST:
        return OPAQUE
    into = lambda v: _content(v, visited)  # noqa: E731
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__]
    if isinstance(value, functools.partial):
        return ["partial", into(value.func), into(value.args), into(value.keywords)]
    if isinstance(value, (types.FunctionType, type)) and _installed(value.__module__):
        return ["installed", value.__module__, value.__qualname__]
    if isinstance(value, types.FunctionType):
        return ["function", *map(into, _parts(value))]
    if isinstance(value, types.MethodType):
        return ["method", into(value.__func__), into(value.__self__)]
    if isinstance(value, type):
        return ["class", into(value.__bases__), into(_attributes(value))]
    if isinstance(value, dict):
        return ["dict", sorted(([str(k), into(v)] for k, v in value.items()), key=str)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(into, value)]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(map(into, value), key=str)]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value)
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value)]
        fields = [name for name in fields if name not in ("parent", "name")]  # of flax
        return [into(type(value)), *(into(getattr(value, n, None)) for n in fields)]
    if isinstance(getattr(value, "__dict__", None), dict):
        parts = {k: v for k, v in vars(value).items() if not k.endswith("__state")}
        return [into(type(value)), into(parts)]  # without what nnx traces by
    if callable(value) and _installed(getattr(value, "__module__", None)):
        return ["installed", value.__module__, getattr(value, "__qualname__", "")]
    return [OPAQUE, type(value).__name__]


def _parts(function: types.FunctionType) -> tuple:
    """Return what a function is made of."""
    code, space = function.__code__, function.__globals__
    closed = []
    for cell in function.__closure__ or ():
        try:
            closed.append(cell.cell_contents)
        except ValueError:  # not filled yet
            closed.append(None)
    used = {name: space[name] for name in sorted(_names(code)) if name in space}
    return _bytecode(code), function.__defaults__, function.__kwdefaults__, closed, used


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _bytecode(code: types.CodeType) -> list[Any]:
    constants = [
        _bytecode(c) if isinstance(c, types.CodeType) else repr(c)
        for c in code.co_consts
        if not isinstance(c, frozenset)  # whose order is not the same in all processes
    ]
    names = [*code.co_names, "", *code.co_varnames, "", *code.co_freevars]
    return [code.co_code.hex(), names, constants]


def _attributes(kind: type) -> dict[str, Any]:
    """Return what a class defines itself."""
    return {
        name: getattr(value, "__wrapped__", getattr(value, "__func__", value))
        for name, value in vars(kind).items()
        if not name.startswith("__") or callable(value)
        if not isinstance(value, DESCRIPTORS)
        if name not in ("__weakref__", "__dict__", "__annotate__", "__annotate_func__")
        if not name.startswith("_abc_")
    }


def _array(value: Any) -> Any:
    try:
        return ["array", store.digest(np.asarray(value))]
    except TypeError:  # random keys, which are digested as they are
        return ["array", store.digest(value)]


@functools.cache
def _installed(module: str | None) -> bool:
    """Return whether a module is the suite's, Python's or of an installed package."""
    if not module or module == "__main__":
        return False
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    path = getattr(sys.modules.get(module), "__file__", None)
    if path is None:
        return top not in sys.modules or not hasattr(sys.modules[top], "__file__")
    suite = Path(__file__).resolve().parent.parent
    place = Path(path).resolve()
    if suite in place.parents or plugins.in_library(place):
        return True
    return not any(root in place.parents for root in plugins.import_roots())
