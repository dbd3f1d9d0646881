"""What this machine has, each probe a finding and never a traceback."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

WIDTH = 120


class Finding(NamedTuple):
    """One line of the doctor."""

    name: str
    status: Literal["ok", "note", "problem"]
    text: str


def diagnose() -> list[Finding]:
    """Run every probe; a probe that breaks is a problem, not a crash."""
    findings: list[Finding] = []
    for name, probe in PROBES.items():
        try:
            findings += probe()
        except Exception as error:
            findings.append(
                Finding(name, "problem", f"{type(error).__name__}: {error}")
            )
    return findings


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    new = tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 11)
    yield Finding("python", "ok" if new else "problem", f"{version} (3.11 or newer)")


def _packages() -> Iterator[Finding]:
    for package in ("breachmark", "jax", "jaxlib", "flax", "optax", "dp-accounting"):
        try:
            yield Finding(package, "ok", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "problem", "not installed: pip install -e .")


def _devices() -> Iterator[Finding]:
    import jax

    for device in jax.devices():
        held = device.memory_stats() or {}
        limit = held.get("bytes_limit")
        memory = f", {limit / 2**30:.1f} GiB" if limit else ""
        text = f"{device.platform}: {device.device_kind}{memory}"
        yield Finding(f"device {device.id}", "ok", text)
    if jax.default_backend() == "cpu":
        yield Finding(
            "accelerator", "note", "none; pip install -e '.[cuda12]' for CUDA"
        )


def _memory() -> Iterator[Finding]:
    page = os.sysconf("SC_PAGE_SIZE") / 2**30
    total = os.sysconf("SC_PHYS_PAGES") * page
    free = os.sysconf("SC_AVPHYS_PAGES") * page
    status: Literal["ok", "note"] = "ok" if total >= 4 else "note"
    yield Finding("memory", status, f"{total:.1f} GiB, {free:.1f} free")
    yield Finding("cpus", "ok", str(os.cpu_count()))


def _data() -> Iterator[Finding]:
    from audit import data

    for name in data.names():
        origin = data.where(name)
        missing = f"not here; AUDIT_DATA={os.environ.get('AUDIT_DATA') or '(unset)'}"
        status: Literal["ok", "note"] = "ok" if origin else "note"
        yield Finding(f"data {name}", status, origin or missing)


def _lpips() -> Iterator[Finding]:
    from audit import perceptual

    path = perceptual.weights_source()
    try:
        perceptual.load_weights()
    except perceptual.WeightsUnavailable as error:
        yield Finding("LPIPS weights", "problem", str(error))
    else:
        yield Finding("LPIPS weights", "ok", str(path))


def _cache() -> Iterator[Finding]:
    from audit import data

    folder = data.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR") or folder / "xla"
    yield Finding("cache", "ok", str(folder))
    yield Finding("compilation cache", "ok", str(compiled))


def _extras() -> Iterator[Finding]:
    extras = {
        "launch": "hydra_plugins.hydra_joblib_launcher",
        "lpips": "lpips",
    }
    for extra, module in extras.items():
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        text = "installed" if found else f"not installed; pip install -e '.[{extra}]'"
        yield Finding(f"extra {extra}", "ok" if found else "note", text)


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
    """Return the findings as aligned text, at most 120 columns."""
    name = max(len(f.name) for f in findings)
    lines = [f"{f.status:<8} {f.name:<{name}}  {f.text}" for f in findings]
    return "\n".join(
        line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in lines
    )
