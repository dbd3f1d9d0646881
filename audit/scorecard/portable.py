"""Texts of a card name no folder, user or host of the machine that made it."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shlex
import sys
from pathlib import Path

from audit.config.hydra_app import quoted

SUITE = Path(__file__).resolve().parents[2]
_BEFORE = r"(?<![\w.:/~\\-])"
_QUOTED = re.compile(r"""(?<=['"])/[^'"\n]+""")
_OWN_FOLDER = re.compile(r"""(out|store)=['"]?/""")
_FILE = re.compile(r"\bfile:(/[^\s'\",;:()<>|]+)")  # the word of data of one's own
_BARE = re.compile(rf"""{_BEFORE}/[^\s'",;:()<>|]+""")


def portable(text: str) -> str:
    """Return text in which an absolute path is relative, or its last name alone."""
    if "/" not in text:  # most texts of a card, and looking for folders takes time
        return text
    known = "|".join(re.escape(str(folder)) for folder in _known())
    text = re.sub(rf"{_BEFORE}(?:{known})/(?=[^\s'\"])", "", text)
    text = re.sub(rf"{_BEFORE}(?:{known})(?![\w.-])", ".", text)
    text = _FILE.sub(lambda path: f"file:{portable(path[1])}", text)
    for pattern in (_QUOTED, _BARE):
        text = pattern.sub(lambda path: _last_name(path[0]), text)
    return text


def _last_name(path: str) -> str:
    name = Path(path).name
    return "~" if name in (getpass.getuser(), platform.node()) else name


def command(typed: str) -> str:
    """Return a command without absolute `out=` and `store=`, other folders portable."""
    words = [w for w in shlex.split(typed) if not _OWN_FOLDER.match(w)]
    return quoted([portable(word) for word in words])


def _known() -> list[Path]:
    """Return the folders below which paths are relative, inner ones first."""
    named = [os.environ.get(name) for name in ("PWD", "AUDIT_DATA", "AUDIT_CACHE")]
    folders = [Path.cwd(), SUITE, Path.home()]
    folders += [Path(name) for name in (*named, sys.prefix) if name]
    every = {f for folder in folders for f in (folder, folder.resolve())}
    absolute = [f for f in every if f.is_absolute() and f.name]
    return sorted(absolute, key=lambda f: -len(f.parts))
