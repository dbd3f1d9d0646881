"""Flags: each is raised by its fault and by nothing else."""

import re

import numpy as np
import pytest

from audit.report import columns, markdown
from audit.scorecard import flags
from audit.types import Bound
from tests import ROOT, pages

ELSEWHERE = (  # flags of one game
    "games/canary.py", "games/membership_rates.py", "games/identification.py",
)  # fmt: skip
RNG = np.random.default_rng(0)
FLOOR = 0.05 + 0.01 * RNG.normal(size=200)


def bound(name="cramer_rao", value=0.001, who="unbiased attackers", ranked=True):
    return Bound(name, np.full(200, value), who, "a theorem", ranked)


SOUND = flags.Measured(1.01, 0.01, 4.0, 0.99, "full", 1.02)
CLEAN = flags.FlagInputs(
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
    measured=SOUND,
    same_noise=0.2,
    null=FLOOR + 0.03,
    matched=(0.02, 0.03, 0.03),
    in_pool=(0, 200),
    late_gain=0.02,
)
ANY = bound("finite_prior", 0.04, "any attacker, prior = the pool")
ESTIMATED = ANY._replace(excess=lambda errors: 0.0, needed=201)
NO_BIAS = 1e-3 * RNG.normal(size=200)
FAULTS = {
    "non-finite": {"finite": False},
    "attack-dead": {"control": FLOOR + 0.001},
    "attack-feeble": {"control": FLOOR - 0.001},
    "no-control": {"control": None},
    "attack-below-floor": {"mse": FLOOR + 0.01},
    "below-bound-biased": {"bounds": (bound(value=0.5),)},
    "below-bound-unexplained": {"bounds": (ANY,)},
    "few-targets": {"bounds": (ESTIMATED,)},
    "no-bound": {"bounds": ()},
    "few-runs": {"runs": 1, "bias2": None},
    "data-stand-in": {"stand_in": "mnist5k, not mnist"},
    "augmented-pool": {"augmented": "a pool of 4000 made from 450 images"},
    "small-pool": {"small_pool": "no finite prior: no class of the pool has 20 images"},
    "diverged": {"measured": flags.Measured(lost="1 of 4 runs")},
    "wrong-noise": {"measured": flags.Measured(noise=0.5, noise_se=0.01)},
    "noise-not-measured": {"measured": flags.Measured(unmeasured="another law")},
    "unclipped": {"measured": flags.Measured(contribution=1.5)},
    "accountant-disagrees": {"measured": flags.Measured(divergence=0.2)},
    "shared-noise": {"measured": flags.Measured(shared=40.0)},
    "stale-cache": {"stale": "target runs: stored runs are not what is made now"},
    "label-leaked": {"label_leaked": True},
    "target-in-pool": {"in_pool": (3, 200)},
    "shuffled-targets": {"null": FLOOR, "mse": FLOOR, "matched": (0.001, 0.02, 0.02)},
    "null-beats-floor": {"null": FLOOR - 0.01, "mse": FLOOR - 0.03},
    "attack-undertrained": {"late_gain": 0.3},
    "picked-on-targets": {"picked": "settings were chosen on the scored targets"},
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


def levels(**changed):
    return {f.name: f.level for f in flags.raised(CLEAN._replace(**changed))}


def measured(noise, noise_se):
    return {"measured": flags.Measured(noise=noise, noise_se=noise_se)}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (measured(0.9, 0.01), {"wrong-noise": "error"}),  # less noise voids a bound
        (measured(1.1, 0.01), {"wrong-noise": "warning"}),
        (measured(0.8, 0.1), {}),  # judged by its standard error
        ({"same_noise": 20.0}, {"shared-noise": "error"}),
        ({"in_pool": (1, 200)}, {"target-in-pool": "warning"}),  # one twin of many
        ({"in_pool": (3, 200)}, {"target-in-pool": "error"}),
        # it works: not shuffled
        ({"null": FLOOR + 0.03, "matched": (0.0, 0.02, 0.02)}, {}),
        # no other order is better
        ({"null": FLOOR, "mse": FLOOR, "matched": (0.001, 0.001, 0.02)}, {}),
        # assumed priors are not counted against a row
        ({"bounds": (bound(), bound("van_trees", 0.5, ranked=False))}, {}),
        # oracles and the floor are not judged as attacks
        ({"control": FLOOR + 1, "mse": FLOOR + 1, "oracle": True}, {}),
        ({"control": FLOOR + 1, "mse": FLOOR + 1, "is_floor": True}, {}),
        (
            {"bounds": (bound(value=0.5),), "bias2": NO_BIAS},
            {"below-bound-unexplained": "error"},
        ),
        # bias explains one bound, and not the one for any attacker
        ({"bounds": (bound(value=0.5), ANY)}, {"below-bound-unexplained": "error"}),
        ({"bounds": (ANY, bound(value=0.5))}, {"below-bound-unexplained": "error"}),
    ],
)
def test_levels(changed, expected):
    assert levels(**changed) == expected


