"""The doctor: whatever is broken is a finding, and the others are still found."""

import importlib.metadata
import os
from types import SimpleNamespace

import jax
import pytest

from audit import data
from audit.cli import doctor
from audit.cli.doctor import Finding
from audit.config import workspace
from audit.statistics import lpips


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("AUDIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AUDIT_DATA", raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(lpips, "load_weights", lambda: None)  # slow to read


def diagnose():
    findings = {f.name: f for f in doctor.diagnose()}
    assert {f.status for f in findings.values()} <= {"ok", "note", "problem"}
    return findings


def raising(error):
    def probe(*args):
        raise error

    return probe


def test_a_machine_that_can_run_the_tests_has_no_problem():
    findings = diagnose()
    assert not [f for f in findings.values() if f.status == "problem"]
    assert findings["jax"].text == jax.__version__
    assert jax.default_backend() in findings["backend"].text
    assert findings["data mnist5k"] == Finding("data mnist5k", "ok", "embedded")
    assert {f"data {name}" for name in data.names()} <= set(findings)


@pytest.mark.parametrize("name", doctor.PROBES)
def test_a_broken_probe_is_a_finding(name, monkeypatch):
    def probe():
        yield Finding("before", "ok", "it broke")
        raise RuntimeError("on fire")

    monkeypatch.setitem(doctor.PROBES, name, probe)
    findings = diagnose()
    assert findings[name] == Finding(name, "problem", "RuntimeError: on fire")
    assert "before" in findings
    assert len(findings) > len(doctor.PROBES)


def test_the_memory_of_a_device(monkeypatch):
    card = SimpleNamespace(id=0, platform="gpu", device_kind="card")
    card.memory_stats = lambda: {"bytes_limit": 16 * 2**30}
    monkeypatch.setattr(jax, "devices", lambda: [card])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    findings = diagnose()
    assert findings["device 0"].text == "gpu: card, 16.0 GiB"
    assert "accelerator" not in findings


def test_absent_packages(monkeypatch):
    absent = raising(importlib.metadata.PackageNotFoundError("optax"))
    monkeypatch.setattr(importlib.metadata, "version", absent)
    findings = diagnose()
    assert findings["breachmark"].status == "note"
    assert findings["optax"].status == "problem"


def test_a_system_that_does_not_count_its_memory(monkeypatch):
    monkeypatch.setattr(os, "sysconf_names", {"SC_PAGE_SIZE": 1})
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    findings = diagnose()
    assert findings["memory"] == Finding("memory", "note", "unknown on this system")
    assert findings["cpus"].text == "unknown"


def test_a_data_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path / "nowhere"))
    findings = diagnose()
    assert findings["data"].status == "problem"
    assert str(tmp_path / "nowhere") in findings["data"].text
    for name in data.names():
        embedded = data.SOURCES[name][1] is None
        assert (f"data {name}" in findings) == embedded
        assert embedded or name in findings["data"].text


def test_absent_data_is_a_note(monkeypatch):
    monkeypatch.setattr(data, "where", lambda name: None)
    assert diagnose()["data mnist"].status == "note"


def test_absent_weights(monkeypatch):
    absent = raising(lpips.WeightsUnavailable("no LPIPS weights at nowhere"))
    monkeypatch.setattr(lpips, "load_weights", absent)
    expected = Finding("LPIPS weights", "problem", "no LPIPS weights at nowhere")
    assert diagnose()["LPIPS weights"] == expected


def test_an_unwritable_cache_says_what_to_do(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUDIT_CACHE", str(tmp_path / "file" / "below"))
    findings = diagnose()
    assert findings["cache"].status == "problem"
    assert "AUDIT_CACHE=DIR" in findings["cache"].text


def test_the_compilation_cache_is_where_a_run_puts_it(monkeypatch):
    settings = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    workspace.prepare_jax()
    place = settings["jax_compilation_cache_dir"]
    assert diagnose()["compilation cache"].text == place


def test_extras(monkeypatch):
    extras = {"here": ("json.decoder",), "absent": ("no_such_package.module",)}
    monkeypatch.setattr(doctor, "EXTRAS", extras)
    findings = diagnose()
    assert findings["extra here"].status == "ok"
    assert findings["extra absent"].status == "note"
    assert "no_such_package.module" in findings["extra absent"].text


def test_text_is_aligned_and_narrow():
    long = " ".join(f"/some/place/{i}" for i in range(40))
    broken = Finding("a longer name", "problem", f"line\nbreaks {long}")
    findings = [Finding("a", "ok", "fine"), broken]
    first, second, *rest = doctor.render(findings).splitlines()
    assert first.index("fine") == second.index("line breaks")
    assert rest
    assert all(line.startswith(" " * first.index("fine")) for line in rest)
    assert all(len(line) <= doctor.WIDTH for line in [first, second, *rest])
    assert doctor.render([]) == ""


@pytest.mark.parametrize(
    ("there", "says"), [(True, "-e '.[x]'"), (False, "'breachmark[x]'")]
)
def test_advice_fits_how_the_suite_is_installed(there, says, monkeypatch):
    monkeypatch.setattr(doctor.Path, "is_file", lambda path: there)
    assert doctor.advice("x") == f"pip install {says}"
    assert doctor.advice() == f"pip install {'-e .' if there else 'breachmark'}"
