"""Plug-ins from elsewhere: folders that were named, and installed packages.

`--plugins DIR`, or the variable AUDIT_PLUGINS (folders, separated as in PATH), names
folders. One that has any of `defenses/`, `attacks/`, `bounds/`, `games/`, `scenarios/`
(or Python files in `models/` or `datasets/`) is *laid out*, and nothing beside these is
looked at. Any other is *flat*: every `.py` in it is a plug-in, its kind what its
function returns, and every `.yaml` a scenario; files that start with `_` or `test_`,
and `conftest.py`, are left alone.

Packages that are installed name theirs by entry points: `audit.defenses`,
`audit.attacks`, `audit.bounds`, `audit.games`, `audit.models`, `audit.datasets`
(`quiet = "my_package.quiet:quiet"`) and `audit.scenarios`
(`mine = "my_package.scenarios"`, a package whose folder holds the YAML files).

Finding a plug-in reads its source and imports nothing. A caller in Python hands its
functions over as they are (`given`).
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from audit.config import scenario_file
from audit.errors import UserError, did_you_mean, in_words

VARIABLE = "AUDIT_PLUGINS"
# kind -> its folder, and the end of its entry points' group
KINDS = {kind: f"{kind}s" for kind in ("defense", "attack", "bound", "game", "model")}
KINDS["data"] = "datasets"
# what a factory says it returns, by which a flat folder's files are told apart
RETURNS = {"Defense": "defense", "Attack": "attack", "Bound": "bound", "Game": "game"}
RETURNS |= {"Task": "model", "Dataset": "data"}
COMMON = ("models", "datasets")  # names of folders that need not hold plug-ins
SCENARIOS = "scenarios"
MOST_BYTES = 2**20  # of a plug-in's file
NAMED = "a plug-in is named so"
IN_PYTHON = "Python"  # origin of what a caller handed over


class Place(NamedTuple):
    """Where one plug-in is."""

    path: Path
    origin: str  # in words: "folder mine", "package example 1.0"
    sources: tuple[Path, ...]  # all files whose code is the plug-in's
    module: str | None = None  # to import it by; None = by its path
    factory: Callable | None = None  # itself, where it was handed over in Python


_GIVEN: list[tuple[str, str, Place]] = []  # kind, name, place; while `given` lasts


@contextlib.contextmanager
def given(factories: Iterable[tuple[str, str, Callable]]) -> Iterator[None]:
    """Find these functions by kind and name, before any file; see `places`."""
    here = [
        (kind, name, Place(Path(f"<{name}>"), IN_PYTHON, (), None, factory))
        for kind, name, factory in factories
    ]
    before = _GIVEN[:]
    _GIVEN.extend(here)
    try:
        yield
    finally:
        _GIVEN[:] = before


def named_folders() -> list[str]:
    """Return the folders that were named, as typed."""
    return [f for f in os.environ.get(VARIABLE, "").split(os.pathsep) if f]


def words(given: list[str]) -> tuple[list[str], list[str]]:
    """Return words without `--plugins DIR`, and the folders. Raises UserError."""
    kept, folders, stream = [], [], iter(given)
    for word in stream:
        if word.startswith("--plugins"):
            flag, equals, typed = word.partition("=")
            typed = typed if equals else next(stream, "")
            if flag != "--plugins" or not typed or os.pathsep in typed:
                raise UserError(f"{word} {typed}: say --plugins DIR".replace("  ", " "))
            folders.append(typed)
        else:
            kept.append(word)
    return kept, folders


@contextlib.contextmanager
def environment(variable: str, value: str) -> Iterator[None]:
    """Set a variable; processes that are started meanwhile inherit it."""
    before, os.environ[variable] = os.environ.get(variable), value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before


def only(folders: list[str]) -> contextlib.AbstractContextManager[None]:
    """Look for plug-ins in these folders and no others."""
    return environment(VARIABLE, os.pathsep.join(dict.fromkeys(folders)))


def using(folders: list[str]) -> contextlib.AbstractContextManager[None]:
    """Look for plug-ins in these folders, too."""
    return only([*folders, *named_folders()])


def existing(typed: str | None, by: str = "--plugins") -> str:
    """Return a folder's name as typed; UserError, naming `by`, if it is not there."""
    if typed is None or not os.path.isdir(typed):
        raise UserError(f"{by} {typed}: no such folder")
    return typed


