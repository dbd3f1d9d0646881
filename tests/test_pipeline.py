"""A whole audit on small data: rows, bounds, files, replay, calibration."""

import json
import re
import subprocess

import numpy as np
import pytest

from audit import pipeline
from audit.__main__ import main
from audit.config import compose
from audit.engine import shadow
from audit.errors import UserError
from audit.games import reconstruction
from audit.report import columns, markdown, terminal
from audit.scorecard import card as cards
from audit.scorecard.view import SHORT
from tests.commands import composed, refused
from tests.games import worlds

SMALL = [
    "scenario=binary_mnist", "data=digits", "runs=2", "accounting_runs=2",
    "splits.augment=400",
    "attack.reconstructor.epochs=3", "attack.reconstructor.width=32",
    "attack.reconstructor.width_last=32", "attack.matched_filter.repeats=1",
    "attack.matched_filter.components=8",
    "attack.matched_filter.width=16", "attack.matched_filter.denoiser_steps=50",
    "attack.transcript_bayes.width=16", "attack.transcript_bayes.denoiser_steps=50",
    "attack.transcript_bayes.components=8",
    "lanes.tile=128", "defenses=[sgd,dpsgd,dpsgd_strong,fim]",
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
    return cards.load(folder)


def test_an_attack_that_only_the_line_up_does_not_suit_is_skipped(tmp_path):
    words = ["defenses=[sgd]", "attacks=[class_mean,transcript_bayes]"]
    assert main(["run", *SMALL[:-1], *words, f"out={tmp_path / 'out'}"]) == 0
    trials = cards.load(tmp_path / "out").trials
    assert [(t.attack, t.status) for t in trials] == [
        ("class_mean", "ok"), ("transcript_bayes", "skipped"),
    ]  # fmt: skip


def row(card, defense, attack):
    return next(t for t in card.trials if (t.defense, t.attack) == (defense, attack))


def names(row):
    return {flag.name for flag in row.flags}


def test_files_are_whole_and_every_planned_trial_is_accounted_for(card, folder):
    assert {f.name for f in folder.iterdir()} == FILES | {"store"}
    assert (folder / "reconstructions.png").read_bytes()[:4] == b"\x89PNG"
    planned = {(d, a) for d in card.scenario.defense for a in card.scenario.attack}
    assert {(t.defense, t.attack) for t in card.trials} == planned
    assert len(card.trials) == len(planned) == 28
    # there is no transcript without noise, and no replay with it
    skipped = {(t.defense, t.use) for t in card.trials if t.status != "ok"}
    noisy = {d for d in card.scenario.defense if d != "sgd"}
    unplayed = {("sgd", "transcript_bayes")} | {
        (d, "unrolled_inversion") for d in noisy
    }
    assert skipped == unplayed


def test_numbers_agree_with_the_arrays(card):
    for t in (t for t in card.trials if t.result is not None):
        mse, r = card.arrays[f"{t.defense}/{t.attack}/mse"], t.result
        np.testing.assert_allclose(r.mse, mse.mean())
        np.testing.assert_allclose(r.mse_se, mse.std(ddof=1) / np.sqrt(len(mse)))
        np.testing.assert_allclose(r["bias2"] + r["variance"], r.mse, rtol=1e-9)
        headline = r.headline
        assert (headline.metric, headline.better) == ("mse", "lower")
        assert (headline.value, headline.standard_error) == (r.mse, r.mse_se)
        assert headline.floor == card.floor.mse
    for label, defense in card.defenses.items():
        for b in defense.bounds:
            mean = card.arrays[f"{label}/{b.name}"].mean()
            np.testing.assert_allclose(float(b.mean), mean)  # JSON has infinity as text
        if defense.dfil:
            dfil = card.arrays[f"{label}/dfil"]
            np.testing.assert_allclose(defense.dfil["mean"], dfil.mean())
            np.testing.assert_allclose(card.arrays[f"{label}/cramer_rao"], 1 / dfil)


def test_the_floor_is_the_class_mean(card):
    for t in card.trials:
        if t.use == "class_mean":
            np.testing.assert_allclose(t.result.mse, card.floor.mse, rtol=1e-6)


def test_bounds_say_for_whom_and_undefended_has_none(card):
    sgd = card.defenses["sgd"]
    assert (sgd.bounds, sgd.dfil, sgd.epsilon) == ([], None, None)
    assert "no-bound" in names(row(card, "sgd", "reconstructor"))
    bounds = {b.name: b for b in card.defenses["dpsgd"].bounds}
    assert set(bounds) == set(SHORT) - {"closed_world"}  # no prior is published
    assert bounds["cramer_rao"].holds_for == "unbiased attackers"
    assert bounds["finite_prior"].holds_for.startswith("any attacker, targets drawn")
    assert not bounds["van_trees"].ranked
    assert bounds["hammersley_chapman_robbins"].log10 < -1000
    flags = set().union(*map(names, card.trials))
    assert not {"below-bound-unexplained", "non-finite"} & flags


def test_stronger_noise_leaks_less(card):
    weak, strong = card.defenses["dpsgd"], card.defenses["dpsgd_strong"]
    assert strong.dfil["mean"] < weak.dfil["mean"] / 50
    assert strong.epsilon.replace_one.tight < weak.epsilon.replace_one.tight / 10
    for epsilon in (weak.epsilon, strong.epsilon):
        for pair in (epsilon.replace_one, epsilon.add_remove):
            assert pair.tight <= pair.rdp


def test_stand_in_data_and_augmentation_are_flagged(card):
    common = columns.common_flags(card)
    assert common["data-stand-in"] == "digits, not mnist"
    assert common["augmented-pool"] == "a pool of 400 made from 150 images"
    assert card.data.splits["pool_distinct"] == 150


def test_oracles_are_not_ranked_and_wins_are_counted_against_them(card):
    for label in card.defenses:
        assert columns.strongest(card, label).attack != "nearest_neighbour"
    for t in (t for t in card.trials if t.result is not None):
        mine = card.arrays[f"{t.defense}/{t.attack}/mse"]
        oracle = card.arrays[f"{t.defense}/nearest_neighbour/mse"]
        if t.result.oracle:
            assert "win_rate" not in t.result
        else:
            assert t.result["win_rate"] == (mine < oracle).mean()
    assert "saw augmented copies" in terminal.notes(card)


def test_terminal_table_fits_120_columns_without_losing_a_word(card):
    text = terminal.table(card)
    assert max(map(len, text.split("\n"))) <= 120
    assert "…" not in text
    for label in card.defenses:
        assert label in text


def test_json_round_trip(card, folder):
    text = cards.to_json(card)
    assert cards.to_json(cards.from_json(text, arrays=card.arrays)) == text
    plain = json.loads((folder / "scorecard.json").read_text())
    assert plain["provenance"]["versions"]["jax"]
    with pytest.raises(UserError, match="schema 99"):
        cards.from_json(json.dumps(plain | {"schema": 99}))


def test_markdown_has_every_trial_and_the_replay_command(card):
    text = markdown.render(card, ["reconstructions.png"])
    assert "![reconstructions](reconstructions.png)" in text
    for t in card.trials:
        assert re.search(rf"\| {t.defense} \| {t.attack} \| ", text)
    assert "python -m audit run scenario=binary_mnist data=digits" in text


def run(out, *words, code=0):
    """Run the small audit with further words, and return its card."""
    assert main(["run", *SMALL, *words, f"out={out}"]) == code
    return cards.load(out)


def test_the_same_command_gives_the_same_numbers(card, tmp_path):
    """Replayed elsewhere, without the first run's store, and with a shorter line-up."""
    attacks = "attacks=[reconstructor,nearest_neighbour]"
    again = run(tmp_path, "defenses=[dpsgd,fim]", attacks)
    assert len(again.trials) == 4
    assert {f"{t.defense}/{t.attack}/mse" for t in again.trials} <= set(again.arrays)
    for name, array in again.arrays.items():
        np.testing.assert_array_equal(array, card.arrays[name], err_msg=name)


def test_a_folder_with_another_run_is_left_alone(folder, capsys):
    before = (folder / "scorecard.json").read_bytes()
    line = refused(capsys, "run", *SMALL, "seed=5", f"out={folder}")
    assert "another run" in line
    assert (folder / "scorecard.json").read_bytes() == before


def test_under_another_seed_one_attack_breaks_and_one_does_not_apply(
    card, tmp_path, monkeypatch, capsys
):
    """Numbers are others, a failure ends no other trial, and a skip has its reason."""
    real = reconstruction.play

    def broken(key, attack, *rest):
        if attack.threat_model.sees == {"target"}:
            raise RuntimeError("this attack is broken")
        return real(key, attack, *rest)

    monkeypatch.setattr(reconstruction, "play", broken)
    line_up = "attacks=[nearest_neighbour,class_mean,sum_inversion]"
    other = run(tmp_path, "seed=1", "defenses=[dpsgd,noisy_sum]", line_up, code=1)
    outcomes = {
        t.attack: (t.status, t.reason) for t in other.trials if t.defense == "dpsgd"
    }
    assert outcomes["nearest_neighbour"][0] == "failed"
    assert outcomes["class_mean"] == ("ok", None)
    assert outcomes["sum_inversion"] == ("skipped", "the defense is not sum")
    page = (tmp_path / "scorecard.md").read_text()
    assert "skipped, the defense is not sum" in page
    out, err = capsys.readouterr()
    assert "RuntimeError: this attack is broken" in err
    assert "nearest_neighbour on dpsgd: failed" in out

    assert other.provenance.scenario_digest != card.provenance.scenario_digest
    assert (other.arrays["dpsgd/dfil"] != card.arrays["dpsgd/dfil"]).all()
    np.testing.assert_array_equal(other.arrays["target"], card.arrays["target"])


@pytest.mark.slow
def test_calibration_reads_one(tmp_path, monkeypatch):
    """Efficient attack over 1/dFIL: 100 targets x 10 runs x 784 pixels, within .02."""
    monkeypatch.setattr(pipeline, "_lpips_weights", lambda: "not what is tested")
    assert main(["run", "scenario=calibration", "data=mnist5k", f"out={tmp_path}"]) == 0
    inversion = row(cards.load(tmp_path), "noisy_sum", "sum_inversion")
    result = inversion.result
    assert abs(result["against"]["cramer_rao"]["tightness"] - 1) < 0.02
    assert abs(result["bias2"]) < 0.01 * result.mse
    assert "below-bound-unexplained" not in names(inversion)


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
    assert cards._git(code.parent) == {"commit": commit, "dirty": False}
    code.write_text("changed")
    assert cards._git(code.parent) == {"commit": commit, "dirty": True}
    assert cards._git(tmp_path.parent) is None


SWEPT = {  # words -> lanes of the largest tile
    "scenario=epsilon_one_run data=digits defenses=[dpsgd] canaries.audits=2 "
    "training.steps=1": 1,
    # four reference models are one sweep, and the target models another
    "scenario=dirdp_scale_mia data=digits defenses=[sgd] attacks=[coin] runs=2 "
    "membership.shadows=2 membership.calibration=2 training.steps=1": 4,
    "scenario=private_cnn_exposed data=mnist5k defenses=[sgd] attacks=[class_mean] "
    "sets.mnist5k.splits.fixed=9 sets.mnist5k.splits.targets=2 runs=2 "
    "training.batch_size=3 training.steps=1": 2,
    "scenario=private_cnn_mnist5k data=mnist5k defenses=[sgd] attacks=[class_mean] "
    "sets.mnist5k.splits.fixed=9 runs=2 training.batch_size=3 training.steps=1 "
    "fisher.records=0": 2,
    # these fill their tiles up
    "scenario=calibration data=digits defenses=[noisy_sum] attacks=[class_mean] "
    "runs=1": 64,
    "scenario=epsilon_audit data=digits defenses=[dpsgd] runs=32 training.steps=1": 64,
}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(w, marks=pytest.mark.slow if "private_cnn" in w else ())
        for w in SWEPT
    ],
)
def test_memory_is_counted_for_the_tiles_that_are_made(monkeypatch, words):
    """A game that trains few large networks is not refused for a tile of many."""
    swept, works = [], []
    run, workload = shadow._Sweep.run, pipeline.workload

    def spied_run(sweep):
        swept.append(sweep.engine.lanes.tile)
        return run(sweep)

    def spied_workload(*given):
        works.append(workload(*given))
        return works[-1]

    monkeypatch.setattr(shadow._Sweep, "run", spied_run)
    monkeypatch.setattr(pipeline, "workload", spied_workload)
    scenario, _ = composed(*words.split(), "lanes.tile=64")
    pipeline.audit(scenario, shadow.Engine(scenario.lanes))
    assert [work.tile for work in works] == [max(swept)] == [SWEPT[words]]


