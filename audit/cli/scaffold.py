"""`python -m audit new KIND NAME`: a plug-in that works, its test and its page."""

from __future__ import annotations

import keyword
import re
import shlex
from pathlib import Path
from string import Template
from typing import NamedTuple

from audit.config import hydra_app, plugins, registry
from audit.errors import UserError, did_you_mean

KINDS = ("defense", "attack", "scenario")
TEMPLATES = Path(__file__).parent / "templates"
CHECKOUT = Path(__file__).resolve().parent.parent.parent
TRIED = "scenario=binary_mnist data=digits"
NAME = re.compile(r"[a-z][a-z0-9_]*")


class Asked(NamedTuple):
    """The words of the command."""

    kind: str
    name: str
    folder: str | None  # of plug-ins; None = the suite's own, in a checkout


class Made(NamedTuple):
    """What was written."""

    files: tuple[Path, ...]
    next: str  # what to do now, in words


def words(given: list[str]) -> Asked:
    """Return what `new KIND NAME` asks for.

    Raises:
      UserError: naming the word that is wrong.
    """
    if len(given) != 2:
        raise UserError(f"new what? {'|'.join(KINDS)} and a name, not {given}")
    kind, name = given
    if kind not in KINDS:
        raise UserError(f"cannot make a new {kind!r}{did_you_mean(kind, KINDS)}")
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or name.startswith("test_"):
        raise UserError(
            f"{kind} name {name!r}: a-z, digits and _, a letter first, no word of "
            f"Python's, and not test_"
        )
    folders = plugins.named_folders()
    if len(folders) > 1:
        raise UserError(f"new {kind} in which folder? {' or '.join(folders)}")
    _is_free(kind, name)
    return Asked(kind, name, folders[0] if folders else None)


def _is_free(kind: str, name: str) -> None:
    """Refuse a name that is taken, wherever it is."""
    known = [f for f in plugins.named_folders() if Path(f).is_dir()]
    with plugins.only(known):
        if kind == "scenario":
            taken = [f / f"{name}.yaml" for f in hydra_app.folders(None)]
            taken = [path for path in taken if path.exists()]
        else:
            taken = (
                [registry.source(kind, name)] if name in registry.names(kind) else []
            )
    if taken:
        raise UserError(f"{kind} {name!r} is there already: {taken[0]}")


def write(asked: Asked) -> Made:
    """Write the plug-in, its test and its page; nothing that exists is touched.

    Raises:
      UserError: if a file is there already, or cannot be written.
    """
    kinds = {**plugins.KINDS, "scenario": plugins.SCENARIOS}[asked.kind]
    root, flat = _root(asked)
    suffix = "yaml" if asked.kind == "scenario" else "py"
    own, page, test = (
        Path() if flat else Path(p) for p in (kinds, f"docs/{kinds}", "tests")
    )
    files = {
        root / own / f"{asked.name}.{suffix}": f"{asked.kind}.{suffix}.in",
        root / test / f"test_{asked.name}.py": f"{asked.kind}_test.py.in",
        root / page / f"{asked.name}.md": f"{asked.kind}.md.in",
    }
    for path in files:
        if path.exists():
            raise UserError(f"{path} is there already; nothing was written")
    said = {
        "name": asked.name,
        "title": asked.name.replace("_", " ").capitalize(),
        "below": "" if flat else f'.parent / "{kinds}"',
    }
    for path, template in files.items():
        text = Template((TEMPLATES / template).read_text()).substitute(said)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
    return Made(tuple(files), _next(asked, list(files)[1]))


def _root(asked: Asked) -> tuple[Path, bool]:
    """Return the folder to write into, and whether it is flat."""
    if asked.folder is None:
        if not (CHECKOUT / "pyproject.toml").is_file():
            raise UserError(
                f"new {asked.kind} where? the suite is installed, not a checkout: say "
                f"--plugins DIR"
            )
        return CHECKOUT, False
    folder = Path(asked.folder)
    used = folder.is_dir() and any([*folder.glob("*.py"), *folder.glob("*.yaml")])
    return folder, used and not plugins.laid_out(folder)


def _next(asked: Asked, test: Path) -> str:
    """Return the commands that try it."""
    runs = {
        "defense": f"{TRIED} defenses=[sgd,{asked.name}]",
        "attack": f"{TRIED} attacks=[class_mean,{asked.name}]",
        "scenario": f"scenario={asked.name}",
    }
    where = f" --plugins {shlex.quote(asked.folder)}" if asked.folder else ""
    lines = [
        f"python -m pytest {test}",
        f"python -m audit run {runs[asked.kind]}{where}",
    ]
    if asked.folder is None:
        page = f"docs/{plugins.KINDS.get(asked.kind, 'scenarios')}/{asked.name}.md"
        lines.append(f"then add a row for `{asked.name}` to README.md ({page})")
    return "\n".join(lines)
