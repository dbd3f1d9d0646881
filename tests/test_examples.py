"""The example package: found by its entry points, lawful, audited as it stands."""

import json
import math
import re
import tomllib

import numpy as np
import pytest

from audit.__main__ import main
from audit.accounting import rdp
from audit.config import registry
from audit.testing import check_scenario
from audit.types import Examples, Readings
from tests import ROOT

EXAMPLE = ROOT / "examples" / "breachmark_example"
SMALL = [
    "data=digits", "runs=1", "accounting_runs=1", "sets.digits.splits.targets=5",
    "sets.digits.splits.pool=40", "lanes.tile=8",
]  # fmt: skip


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The package as an installer would leave it: importable, with its entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"breachmark_example-{project['version']}.dist-info"
    info.mkdir()
    name = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{name}")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{k} = {v}" for k, v in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return project


def test_it_is_found_by_its_entry_points(installed, capsys):
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    for name in ("dpsgd_cosine", "linear_reconstructor", "le_cam", "two_digits"):
        entry = output.split(f"\n  {name} ")[1]
        rows = re.split(r"\n(?! {4})", entry)[0]  # a long one goes on, indented
        text = " ".join(rows.split())
        assert text.endswith("[package breachmark-example 0.1.0]")


@pytest.mark.slow  # the last step of CI does so, too
def test_it_is_audited_as_it_stands(installed, tmp_path):
    out = tmp_path / "out"
    assert main(["run", "scenario=cosine_digits", *SMALL, f"out={out}"]) == 0
    card = json.loads((out / "scorecard.json").read_text())
    assert {p["kind"] for p in card["provenance"]["plugins"]} == {
        "defense", "attack", "bound", "scenario",
    }  # fmt: skip
    bounds = {b["name"] for b in card["defenses"]["dpsgd_cosine"]["bounds"]}
    assert {"le_cam", "cramer_rao"} <= bounds
    assert {t["status"] for t in card["trials"]} == {"ok"}


@pytest.mark.slow
def test_it_keeps_the_laws(installed):
    """And its other plug-ins do by their own tests, which `new` copies and runs."""
    check_scenario("cosine_digits", *SMALL, run=False)


def test_the_bound_is_what_two_corners_cost(installed):
    """Against the exact error of telling two corners apart by one Gaussian release."""
    le_cam = registry.find("bound", "le_cam")
    nobody = Examples(np.zeros((0, 4)), np.zeros(0))

    def at(shift):
        curve = lambda orders: rdp.gaussian(orders, shift)
        return le_cam(Readings(4, (0.0, 1.0), None, curve, None, nobody))

    for shift in (0.1, 1.0, 3.0):
        total_variation = math.erf(shift / 2 / math.sqrt(2))
        exact = (1 - total_variation) / 8  # Le Cam before Bretagnolle and Huber
        assert 0 < float(at(shift).value) <= exact
    assert float(at(0.0).value) == pytest.approx(1 / 16)
    far = at(100.0)
    assert far.log10 == pytest.approx(
        (-1.01 * 100**2 / 2 - math.log(16)) / math.log(10)
    )
    nothing = Readings(4, (-math.inf, math.inf), None, None, None, nobody)
    assert le_cam(nothing) is None
