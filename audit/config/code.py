"""Which code made a number: a hash of definitions, whatever the names of their files.

Comments, docstrings, import lines and the names of files do not count: a reference to
something imported is replaced by the name of its definition and a hash of its text. A
file that is only renamed or moved to another room therefore changes no hash. What is
hashed follows from the order of the rooms (`audit.ROOMS`).

The suite's own files count as they were when this process began: an edit during a long
run changes what a file says and not what runs.
"""

from __future__ import annotations

import ast
import contextlib
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
FOLDERS = HERE, HERE.parent / "attacks", HERE.parent / "defenses"
AT_START = {p: p.read_bytes() for f in FOLDERS for p in sorted(f.rglob("*.py"))}


def version(paths: Iterable[Path]) -> str:
    """Return a hash of what Python files define."""
    meanings = (_meaning(_source(path)) for path in set(paths))
    return _hash(*sorted(m for m in meanings if m))


def up_to(room: str) -> list[Path]:
    """Return the suite's files in one of `ROOMS`, in earlier ones and below all."""
    later = (*ROOMS[ROOMS.index(room) + 1 :], "__main__")
    prefixes = tuple(f"{PACKAGE}.{each}." for each in later)
    return [p for name, p in _suite().items() if not f"{name}.".startswith(prefixes)]


@functools.cache
def _suite() -> dict[str, Path]:
    """Return the suite's modules by dotted name."""
    modules = {}
    for path in AT_START:
        if HERE not in path.parents:
            continue
        parts = (PACKAGE, *path.relative_to(HERE).with_suffix("").parts)
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def _source(path: Path) -> bytes:
    return AT_START[path] if path in AT_START else path.read_bytes()


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
    """Return what one file defines: empty for a file of imports and prose alone.

    A file that is no Python, which a package may hold, counts by its bytes.
    """
    try:
        module = _parsed(source)
    except (SyntaxError, ValueError):
        return hashlib.sha256(source).hexdigest()
    call = lambda dotted: f"{dotted.split('.')[-1]} {_text_of(dotted)}"
    return _text(module.body, module.imports, call) if module.body else ""


@functools.lru_cache(maxsize=8192)
def _text_of(dotted: str) -> str:
    """Return a hash of a definition's own text; empty where there is none."""
    home, _, name = dotted.rpartition(".")
    if home not in _suite():
        return ""
    module = _parsed(AT_START[_suite()[home]])
    if name in module.definitions:
        by_name = lambda d: d.split(".")[-1]
        return _hash(_text(module.definitions[name], module.imports, by_name))
    again = module.imports.get(name)  # a room exports what a file of it defines
    return _text_of(again) if again not in (None, dotted) else ""


def _text(node: Any, imports: dict[str, str], call: Callable[[str], str]) -> str:
    """Return a syntax tree in words; `call` names what is imported, by dotted name."""
    if isinstance(node, list):
        return f"[{','.join(_text(n, imports, call) for n in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    dotted = _dotted(node, imports)
    if dotted is not None and dotted not in _suite():
        return call(dotted) if dotted.startswith(f"{PACKAGE}.") else dotted
    # Python 3.12 has a field more for what nobody wrote; the hash is every version's
    names = [f for f in node._fields if f != "type_params" or getattr(node, f)]
    fields = (_text(getattr(node, f, None), imports, call) for f in names)
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
            for a in node.names:
                top = a.name.split(".")[0]
                imports[a.asname or top] = a.name if a.asname else top
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


def _says_nothing(node: ast.stmt) -> bool:
    """Return whether a statement is an import, prose, or there for types alone."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
    return False


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets):
            return [t.id for t in targets if isinstance(t, ast.Name)]
        case ast.AnnAssign(ast.Name(name)):
            return [name]
    return []


# Plug-ins -----------------------------------------------------------------------------


def with_helpers(sources: Iterable[Path], roots: Iterable[Path]) -> tuple[Path, ...]:
    """Return a plug-in's files and all they import from the same place or from `roots`.

    Installed packages are no part of a plug-in, hence not among the roots.
    """
    roots, files = tuple(roots), dict.fromkeys(p.resolve() for p in sources)
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        # a file that is no Python, or imports from above the root
        with contextlib.suppress(SyntaxError, ValueError, IndexError):
            for level, name in sorted(_imported(_source(path))):
                package = path.parents[max(level - 1, 0)]
                for folder in (package, *(() if level else roots)):
                    helpers = [f for f in _files_of(folder, name) if f not in files]
                    files |= dict.fromkeys(helpers)
                    waiting += helpers
    return tuple(files)


@functools.lru_cache(maxsize=1024)
def _imported(source: bytes) -> frozenset[tuple[int, str]]:
    """Return (level, dotted name) of all that a file imports; 0 = not relative."""
    names: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {(0, a.name) for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            first = [node.module] if node.module else []
            names |= {(node.level, ".".join([*first, a.name])) for a in node.names}
    return frozenset(names)


def _files_of(folder: Path, dotted: str) -> list[Path]:
    """Return the file of a module below a folder, and its packages' own files."""
    files = []
    for part in dotted.split(".") if not f"{dotted}.".startswith(f"{PACKAGE}.") else ():
        paths = folder / f"{part}.py", folder / part / "__init__.py"
        files += [path.resolve() for path in paths if path.is_file()]
        folder = folder / part
    return files
