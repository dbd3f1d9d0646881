"""Plug-ins by name: file name = function name = word on the command line.

The suite's own and those from elsewhere (`plugins`) are found alike. Settings are read
from the source of a plug-in, not by importing it, so that a typo is answered before JAX
is even loaded.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import annotated_types
import pydantic

from audit import types
from audit.config import code, objects, plugins
from audit.config.plugins import functions
from audit.config.schema import Section
from audit.errors import UserError, brief, did_you_mean


class Setting(NamedTuple):
    """One keyword-only argument of a factory."""

    annotation: Any
    default: Any
    required: bool = False


# folders of the suite's own
FOLDERS = {
    "defense": "defenses",
    "attack": "attacks",
    "model": "audit/models",
    "game": "audit/games",
    "bound": "audit/accounting",
}
# what a function in a room of `audit` returns, and takes, if it is a plug-in
RETURNS = {"model": "Task", "game": "Game", "bound": "Bound"}
TAKES = {"model": ["features", "classes"], "game": []}
COMPILED = ("defense", "attack", "model")  # kinds that programs are compiled for
SUITE = "the suite"


def built_in(kind: str) -> dict[str, plugins.Place]:
    """Return the suite's own plug-ins of a kind by name; its bounds always apply."""
    if kind not in FOLDERS:
        return {}  # data sets: `audit.data` has those
    folder = code.HERE.parent / FOLDERS[kind]
    # a folder `attacks` may stand anywhere: only `audit`, which runs, is surely ours
    package = FOLDERS[kind].replace("/", ".") if kind in RETURNS else None
    return dict(_suites(kind, folder, package))


@functools.cache  # the suite's own files do not change while it runs
def _suites(kind: str, folder: Path, package: str | None) -> dict[str, plugins.Place]:
    return {
        name: plugins.Place(path, SUITE, (path,), package and f"{package}.{path.stem}")
        for path in sorted(folder.glob("*.py"))
        for name in (_factories(path, kind) if kind in RETURNS else [path.stem])
        if not name.startswith("_")
    }


def _factories(path: Path, kind: str) -> list[str]:
    """Return the functions of a room's file that make plug-ins of a kind."""
    return _returning(plugins.parse(path), kind)


@functools.lru_cache(maxsize=256)  # trees are parsed once for each content
def _returning(tree: ast.Module, kind: str) -> list[str]:
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        if node.returns and ast.unparse(node.returns) == RETURNS[kind]
        if kind not in TAKES or TAKES[kind] == [a.arg for a in node.args.args]
    ]


def names(kind: str) -> list[str]:
    """Return the names of all plug-ins of a kind of `FOLDERS`."""
    always = () if kind == "bound" else built_in(kind)  # no scenario names those
    return sorted({*always, *(name for name, _ in plugins.places(kind))})


def place(kind: str, name: str) -> plugins.Place:
    """Return where a plug-in is. Raises UserError if there is none, or two."""
    every = (*built_in(kind).items(), *plugins.places(kind))
    here = [at for other, at in every if other == name]
    return plugins.single(kind, name, here, lambda: names(kind))


def source(kind: str, name: str) -> Path:
    """Return the file of a plug-in. Raises: as `place`."""
    return place(kind, name).path


def find(kind: str, name: str) -> Callable:
    """Import a plug-in and return its factory. Raises UserError if that fails."""
    return plugins.load(place(kind, name), name)


def version(kind: str, name: str) -> str:
    """Return a hash of the code that can change a plug-in's results.

    The plug-in, the files of its own that it imports (of a package: all of the
    package), and every room a training run goes through.
    """
    rooms = code.version([*sources(kind, name), *code.up_to(code.TRAINING)])
    factory = place(kind, name).factory
    return rooms if factory is None else f"{rooms} {objects.version(factory)}"


def sources(kind: str, name: str) -> tuple[Path, ...]:
    """Return all files whose code is a plug-in's, its helper modules among them."""
    return code.with_helpers(place(kind, name).sources, plugins.import_roots())


