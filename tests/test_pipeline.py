"""A whole audit on small data: rows, bounds, files, replay, calibration."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from audit.__main__ import main
from audit.report import columns, markdown, terminal
from audit.scorecard import card as scorecard

SMALL = [
    "scenario=binary_mnist", "data=digits", "runs=2", "accounting_runs=2",
    "attack.reconstructor.epochs=3", "attack.reconstructor.width=32",
    "attack.reconstructor.width_last=32", "lanes.tile=128",
]  # fmt: skip
FILES = {
    "scorecard.md", "scorecard.json", "scorecard.npz", "reconstructions.png",
    "mse_vs_bound.png",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One small audit, run by the command line."""
    out = tmp_path_factory.mktemp("audit") / "out"
    assert main(["run", *SMALL, f"out={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def card(folder):
    return scorecard.load(folder)


def test_files_are_there_and_whole(folder):
    assert {f.name for f in folder.iterdir()} == FILES | {"store"}
    assert (folder / "reconstructions.png").read_bytes()[:4] == b"\x89PNG"


def test_every_planned_trial_is_accounted_for(card):
    planned = {
        (d, a) for d in card.scenario["defense"] for a in card.scenario["attack"]
    }
    assert {(t["defense"], t["attack"]) for t in card.trials} == planned
    assert len(card.trials) == len(planned) == 18
    assert {t["status"] for t in card.trials} == {"ok"}


def test_numbers_agree_with_the_arrays(card):
    for t in card.trials:
        key = f"{t['defense']}/{t['attack']}"
        mse, r = card.arrays[f"{key}/mse"], t["result"]
        np.testing.assert_allclose(r["mse"], mse.mean())
        np.testing.assert_allclose(r["mse_se"], mse.std(ddof=1) / np.sqrt(len(mse)))
        np.testing.assert_allclose(r["bias2"] + r["variance"], r["mse"], rtol=1e-9)
    for label, own in card.defenses.items():
        for b in own["bounds"]:
            np.testing.assert_allclose(
                b["mean"], card.arrays[f"{label}/{b['name']}"].mean()
            )
        if own["dfil"]:
            dfil = card.arrays[f"{label}/dfil"]
            np.testing.assert_allclose(own["dfil"]["mean"], dfil.mean())
            np.testing.assert_allclose(card.arrays[f"{label}/cramer_rao"], 1 / dfil)


def test_the_floor_is_the_class_mean(card):
    for t in card.trials:
        if t["use"] == "class_mean":
            np.testing.assert_allclose(t["result"]["mse"], card.floor["mse"], rtol=1e-6)


def test_undefended_has_no_bound_and_says_so(card):
    own = card.defenses["sgd"]
    assert own["bounds"] == []
    assert own["dfil"] is None
    assert own["epsilon"] is None
    row = next(
        t
        for t in card.trials
        if (t["defense"], t["attack"]) == ("sgd", "reconstructor")
    )
    assert "no-bound" in {f["name"] for f in row["flags"]}


def test_bounds_say_for_whom(card):
    held = {b["name"]: b for b in card.defenses["dpsgd"]["bounds"]}
    assert set(held) == set(columns.SHORT)
    assert held["cramer_rao"]["holds_for"] == "unbiased attackers"
    assert held["finite_prior"]["holds_for"].startswith("any attacker, prior =")
    assert not held["van_trees"]["ranked"]
    assert held["hammersley_chapman_robbins"]["log10"] < -1000


def test_no_attack_is_below_a_bound_that_binds_it(card):
    flags = {f["name"] for t in card.trials for f in t["flags"]}
    assert "below-bound-unexplained" not in flags
    assert "non-finite" not in flags


def test_stronger_noise_leaks_less(card):
    weak, strong = card.defenses["dpsgd"], card.defenses["dpsgd_strong"]
    assert strong["dfil"]["mean"] < weak["dfil"]["mean"] / 50
    eps = [d["epsilon"]["replace_one"]["tight"] for d in (weak, strong)]
    assert eps[1] < eps[0] / 10
    for d in (weak, strong):
        for adjacency in ("replace_one", "add_remove"):
            assert d["epsilon"][adjacency]["tight"] <= d["epsilon"][adjacency]["rdp"]


def test_stand_in_data_and_augmentation_are_flagged(card):
    common = columns.common_flags(card)
    assert common["data-stand-in"] == "digits, not mnist"
    assert common["augmented-pool"] == "150 images made 2000"
    assert card.data["splits"]["pool_distinct"] == 150


def test_oracles_are_not_ranked(card):
    for label in card.defenses:
        assert columns.strongest(card, label)["attack"] != "nearest_neighbour"


def test_wins_are_counted_against_the_oracle(card):
    for t in card.trials:
        mine = card.arrays[f"{t['defense']}/{t['attack']}/mse"]
        oracle = card.arrays[f"{t['defense']}/nearest_neighbour/mse"]
        if t["result"]["oracle"]:
            assert "win_rate" not in t["result"]
        else:
            assert t["result"]["win_rate"] == (mine < oracle).mean()
    assert "saw augmented copies" in terminal.notes(card)


def test_terminal_table_fits_120_columns_without_losing_a_word(card):
    text = terminal.table(card)
    assert max(map(len, text.split("\n"))) <= 120
    assert "…" not in text
    for label in card.defenses:
        assert label in text


def test_json_round_trip(card, folder):
    again = scorecard.from_json(scorecard.to_json(card), card.arrays)
    assert scorecard.to_json(again) == scorecard.to_json(card)
    held = json.loads((folder / "scorecard.json").read_text())
    assert held["provenance"]["versions"]["jax"]
    with pytest.raises(ValueError, match="schema 99"):
        scorecard.from_json(json.dumps(held | {"schema": 99}))


def test_markdown_has_every_trial_and_the_replay_command(card):
    text = markdown.render(card, ["reconstructions.png"])
    assert "![reconstructions](reconstructions.png)" in text
    for t in card.trials:
        assert re.search(rf"\| {t['defense']} \| {t['attack']} \| ", text)
    assert "python -m audit run scenario=binary_mnist data=digits" in text


def test_the_same_command_gives_the_same_numbers(card, folder, tmp_path):
    """Replayed elsewhere, without the first run's store."""
    assert main(["run", *SMALL, f"out={tmp_path}"]) == 0
    again = scorecard.load(tmp_path)
    assert set(again.arrays) == set(card.arrays)
    for name, array in card.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array, err_msg=name)


def test_another_seed_gives_other_numbers(card, tmp_path):
    words = [
        *SMALL,
        "seed=1",
        "defenses=[dpsgd]",
        "attacks=[class_mean]",
        f"out={tmp_path}",
    ]
    assert main(["run", *words]) == 0
    other = scorecard.load(tmp_path)
    assert other.provenance["scenario_digest"] != card.provenance["scenario_digest"]
    assert (other.arrays["dpsgd/dfil"] != card.arrays["dpsgd/dfil"]).all()
    np.testing.assert_array_equal(other.arrays["target"], card.arrays["target"])


def test_a_folder_with_another_run_is_left_alone(folder, capsys):
    before = (folder / "scorecard.json").read_bytes()
    assert run_exit([*SMALL, "seed=5", f"out={folder}"]) == 2
    assert "another run" in capsys.readouterr().err
    assert (folder / "scorecard.json").read_bytes() == before


def run_exit(words):
    try:
        return main(["run", *words])
    except SystemExit as stop:
        return stop.code


def test_a_broken_attack_fails_alone(tmp_path, monkeypatch, capsys):
    from audit.games import base

    real = base.reconstruction_game

    def broken(key, attack, *rest):
        if attack.threat_model.sees == {"target"}:
            raise RuntimeError("this attack is broken")
        return real(key, attack, *rest)

    monkeypatch.setattr(base, "reconstruction_game", broken)
    words = [
        *SMALL,
        "defenses=[sgd]",
        "attacks=[nearest_neighbour,class_mean]",
        f"out={tmp_path}",
    ]
    assert main(["run", *words]) == 1
    held = scorecard.load(tmp_path)
    status = {t["attack"]: t["status"] for t in held.trials}
    assert status == {"nearest_neighbour": "failed", "class_mean": "ok"}
    said = capsys.readouterr()
    assert "RuntimeError: this attack is broken" in said.err
    assert "nearest_neighbour on sgd: failed" in said.out


def test_calibration_reads_one(tmp_path):
    """Efficient attack over 1/dFIL: 100 targets x 10 runs x 784 pixels, within .02."""
    assert main(["run", "scenario=calibration", "data=mnist5k", f"out={tmp_path}"]) == 0
    held = scorecard.load(tmp_path)
    row = next(t for t in held.trials if t["attack"] == "sum_inversion")
    assert abs(row["result"]["against"]["cramer_rao"]["tightness"] - 1) < 0.02
    assert abs(row["result"]["bias2"]) < 0.01 * row["result"]["mse"]
    assert "below-bound-unexplained" not in {f["name"] for f in row["flags"]}


def test_inapplicable_pairs_are_skipped_with_the_reason(tmp_path):
    words = [
        *SMALL,
        "defenses=[sgd]",
        "attacks=[class_mean,sum_inversion]",
        f"out={tmp_path}",
    ]
    assert main(["run", *words]) == 0
    row = scorecard.load(tmp_path).trials[1]
    assert (row["status"], row["reason"]) == ("skipped", "the defense is not sum")
    assert (
        "skipped, the defense is not sum"
        in (Path(tmp_path) / "scorecard.md").read_text()
    )


def test_results_of_earlier_runs_do_not_make_a_checkout_dirty(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        done = subprocess.run(
            ["git", *who, *words], cwd=tmp_path, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    code, left = tmp_path / "audit" / "run.py", tmp_path / "results" / "page.md"
    for file in (code, left):
        file.parent.mkdir()
        file.write_text("as committed")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all of it")
    commit = git("rev-parse", "HEAD")
    left.write_text("of a run")
    (left.parent / "another.md").write_text("of a run")
    assert scorecard._git(code.parent) == {"commit": commit, "dirty": False}
    code.write_text("changed")
    assert scorecard._git(code.parent) == {"commit": commit, "dirty": True}
    assert scorecard._git(tmp_path.parent) is None
