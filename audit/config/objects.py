"""Which code made a number, where it was written in Python and not in a plug-in's file.

A function of a notebook has no file. It is what its bytecode, its defaults, what it
closes over, the globals it uses and the modules it imports are, each by its content.
Installed packages count by their names alone, as elsewhere (`code`). What has no
content that could be read gets a mark of its own in every process: then nothing stored
is taken for the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import importlib.util
import sys
import types
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from audit.config import code, plugins
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
    into = lambda v: _content(v, visited)
    if isinstance(value, types.ModuleType):
        return _module(value.__name__)
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
    compiled, space = function.__code__, function.__globals__
    closed = []
    for cell in function.__closure__ or ():
        try:
            closed.append(cell.cell_contents)
        except ValueError:  # not filled yet
            closed.append(None)
    within = _with_inner(compiled)
    names = sorted({name for each in within for name in each.co_names})
    used = {name: space[name] for name in names if name in space}
    package = space.get("__package__") or ""
    imports = sorted({top for each in within for top in _imports(each, package)})
    defaults = function.__defaults__, function.__kwdefaults__
    modules = [_module(top) for top in imports]
    return _bytecode(compiled), *defaults, closed, used, modules


def _with_inner(compiled: types.CodeType) -> list[types.CodeType]:
    inner = [c for c in compiled.co_consts if isinstance(c, types.CodeType)]
    return [compiled, *(each for c in inner for each in _with_inner(c))]


def _imports(compiled: types.CodeType, package: str) -> list[str]:
    """Return what a function imports where it runs: packages, or modules of none."""
    steps, tops = list(dis.get_instructions(compiled)), []
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            relative = steps[i - 2].argval > 0  # its level
            tops.append((package if relative else step.argval).partition(".")[0])
    return tops


def _bytecode(compiled: types.CodeType) -> list[Any]:
    constants = [_constant(c) for c in compiled.co_consts]
    names = [*compiled.co_names, "", *compiled.co_varnames, "", *compiled.co_freevars]
    return [compiled.co_code.hex(), names, constants]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _bytecode(value)
    if isinstance(value, frozenset):  # whose order is not the same in all processes
        return ["set", *sorted(map(repr, value))]
    return repr(value)


def _module(name: str) -> list[Any]:
    """Return what a module is: its name, and of one's own the code of its files.

    Of a package those are all that it holds.
    """
    place = None if name == "__main__" or _installed(name) else _place(name)
    if place is None:
        return ["module", name]
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    every = code.with_helpers(files, plugins.import_roots())
    return ["module", name, code.version(every)]


def _place(module: str) -> Path | None:
    """Return a module's file, of a package its folder; None where it has neither."""
    loaded = sys.modules.get(module)
    file, folders = (getattr(loaded, f"__{name}__", None) for name in ("file", "path"))
    if loaded is None:
        with contextlib.suppress(ImportError, ValueError):
            if (spec := importlib.util.find_spec(module)) is not None:
                file = spec.origin if spec.has_location else None
                folders = spec.submodule_search_locations
    places = [*(folders or ()), *([file] if file else ())]
    return Path(places[0]).resolve() if places else None


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
    place = _place(module)
    if place is None:
        return top not in sys.modules or not hasattr(sys.modules[top], "__file__")
    if code.HERE in (place, *place.parents) or plugins.in_library(place):
        return True
    return not any(root in place.parents for root in plugins.import_roots())