def elsewhere(kind: str, name: str) -> dict[str, str] | None:
    """Return where a plug-in that is not the suite's own is from; None for one that is.

    Returns:
      Plain data for the card: kind, name, origin, and a hash of its own code.
    """
    at = place(kind, name)
    if at.origin == SUITE:
        return None
    version = code.version(sources(kind, name))
    version = version if at.factory is None else objects.version(at.factory)
    return {"kind": kind, "name": name, "origin": at.origin, "code": version}


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring."""
    at = place(kind, name)
    within = kind in RETURNS and at.origin == SUITE  # a file of the suite's has several
    node: Any = functions(at.path)[name] if within else plugins.parse(at.path)
    return (ast.get_docstring(node) or "").split("\n")[0]


def settings(kind: str, name: str) -> dict[str, Setting]:
    """Return a factory's settings, read from its source.

    Raises: as `read_settings`; UserError for one that is not keyword-only, has no
    annotation, has a default that its annotation refuses, or holds several values that
    a program would be compiled for.
    """
    at = place(kind, name)
    if at.factory is not None:
        declared, by_place = _signature(at.factory)
    else:
        declared = read_settings(at.path, name)
        by_place = _given_by_place(functions(at.path)[name].args)
    where = f"{at.path} ({at.origin})"
    _check_declared(declared, by_place, name, where)
    lists = [w for w, s in declared.items() if _holds_several(s.annotation)]
    if kind in COMPILED and lists:
        raise UserError(
            f"{where}: the setting {min(lists)!r} of {name} holds several values; a "
            f"setting is one number, word or truth value: take one for each"
        )
    return declared


def _signature(factory: Callable) -> tuple[dict[str, Setting], list[str]]:
    """Return the settings of a function that was handed over in Python.

    Beside them stand the arguments that have a default and may be given by place.
    """
    described, by_place = {}, []
    hints = typing.get_type_hints(factory, include_extras=True)
    for name, argument in inspect.signature(factory).parameters.items():
        required = argument.default is argument.empty
        default = None if required else argument.default
        if argument.kind is argument.KEYWORD_ONLY:
            described[name] = Setting(hints.get(name), default, required)
        elif not required:
            by_place.append(name)
    return described, by_place


def _given_by_place(arguments: ast.arguments) -> list[str]:
    """Return the arguments that have a default and may be given by place."""
    every = [*arguments.posonlyargs, *arguments.args]
    return [a.arg for a in every[len(every) - len(arguments.defaults) :]]


def _check_declared(
    declared: dict[str, Setting], by_place: list[str], name: str, where: str
) -> None:
    """Refuse settings that nobody could set, check, or run by default.

    Args:
      declared: the settings of a factory.
      by_place: its arguments that have a default and are not keyword-only.
      name: of the factory.
      where: its file, for the message.
    """
    if by_place:
        raise UserError(
            f"{where}: {name} takes {by_place[0]!r} by its place, so that it is no "
            f"setting; put it after a *"
        )
    for word, setting in declared.items():
        if setting.annotation is None:
            raise UserError(
                f"{where}: the setting {word!r} of {name} has no annotation; say what "
                f"it is, as {word}: float"
            )
    optional = {word: s for word, s in declared.items() if not s.required}
    try:
        validate(optional, {word: s.default for word, s in optional.items()}, name)
    except UserError as error:
        raise UserError(f"{where}: by default {error}") from None


def _holds_several(annotation: Any) -> bool:
    """Return whether a value of an annotation may be a list or the like."""
    kind = typing.get_origin(annotation) or annotation
    if kind in (list, tuple, dict, set, frozenset):
        return True
    return any(map(_holds_several, typing.get_args(annotation)))


def read_settings(path: Path, name: str) -> dict[str, Setting]:
    """Return the settings of a file's function, without importing the file.

    Raises UserError if the file has no function of its own name, or an annotation or
    default is no word of `audit.types`, `annotated_types`, typing, the builtins or a
    `Section` of the same file.
    """
    return dict(_read_settings(plugins.parse(path), path, name))


@functools.lru_cache(maxsize=256)  # a tree is that of one text
def _read_settings(tree: ast.Module, path: Path, name: str) -> dict[str, Setting]:
    function = functions(path).get(name)
    if function is None:
        raise UserError(f"{path} holds no function {name!r}; {plugins.NAMED}")
    words = vars(annotated_types) | vars(types) | vars(typing) | vars(builtins)
    words |= _sections(tree, path, words)
    arguments = function.args
    settings = {}
    for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        try:
            annotation, default = (
                node and eval(ast.unparse(node), dict(words))
                for node in (a.annotation, d)
            )
            settings[a.arg] = Setting(annotation, default, required=d is None)
        except Exception as error:  # whatever an expression may raise
            raise UserError(
                f"{path}, line {a.lineno}: cannot read the setting {a.arg!r}: {error}"
            ) from None
    return settings


def _sections(tree: ast.Module, path: Path, words: dict[str, Any]) -> dict[str, Any]:
    """Return the file's own `Section` classes; nothing else of it is executed."""
    classes = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        if [ast.unparse(base) for base in node.bases] == [Section.__name__]
    }
    module = ast.Module(list(classes.values()), [])
    names = {Section.__name__: Section, "__name__": path.stem, **words}
    exec(compile(module, str(path), "exec", dont_inherit=True), names)
    return {name: names[name] for name in classes}