def test_runs_in_parts_are_the_same_experiment():
    """They round as another machine does: committed records are found in both."""
    words = "scenario=calibration", "data=digits"
    whole, parts, tiles = (
        composed(*words, *more)[0].resolved()
        for more in ((), ("lanes.checkpoint=1",), ("lanes.tile=7",))
    )
    assert whole == parts != tiles


def test_what_an_attack_gets_is_kept_by_all_that_can_change_it(monkeypatch):
    """LPIPS, runs in parts, devices, and what the defense's own runs are kept by."""
    scenario, _ = composed("scenario=calibration", "data=digits")
    parts, _ = composed("scenario=calibration", "data=digits", "lanes.checkpoint=1")
    task = pipeline.load(scenario, compose.play(scenario)).task
    learner = worlds.learner(task, "noisy_sum")
    (attack, *_), none = scenario.attacks, "no LPIPS weights"

    def address(scenario=scenario, weights=none, devices=1):
        address_of = pipeline.addresses(scenario, "data", weights, devices)
        return address_of(learner, attack)

    first = address()
    assert address() == first
    assert address(weights=[np.zeros(3)]) != first
    assert address(scenario=parts) != first
    assert address(devices=2) != first
    monkeypatch.setattr(shadow, "threads", lambda: 77)
    assert address() != first


