"""Flags: each is raised by its fault and by nothing else."""

import re
from pathlib import Path

import numpy as np
import pytest

from audit import flags
from audit.types import Bound

RNG = np.random.default_rng(0)
FLOOR = 0.05 + 0.01 * RNG.normal(size=200)


def bound(name="cramer_rao", value=0.001, who="unbiased attackers", ranked=True):
    return Bound(name, np.full(200, value), who, "a theorem", ranked)


CLEAN = flags.Row(
    attack="reconstructor",
    oracle=False,
    is_floor=False,
    mse=FLOOR - 0.02,
    bias2=np.full(200, 0.01) + 1e-4 * RNG.normal(size=200),
    finite=True,
    floor=FLOOR,
    bounds=(bound(),),
    runs=4,
    control=FLOOR - 0.03,
    is_control=False,
    stand_in="",
    augmented="",
)
ANY = bound("finite_prior", 0.04, "any attacker, prior = the pool")
NO_BIAS = 1e-3 * RNG.normal(size=200)
FAULTS = {
    "non-finite": {"finite": False},
    "attack-dead": {"control": FLOOR + 0.001},
    "no-control": {"control": None},
    "attack-below-floor": {"mse": FLOOR + 0.01},
    "below-bound-biased": {"bounds": (bound(value=0.5),)},
    "below-bound-unexplained": {"bounds": (ANY,)},
    "no-bound": {"bounds": ()},
    "few-runs": {"runs": 1, "bias2": None},
    "data-stand-in": {"stand_in": "mnist5k, not mnist"},
    "augmented-pool": {"augmented": "450 images made 4000"},
}


def names(row):
    return {f.name for f in flags.raised(row)}


def test_a_clean_row_has_no_flag():
    assert names(CLEAN) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_raises_its_flag(name):
    assert names(CLEAN._replace(**FAULTS[name])) == {name}


def test_every_flag_has_a_fault():
    assert len(FAULTS) == len(flags.FLAGS) + 1  # below_bound raises two


def test_unbiased_attacks_below_an_unbiased_bound_are_not_explained():
    row = CLEAN._replace(bounds=(bound(value=0.5),), bias2=NO_BIAS)
    assert names(row) == {"below-bound-unexplained"}


def test_assumed_priors_are_not_held_against_a_row():
    row = CLEAN._replace(bounds=(*CLEAN.bounds, bound("van_trees", 0.5, ranked=False)))
    assert names(row) == set()


def test_oracles_and_the_floor_are_not_judged_as_attacks():
    for which in ({"oracle": True}, {"is_floor": True}):
        row = CLEAN._replace(control=FLOOR + 1, mse=FLOOR + 1, **which)
        assert names(row) == set()


def test_errors_come_first():
    row = CLEAN._replace(finite=False, stand_in="other data", bounds=())
    assert [f.level for f in flags.raised(row)] == ["error", "note", "note"]


def test_a_row_of_nans_is_void_and_nothing_crashes():
    row = CLEAN._replace(mse=np.full(200, np.nan), finite=False)
    assert "non-finite" in names(row)


def test_every_flag_of_an_audit_has_a_paragraph_in_the_docs():
    root = Path(__file__).parent.parent
    text = (root / "docs" / "flags.md").read_text()
    raised = re.findall(r'Flag\("([^"]+)"', (root / "audit" / "audited.py").read_text())
    assert len(raised) == 4
    for name in raised:
        assert f"### `{name}`" in text


def test_every_flag_has_a_paragraph_in_the_docs():
    text = (Path(__file__).parent.parent / "docs" / "flags.md").read_text()
    for name in FAULTS:
        assert f"### `{name}`" in text
