"""Which code made a number: a hash of definitions, whatever the names of their files.

Comments, docstrings, import lines and the names of files do not count: a reference to
something imported is replaced by the name of its definition and a hash of its text. A
file that is only renamed or moved to another room therefore changes no hash. What is
hashed follows from the order of the rooms (`audit.ROOMS`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from audit import ROOMS

HERE = Path(__file__).resolve().parent.parent
PACKAGE = "audit"
TRAINING = "engine"  # the last room that a training run goes through
SCORING = "pipeline"  # the last room that makes numbers; later ones only show them


def version(paths: Iterable[Path]) -> str:
    """Return a hash of what Python files define."""
    meanings = (_meaning(path.read_bytes()) for path in set(paths))
    return _hash(*sorted(m for m in meanings if m))


def up_to(room: str) -> list[Path]:
    """Return the suite's files in a room, in every earlier one and below all rooms.

    Args:
      room: one of `ROOMS`.
    """
    later = {PACKAGE + "." + r for r in ROOMS[ROOMS.index(room) + 1 :]}
    later.add(f"{PACKAGE}.__main__")
    return [path for name, path in _suite().items() if not _inside(name, later)]


def _inside(module: str, rooms: set[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:i]) in rooms for i in range(1, len(parts) + 1))


@functools.cache
def _suite() -> dict[str, Path]:
    """Return the suite's modules by dotted name."""
    modules = {}
    for path in sorted(HERE.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(HERE).with_suffix("").parts)
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def _hash(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


# One file -----------------------------------------------------------------------------


class _Module(NamedTuple):
    """What one file holds."""

    body: list[ast.stmt]  # without docstrings and imports
    imports: dict[str, str]  # name in the file -> dotted name of what it is
    definitions: dict[str, ast.stmt]


@functools.lru_cache(maxsize=1024)  # a whole suite takes a second
def _meaning(source: bytes) -> str:
    """Return what one file defines: empty for a file of imports and prose alone."""
    module = _parsed(source)
    return _text(module.body, module.imports, _by_text) if module.body else ""


def _by_text(dotted: str) -> str:
    """Return the name and a hash of the text of a definition of the suite."""
    return f"{dotted.split('.')[-1]} {_text_of(dotted)}"


@functools.lru_cache(maxsize=8192)
def _text_of(dotted: str) -> str:
    """Return a hash of a definition's own text; empty where there is none."""
    home, _, name = dotted.rpartition(".")
    if home not in _suite():
        return ""
    module = _parsed(_suite()[home].read_bytes())
    if name in module.definitions:
        by_name = lambda d: d.split(".")[-1]  # noqa: E731
        return _hash(_text(module.definitions[name], module.imports, by_name))
    again = module.imports.get(name)  # a room exports what a file of it defines
    return _text_of(again) if again not in (None, dotted) else ""


def _text(node: Any, imports: dict[str, str], call: Callable[[str], str]) -> str:
    """Return a syntax tree in words, everything imported called by its definition.

    Args:
      node: of a syntax tree, or anything in one.
      imports: what the file's names stand for.
      call: (dotted name of a definition of the suite) -> what it is called.
    """
    if isinstance(node, list):
        return f"[{','.join(_text(n, imports, call) for n in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    dotted = _dotted(node, imports)
    if dotted is not None and dotted not in _suite():
        return call(dotted) if dotted.startswith(f"{PACKAGE}.") else dotted
    fields = (_text(getattr(node, f, None), imports, call) for f in node._fields)
    return f"{type(node).__name__}({','.join(fields)})"


def _dotted(node: ast.AST, imports: dict[str, str]) -> str | None:
    """Return the dotted name of what an expression refers to, if it is imported."""
    if isinstance(node, ast.Name):
        return imports.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        base = imports.get(node.value.id)
        return f"{base}.{node.attr}" if base is not None else None
    return None


@functools.lru_cache(maxsize=1024)
def _parsed(source: bytes) -> _Module:
    tree, imports = ast.parse(source), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {a.asname or a.name.split(".")[0]: _top(a) for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {
                a.asname or a.name: f"{node.module}.{a.name}" for a in node.names
            }
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                block[:] = [s for s in block if not _says_nothing(s)]
    definitions: dict[str, ast.stmt] = {}
    for statement in tree.body:
        definitions |= dict.fromkeys(_defined(statement), statement)
    return _Module(tree.body, imports, definitions)


def _top(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.split(".")[0]


def _says_nothing(node: ast.stmt) -> bool:
    """Return whether a statement is an import, prose, or there for types alone."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


# Plug-ins -----------------------------------------------------------------------------


def with_helpers(sources: Iterable[Path], roots: Iterable[Path]) -> tuple[Path, ...]:
    """Return files and all they import from the same place, directly or not.

    Args:
      sources: files of a plug-in.
      roots: folders whose modules count; installed packages are no part of a plug-in.
    """
    roots, files = tuple(roots), dict.fromkeys(p.resolve() for p in sources)
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        for folder in dict.fromkeys((path.parent, *roots)):
            for name in _imported(path):
                for helper in _files_of(folder, name):
                    if helper not in files:
                        files[helper] = None
                        waiting.append(helper)
    return tuple(files)


def _imported(path: Path) -> set[str]:
    """Return the dotted names a file imports; nothing for a file that is no Python."""
    try:
        return set(_parsed(path.read_bytes()).imports.values())
    except (SyntaxError, ValueError):
        return set()


def _files_of(folder: Path, dotted: str) -> list[Path]:
    """Return the file of a module below a folder, and its packages' own files."""
    top = dotted.split(".")[0]
    if top == PACKAGE:
        return []
    files, at = [], folder
    for part in dotted.split("."):
        for path in (at / f"{part}.py", at / part / "__init__.py"):
            if path.is_file():
                files.append(path.resolve())
        at = at / part
    return files