def check(kind: str, name: str, given: dict[str, Any], where: str) -> dict[str, Any]:
    """Return all settings of a factory: the given ones validated, the others' defaults.

    Raises UserError on an unknown setting, a wrong type or a value out of range, which
    calls the factory as the command line does: `where`, e.g. "defense.dpsgd".
    """
    return validate(settings(kind, name), given, where)


def validate(
    declared: dict[str, Setting], given: dict[str, Any], where: str
) -> dict[str, Any]:
    """Return the `declared` settings with the `given` values; see `check`."""
    for word in given:
        if word not in declared:
            hint = did_you_mean(word, declared) if declared else "; it has no settings"
            raise UserError(
                f"unknown setting {'.'.join(filter(None, [where, word]))}{hint}"
            )
    # 1, 1.0 and True are equal, and no two of them the same default
    fields = tuple((k, s, type(s.default)) for k, s in declared.items())
    try:
        model = _model(fields)
    except TypeError:  # a default without a hash, such as a list
        model = _model.__wrapped__(fields)
    try:
        return dict(model(**given))
    except pydantic.ValidationError as error:
        raise UserError(explain(error, where, model)) from None


@functools.lru_cache(maxsize=256)
def _model(fields: tuple[tuple[str, Setting, type], ...]) -> type[pydantic.BaseModel]:
    """Return what checks settings of these names, annotations and defaults."""
    described: dict[str, Any] = {
        k: (s.annotation, ... if s.required else s.default) for k, s, _ in fields
    }
    return pydantic.create_model("settings", __base__=Section, **described)


def explain(
    error: pydantic.ValidationError,
    where: str = "",
    model: type[pydantic.BaseModel] | None = None,
) -> str:
    """Return a validation error as one line that names what was typed, at `where`.

    The words of `model` are offered where one is not known.
    """
    problems: dict[str, list[str]] = {}
    for e in error.errors():
        # of an alternative, pydantic names the type that was tried: not typed by anyone
        steps = [str(s) for s in e["loc"] if not _ALTERNATIVE.match(str(s))]
        path = ".".join(filter(None, [where, *steps]))
        typed = "" if e["type"] == "missing" else f"={brief(e['input'])}"
        text = e["msg"][0].lower() + e["msg"][1:]
        if e["type"] == "extra_forbidden" and model is not None:
            path, typed = f"unknown key {path}", ""
            text = did_you_mean(str(e["loc"][-1]), _words(model, e["loc"][:-1]))[2:]
        problems.setdefault(f"{path}{typed}", []).append(text + _nearest(e))
    return "; ".join(
        f"{path}: {' or '.join(texts)}" for path, texts in problems.items()
    )


_ALTERNATIVE = re.compile(r"str$|dict\[|int$|float$|none$|constrained-")


def _nearest(error: Any) -> str:
    """Return "; did you mean X?" where a valid value is near the one that was typed."""
    typed = error["input"]
    if error["type"] == "list_type" and re.fullmatch(r"\w+", str(typed)):
        return f"; did you mean [{typed}]?"
    if error["type"] == "literal_error":
        words = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        close = difflib.get_close_matches(str(typed), words, n=1, cutoff=0.3)
        return f"; did you mean {close[0]!r}?" if close else ""
    if error["type"] in ("int_type", "float_type") and not isinstance(typed, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(typed)
            whole = error["type"] == "int_type"
            return f"; did you mean {round(number) if whole else number}?"
    return ""


def _words(model: Any, path: Iterable[Any]) -> list[str]:
    """Return the words a nested model takes at a path of its fields."""
    for step in path:
        field = getattr(model, "model_fields", {}).get(step)
        inside = field.annotation if field is not None else model
        while not hasattr(inside, "model_fields"):  # X | None, dict[str, X]
            within = [a for a in typing.get_args(inside) if a not in (type(None), str)]
            if not within:
                return []
            inside = within[0]
        model = inside
    return list(model.model_fields)