def test_flags_of_runs_need_no_attack():
    ran = flags.Ran(flags.Measured(noise=0.5, noise_se=0.01), stale="old")
    assert [f.name for f in flags.of_runs(ran)] == ["wrong-noise", "stale-cache"]


def test_a_card_without_attacks_shows_the_flags_of_its_runs():
    data = pages.plain()
    data["trials"] = []
    stale = [flag._asdict() for flag in flags.of_runs(flags.Ran(SOUND, "old"))]
    data["defenses"]["dpsgd"]["flags"] = stale
    data["defenses"]["sgd"].pop("flags", None)  # older cards have none
    shown = {v.label: columns.flags_of(v) for v in columns.lines(pages.card(data))}
    assert (shown["dpsgd"], shown["sgd"]) == ("stale-cache", "-")


def test_controls_and_measurements_are_printed():
    null = {"error": 0.05, "error_se": 0.001}
    auc = {"value": 0.51, "low": 0.48, "high": 0.54}
    beaten = {"error": 0.01, "beats_floor": True}
    data = pages.plain()
    measured = {"dpsgd": SOUND._asdict()}
    for label, defense in data["defenses"].items():
        defense["measured"] = measured.get(label)  # older cards have none
    first, last = data["trials"][0], {"oracle": True, "controls": {"null": null}}
    data["trials"] = [
        {**first, "attack": attack, "result": {**first["result"], **result}}
        for attack, result in {
            "a": {"oracle": False, "controls": {"null": null, "positive": beaten}},
            "b": {"oracle": False, "controls": {"null": auc, "positive": None}},
            "c": {"oracle": False, "controls": {"null": dict.fromkeys(null)}},
            "older": {"oracle": False, "controls": {}},
            "oracle": last,
        }.items()
    ]
    card, label = pages.card(data), first["defense"]
    assert markdown._controls(card) == [
        [label, "a", ".0500 ± .0010", ".0100", "yes"],
        [label, "b", ".510 [.480, .540]", "none", "-"],
        [label, "c", "none", "none", "-"],
    ]
    assert markdown._self_checks(card) == [
        ["dpsgd", "1.010", "4.000", ".990", "full", "1.020"],
    ]


def test_rows_void_for_ranking_are_errors():
    void = {flags.NOT_ATTACKED.name: flags.NOT_ATTACKED.level}
    for changed in FAULTS.values():
        void |= levels(**changed)
    of_games = {"null-leak"}
    assert {void[name] for name in flags.VOID - of_games} == {"error"}


def test_errors_come_first():
    row = CLEAN._replace(finite=False, stand_in="other data", bounds=())
    assert [f.level for f in flags.raised(row)] == ["error", "note", "note"]


def test_a_row_of_nans_is_void_and_nothing_crashes():
    row = CLEAN._replace(mse=np.full(200, np.nan), finite=False)
    assert "non-finite" in names(row)


def test_every_flag_has_a_paragraph_in_the_docs_and_every_paragraph_a_flag():
    code = [(ROOT / "audit" / file).read_text() for file in ELSEWHERE]
    raised = {n for c in code for n in re.findall(r'Flag\(\s*"([^"]+)"', c)}
    assert len(raised) == 8
    raised.add(flags.NOT_ATTACKED.name)
    text = (ROOT / "docs" / "flags.md").read_text()
    assert set(re.findall(r"^### `(.+)`", text, re.M)) == raised | set(FAULTS)
