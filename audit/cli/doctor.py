"""What this machine has, each probe a finding and never a traceback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from audit.engine import store
from audit.errors import UserError, counted

WIDTH = 120
FEW = 5  # records of a class

Status = Literal["ok", "note", "problem"]


class Finding(NamedTuple):
    """One line of the doctor."""

    name: str
    status: Status
    text: str


def diagnose() -> list[Finding]:
    """Run every probe; a probe that breaks is a problem, not a crash."""
    findings: list[Finding] = []
    for name, probe in PROBES.items():
        try:
            for finding in probe():
                findings.append(finding)  # one at a time: the probe may break later
        except Exception as error:  # whatever breaks, the other probes still run
            text = f"{type(error).__name__}: {error}"
            findings.append(Finding(name, "problem", text))
    return findings


def examine(word: str) -> list[Finding]:
    """Check data of one's own, as `data=` names them; UserError if there is no file."""
    from audit.data import local
    from audit.data.dataset import DataError, digest, repeats

    if not word.startswith(local.PREFIX):
        raise UserError(f"data={word}: doctor looks into {local.PREFIX}PATH.npz")
    path = local.located(word)
    try:
        mine = local.read(path)
    except DataError as error:
        return [Finding("data", "problem", str(error))]
    findings = [
        Finding("data", "ok", f"{mine.name}: {mine.note}"),
        Finding("digest", "ok", digest(mine.x_train, mine.y_train)[:16]),
    ]
    if mine.x_test is not None:
        text = f"{len(mine.x_train)} records train, {len(mine.x_test)} test"
        findings.append(Finding("split", "ok", text))
    if mine.columns:
        findings.append(Finding("columns", "ok", ", ".join(mine.columns)))
    again = repeats(mine.x_train)
    if again:
        text = (
            f"{again} training records stand there more than once: a target that the "
            f"attacker knows already is no secret; drop them by "
            f"i = np.unique(x, axis=0, return_index=True)[1]; x, y = x[i], y[i]"
        )
        findings.append(Finding("duplicates", "note", text))
    for label, count in zip(*np.unique(mine.y_train, return_counts=True), strict=True):
        if mine.y_train.dtype.kind != "f" and count < FEW:
            few = counted(count, "record")
            text = f"{few}; the attacker's pool may hold none of them"
            findings.append(Finding(f"class {label}", "note", text))
    return findings


def advice(extra: str = "") -> str:
    """Return the command that installs the suite, from a checkout or from an index."""
    checkout = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"
    if not checkout.is_file():
        return (
            f"pip install 'breachmark[{extra}]'" if extra else "pip install breachmark"
        )
    return f"pip install -e '.[{extra}]'" if extra else "pip install -e ."


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    new = tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 11)
    yield Finding("python", "ok" if new else "problem", f"{version} (3.11 or newer)")


def _packages() -> Iterator[Finding]:
    version = store.installed("breachmark")["breachmark"]
    checkout = "run from a checkout, not installed"
    yield Finding("breachmark", "ok" if version else "note", version or checkout)
    packages = store.installed("jax", "jaxlib", "flax", "optax", "dp-accounting")
    for package, version in packages.items():
        absent = f"not installed: {advice()}"
        yield Finding(package, "ok" if version else "problem", version or absent)


def _devices() -> Iterator[Finding]:
    import jax

    devices = jax.devices()
    yield Finding("backend", "ok", f"{jax.default_backend()}, devices: {len(devices)}")
    for device in devices:
        limit = (device.memory_stats() or {}).get("bytes_limit")  # None on a CPU
        memory = f", {limit / 2**30:.1f} GiB" if limit else ""
        text = f"{device.platform}: {device.device_kind}{memory}"
        yield Finding(f"device {device.id}", "ok", text)
    if jax.default_backend() == "cpu":
        text = f"none; {advice('cuda12')} for CUDA"
        yield Finding("accelerator", "note", text)


def _memory() -> Iterator[Finding]:
    yield Finding("cpus", "ok", str(os.cpu_count() or "unknown"))
    counted = set(getattr(os, "sysconf_names", ()))
    if not {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= counted:
        yield Finding("memory", "note", "unknown on this system")
        return
    page, free = os.sysconf("SC_PAGE_SIZE") / 2**30, "unknown"
    total = os.sysconf("SC_PHYS_PAGES") * page
    if "SC_AVPHYS_PAGES" in counted:
        free = f"{os.sysconf('SC_AVPHYS_PAGES') * page:.1f}"
    text = f"{total:.1f} GiB, {free} free"
    yield Finding("memory", "ok" if total >= 4 else "note", text)


def _data() -> Iterator[Finding]:
    from audit import data

    missing = f"not here; AUDIT_DATA={os.environ.get('AUDIT_DATA') or '(unset)'}"
    unsought: dict[str, list[str]] = {}  # by the reason
    for name in data.names():
        try:
            origin = data.where(name)
        except data.DataError as error:
            unsought.setdefault(str(error), []).append(name)
        else:
            yield Finding(f"data {name}", "ok" if origin else "note", origin or missing)
    for reason, names in unsought.items():
        text = f"{reason}; not looked for: {', '.join(names)}"
        yield Finding("data", "problem", text)


def _lpips() -> Iterator[Finding]:
    from audit.statistics import lpips

    path = lpips.weights_source()
    try:
        lpips.load_weights()
    except lpips.WeightsUnavailable as error:
        yield Finding("LPIPS weights", "problem", str(error))
    else:
        yield Finding("LPIPS weights", "ok", str(path))


def _cache() -> Iterator[Finding]:
    from audit import data

    folder = data.cache_folder()
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR") or folder / "xla"
    for name, path in (("cache", folder), ("compilation cache", Path(compiled))):
        try:
            store.make_writable(path, "AUDIT_CACHE")
        except UserError as error:
            yield Finding(name, "problem", str(error))
        else:
            yield Finding(name, "ok", str(path))


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        absent = []
        for module in modules:
            spec = None
            with contextlib.suppress(ModuleNotFoundError):  # not even its package
                spec = importlib.util.find_spec(module)
            absent += [module] if spec is None else []
        text = f"no {', '.join(absent)}; {advice(extra)}"
        if absent:
            yield Finding(f"extra {extra}", "note", text)
        else:
            yield Finding(f"extra {extra}", "ok", "installed")


EXTRAS = {
    "launch": (
        "hydra_plugins.hydra_joblib_launcher",
        "hydra_plugins.hydra_submitit_launcher",
    ),
    "lpips": ("lpips",),
}
PROBES: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": _python,
    "packages": _packages,
    "devices": _devices,
    "memory": _memory,
    "data": _data,
    "LPIPS": _lpips,
    "cache": _cache,
    "extras": _extras,
}


def render(findings: list[Finding]) -> str:
    """Return the findings as aligned text, wrapped at 120 columns."""
    width = max((len(f.name) for f in findings), default=0)
    texts = []
    for finding in findings:
        head = f"{finding.status:<8} {finding.name:<{width}}  "
        indent = " " * len(head)
        wrapper = textwrap.TextWrapper(WIDTH, head, indent, break_on_hyphens=False)
        texts.append(wrapper.fill(finding.text))
    return "\n".join(texts)
