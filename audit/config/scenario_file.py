"""Scenario files: plain data of limited size, checked before Hydra sees them.

A file from elsewhere must not cost memory, read the machine or run code. It is one
YAML document, small, shallow, and free of Hydra's own sections; its strings may refer
to other settings (`${defense.dpsgd.clip_norm}`) and to nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audit.data import untrusted
from audit.errors import UserError, brief

MOST_BYTES = 2**15
MOST_VALUES = 5_000  # an alias counts as often as it is used
DEEPEST = 20
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
HYDRAS = {"defaults": "a scenario is one file", "hydra": "it is not for scenarios"}


def read(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a file of at most `most` bytes. Raises UserError."""
    try:
        return untrusted.text(path, most)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def load(path: Path) -> Any:
    """Return a scenario file for Hydra. Raises UserError, which names file and line."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    text = read(path)
    try:
        _check_size(text)
        config = OmegaConf.create(text)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        line = f", line {at.line + 1}" if at else ""
        raise UserError(f"{path}{line}: {error.problem}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError) as error:
        why = str(error).strip().split("\n")[0]
        raise UserError(f"cannot read {path}: {why}") from None
    for word in HYDRAS.keys() & config.keys():
        raise UserError(f"{path}: unknown key {word}; {HYDRAS[word]}")
    return config


def _check_size(text: str) -> None:
    """Refuse too many values, aliases written out, and too deep a nesting."""
    import yaml

    sizes = dict[str, int]()  # of what has an anchor
    inside: list[tuple[str | None, int]] = []  # anchor of a container, values before
    count = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((event.anchor, count))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = inside.pop()
            sizes |= {anchor: count - before + 1} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in inside):
                raise UserError(f"*{event.anchor} stands inside of itself")
            count += sizes.get(event.anchor, 0)
        if not count and isinstance(event, yaml.ScalarEvent | yaml.SequenceStartEvent):
            raise UserError("no settings, key: value")
        count += isinstance(event, yaml.NodeEvent)
        if count > MOST_VALUES:
            raise UserError(f"more than {MOST_VALUES:,} values, aliases written out")
        if len(inside) > DEEPEST:
            raise UserError(f"nested more than {DEEPEST} levels deep")
    if not count:
        raise UserError("no settings, key: value")


def check_references(settings: Any) -> None:
    """Refuse strings that refer to anything but the plain value of another setting.

    Args:
      settings: plain data in which nothing is resolved yet.

    Raises:
      UserError: naming the setting, for a resolver (`${oc.env:HOME}`), a reference to
        a reference, or to a whole section.
    """
    for where, text in _strings(settings, ""):
        check_word(text, f"{where}=")
        for key in REFERENCE.findall(text):
            value = _at(settings, key)
            if isinstance(value, dict | list) or "${" in str(value):
                what = key if isinstance(value, dict) else f"{key}={brief(value)}"
                raise UserError(
                    f"{what} is no valid number or word, and {where}={brief(text)} "
                    "refers to it"
                )


def check_word(text: str, where: str = "") -> None:
    """Refuse text with a resolver, by its name. Raises UserError."""
    if "${" not in (other := REFERENCE.sub("", text)):
        return
    resolver = re.search(r"\$\{([^{}:]*):", other)
    what = f"the resolver {resolver[1]!r} is refused" if resolver else "unknown form"
    raise UserError(
        f"{where}{brief(text)}: {what}; a setting may refer to another by its name "
        f"alone, as ${{seed}} does"
    )


def _strings(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and text of every string."""
    if isinstance(value, str):
        yield where, value
    items = value.items() if isinstance(value, dict) else ()
    for name, below in enumerate(value) if isinstance(value, list) else items:
        yield from _strings(below, f"{where}.{name}".lstrip("."))


def _at(settings: Any, key: str) -> Any:
    """Return what a dotted name refers to, or None."""
    for part in key.split("."):
        if isinstance(settings, list):
            settings = dict(zip(map(str, range(len(settings))), settings, strict=True))
        settings = settings.get(part) if isinstance(settings, dict) else None
    return settings