def test_a_finished_attack_is_not_played_again(folder, monkeypatch):
    """The same command takes what every attack got from the store, bit for bit."""
    before, play = cards.load(folder), reconstruction.play

    def floor_alone(key, attack, *others):
        assert not attack.threat_model.sees, "an attack was played again"
        return play(key, attack, *others)

    monkeypatch.setattr(reconstruction, "play", floor_alone)
    assert main(["run", *SMALL, f"out={folder}"]) == 0
    after = cards.load(folder)
    assert cards.plain(after.trials) == cards.plain(before.trials)
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(after.arrays[name], array)


def test_what_is_added_to_a_line_up_alone_is_played(tmp_path, monkeypatch):
    """Nor does it change a bit of what the others got; their own settings do."""
    monkeypatch.chdir(tmp_path)
    play, played = reconstruction.play, []

    def counted(key, attack, runs, *others):
        played.append(runs.learner.label)
        return play(key, attack, runs, *others)

    monkeypatch.setattr(reconstruction, "play", counted)

    def run(*words):
        played.clear()
        assert main(["run", *SMALL[:-1], "runs=1", "accounting_runs=1", *words]) == 0
        played.remove("sgd")  # the floor, which is no row
        newest = max(
            tmp_path.glob("results/runs/*/scorecard.json"),
            key=lambda path: path.stat().st_mtime_ns,
        )
        return row(cards.load(newest.parent), "sgd", "ridge"), sorted(played)

    two, three = "attacks=[class_mean,ridge]", "attacks=[nearest_neighbour,ridge]"
    before, first = run("defenses=[sgd]", two)
    after, added = run("defenses=[sgd,dpsgd]", three)
    _, changed = run("defenses=[sgd,dpsgd]", three, "attack.ridge.held_out=0.2")
    assert (first, added) == (["sgd"] * 2, ["dpsgd"] * 2 + ["sgd"])
    assert changed == ["dpsgd", "sgd"]
    others = {"win_rate": None}  # of the oracle's row, which came later
    assert cards.plain(after.result) | others == cards.plain(before.result) | others


def test_shadow_models_that_attackers_share_are_trained_once(tmp_path, monkeypatch):
    """The store serves the second attacker, and what it holds is not compared again."""
    counted, compared = [], []
    keep, check = shadow._Sweep._keep, shadow._Sweep._check_stored

    def kept(self, finished, address):
        if "shadow models" in self.what:
            counted.append((self.learner.label, len(finished)))
        keep(self, finished, address)

    def checked(self, shards):
        compared.extend(shards)
        check(self, shards)

    monkeypatch.setattr(shadow._Sweep, "_keep", kept)
    monkeypatch.setattr(shadow._Sweep, "_check_stored", checked)
    words = ["defenses=[sgd,dpsgd]", "attack.matched_filter.repeats=3"]
    words += ["attacks=[class_mean,reconstructor,ridge,matched_filter]"]
    assert main(["run", *SMALL[:-1], *words, f"out={tmp_path / 'out'}"]) == 0
    tiles = -(-400 // 128)
    assert counted.count(("sgd", 1)) == tiles
    assert counted.count(("dpsgd", 1)) == tiles + -(-2 * 400 // 128)
    assert compared == []