def shadow() -> str | None:
    """Return what stands here and is imported as `audit` instead of the suite."""
    ours = Path(__file__).resolve().parent.parent
    for name in ("audit/__init__.py", "audit.py"):
        if os.path.isfile(name) and Path(name).resolve().parent != ours:
            return name
    return None


def import_roots() -> tuple[Path, ...]:
    """Return the folders Python imports from, but for those of installed packages.

    `pip install --target` makes such a folder anywhere, with metadata of the packages.
    """
    folders = dict.fromkeys(Path(p or ".").resolve() for p in sys.path)
    ours = (f for f in folders if f.is_dir() and not in_library(f))
    return tuple(f for f in ours if not any(f.glob("*.dist-info")))


def in_library(place: Path) -> bool:
    """Return whether a resolved path is in a folder of installed packages, or is one.

    That folder may itself be in a folder Python imports from: `.venv` in a clone.
    """
    libraries = {Path(p).resolve() for p in sysconfig.get_paths().values()}
    return bool(libraries & {place, *place.parents})


def laid_out(folder: Path) -> bool:
    """Return whether plug-ins stand in folders by kind."""
    kinds = [kind for kind in (*KINDS.values(), SCENARIOS) if kind not in COMMON]
    common = (path for kind in COMMON for path in (folder / kind).glob("*.py"))
    return any((folder / kind).is_dir() for kind in kinds) or any(common)


def places(kind: str) -> Iterator[tuple[str, Place]]:
    """Yield the name and place of every plug-in from elsewhere, clashes and all.

    Raises UserError for a folder that is not there, a file of a flat folder that is no
    plug-in, or an entry point that cannot be one.
    """
    yield from ((name, place) for each, name, place in _GIVEN if each == kind)
    for typed in named_folders():
        folder = Path(existing(typed, VARIABLE))
        by_kind = laid_out(folder)
        for path in sorted((folder / KINDS[kind] if by_kind else folder).glob("*.py")):
            if path.stem.startswith(("_", "test_", "conftest")):
                continue
            if by_kind or _kind(path) == kind:
                yield path.stem, Place(path, f"folder {typed}", (path,))
    for point in _points(f"audit.{KINDS[kind]}", tuple(sys.path)):
        path, sources = _located(point)
        if point.attr != point.name:
            raise UserError(
                f"{_package(point)}: entry point {point.name!r} of {point.group} names "
                f"{point.value!r}; the function must be called {point.name!r}"
            )
        yield point.name, Place(path, _package(point), sources, point.module)


def single(
    kind: str, name: str, places: Iterable[Place], names: Callable[[], Iterable[str]]
) -> Place:
    """Return the one place there is; a file that is named twice is one place.

    Raises UserError if there is none, with the nearest of `names`, or two.
    """
    files: dict[Path, Place] = {}
    for at in places:
        files.setdefault(at.path.resolve(), at)
    if not files:
        raise UserError(f"unknown {kind} {name!r}{did_you_mean(name, names())}")
    if len(files) > 1:
        one, two, *_ = [f"{at.path} ({at.origin})" for at in files.values()]
        raise UserError(
            f"there are two of {kind} {name!r}: {one} and {two}; rename one"
        )
    return next(iter(files.values()))


def scenario_folders() -> list[tuple[Path, str]]:
    """Return the folders with scenarios from elsewhere, and where each is from."""
    places = []
    for typed in named_folders():
        folder = Path(existing(typed, VARIABLE))
        places.append(
            (folder / SCENARIOS if laid_out(folder) else folder, f"folder {typed}")
        )
    for point in _points(f"audit.{SCENARIOS}", tuple(sys.path)):
        places.append((_located(point)[0].parent, _package(point)))
    return places


def load(place: Place, name: str) -> Callable:
    """Import a plug-in's function. Raises UserError, one line that names the file."""
    if place.factory is not None:
        return place.factory
    try:
        if place.module is not None:
            module = importlib.import_module(place.module)
        else:
            module = _load_file(place.path)
    except Exception as error:  # a plug-in may fail in any way
        raise UserError(
            f"cannot import {name!r} from {place.path}: {in_words(error)}"
        ) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise UserError(f"{place.path} holds no function {name!r}; {NAMED}")
    return factory


@contextlib.contextmanager
def blamed() -> Iterator[None]:
    """Say of what a plug-in from elsewhere raises where it did, as a UserError.

    It names the last line that ran in a file of a plug-in's; what is raised outside of
    these files stays as it is.
    """
    try:
        yield
    except (UserError, BrokenPipeError):  # the reader of its prints may go away
        raise
    except Exception as error:  # a plug-in may fail in any way
        every = [(kind, *named) for kind in KINDS for named in places(kind)]
        whose = {p.resolve(): (k, n) for k, n, at in every for p in at.sources}
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f for f in frames if Path(f.filename).resolve() in whose]
        if not lines:
            raise
        at = lines[-1]
        kind, name = whose[Path(at.filename).resolve()]
        raise UserError(
            f"{kind} {name!r}: {at.filename}, line {at.lineno}: {in_words(error)}"
        ) from error


def parse(path: Path) -> ast.Module:
    """Return a plug-in's syntax tree. Raises UserError, which names file and line."""
    try:
        return _tree(scenario_file.read(path, MOST_BYTES))
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


_tree = functools.lru_cache(maxsize=256)(ast.parse)  # never changed by its readers


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file by name."""
    return {n.name: n for n in parse(path).body if isinstance(n, ast.FunctionDef)}


def _kind(path: Path) -> str:
    """Return the kind of a flat folder's file, by what its function returns."""
    function = functions(path).get(path.stem)
    returns = ast.unparse(function.returns) if function and function.returns else ""
    # "Bound" of the parts of `types.Bound | None`, in quotes or not
    words = {part.strip(" '\"").rpartition(".")[2] for part in returns.split("|")}
    for word, kind in RETURNS.items():
        if word in words:
            return kind
    raise UserError(
        f"{path} holds no function {path.stem!r} that says it returns "
        f"{', '.join(RETURNS)}; a plug-in is named like its function"
    )


def _load_file(path: Path) -> ModuleType:
    """Import a file once for each content: the same function is the same object."""
    address = f"{path.resolve()}\n".encode() + path.read_bytes()
    name = f"audit_plugin_{path.stem}_{hashlib.sha256(address).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


# Packages -----------------------------------------------------------------------------


@functools.lru_cache(maxsize=32)
def _points(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Return the entry points of a group; they are searched for along `path`."""
    return tuple(sorted(_installed(path).select(group=group), key=lambda p: p.name))


@functools.lru_cache(maxsize=32)
def _installed(path: tuple[str, ...]) -> Any:
    """Return all entry points; whatever the group, every package is looked at."""
    del path  # `entry_points` reads it from `sys`
    return metadata.entry_points()


def _package(point: metadata.EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else "?"


def _located(point: metadata.EntryPoint) -> tuple[Path, tuple[Path, ...]]:
    """Return an entry point's file and its package's, or UserError; imports nothing."""
    top, *rest = point.module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is not None and spec.submodule_search_locations:
        root = Path(next(iter(spec.submodule_search_locations)))
        below = root.joinpath(*rest)
        for path in (below / "__init__.py", below.with_suffix(".py")):
            if path.is_file():
                return path, tuple(sorted(root.rglob("*.py")))
    elif spec is not None and spec.origin and not rest:
        return Path(spec.origin), (Path(spec.origin),)
    raise UserError(
        f"{_package(point)}: entry point {point.name!r} of {point.group} names "
        f"{point.value!r}, and there is no such module"
    )
