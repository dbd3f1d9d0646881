"""`verify`: equal, differs or stale; and no row makes it do anything else."""

import itertools
import json
import re

import numpy as np
import pytest

import audit.__main__ as cli
from audit.cli import verify
from audit.cli.verify import Number
from audit.config import workspace
from audit.config.hydra_app import composed
from audit.scorecard import average_seeds, schema
from audit.scorecard import card as cards
from tests.commands import printed, refused
from tests.pages import RESULTS

SMALL = ["scenario=calibration", "data=digits", "runs=2", "lanes.tile=64"]


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    """A row this code has just made."""
    out = tmp_path_factory.mktemp("verify") / "out"
    assert cli.main(["run", *SMALL, f"out={out}"]) == 0
    return json.loads((out / "scorecard.json").read_text())


def written(where, data):
    path = where / "scorecard.json"
    path.write_text(json.dumps(data))
    return path


def verified(capsys, where, data, code=0):
    return printed(capsys, "verify", str(written(where, data)), code=code)


def changed(data, change):
    card = json.loads(json.dumps(data))
    change(card)
    return card


def move(card, by):
    headline = card["trials"][1]["result"]["headline"]
    headline["value"] += by * headline["standard_error"]


def test_a_row_replays_to_equal(row, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = verified(capsys, tmp_path, row)
    assert out.rstrip().split("\n")[-1].startswith("equal: ")
    assert "changed since" not in out
    assert [p.name for p in tmp_path.iterdir()] == ["scorecard.json"]  # no trace


# The runs below are the row's own card again: what is compared is under test, not JAX.


@pytest.fixture
def replayed(row, monkeypatch):
    again = cards.from_json(json.dumps(row))
    monkeypatch.setattr(cli, "_again", lambda scenario: again)


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize(("by", "code"), [(0.0, 0), (1.9, 0), (2.1, 1), (-2.1, 1)])
def test_two_standard_errors_are_allowed(row, by, code, tmp_path, capsys):
    out = verified(capsys, tmp_path, changed(row, lambda c: move(c, by)), code)
    word = {0: "equal", 1: "differs beyond tolerance"}[code]
    assert out.rstrip().split("\n")[-1].startswith(f"{word}: ")


def put(card, path, value):
    """Change the value at a path of a card, or take it away."""
    *steps, last = path.split(".")
    for step in steps:
        card = card[step]
    card[last] = value
    if value is None:
        del card[last]


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize(
    ("path", "value", "text"),  # a value of None is left out
    [
        ("provenance.code", "0" * 64, "the code that can change it"),
        ("provenance.code", None, "does not say which code"),
        ("provenance.versions.jax", "0.0.1", "jax 0.0.1, here"),
        ("scenario.accounting_runs", 77, "scenario.accounting_runs"),
    ],
)
def test_a_row_by_other_code_is_stale_unless_it_is_reproduced(
    row, path, value, text, tmp_path, capsys
):
    other = changed(row, lambda card: put(card, path, value))
    out = verified(capsys, tmp_path, other)
    assert text in out
    assert "equal: " in out
    out = verified(capsys, tmp_path, changed(other, lambda c: move(c, 9)), 3)
    for part in (text, "stale: ", "trials.sum_inversion on noisy_sum.mse"):
        assert part in out


@pytest.mark.usefixtures("replayed")
def test_a_number_that_cannot_be_had_again_is_a_difference(row, tmp_path, capsys):
    trials = [*row["trials"], row["trials"][1] | {"attack": "another"}]
    out = verified(capsys, tmp_path, row | {"trials": trials}, 1)
    assert "another on noisy_sum: in the row, not here" in out


def test_data_of_a_plug_in_are_found_by_its_word(row, tmp_path):
    """Their name on the card has the digest of one version."""
    blobs = {"kind": "data", "name": "blobs", "origin": "folder x", "code": "0" * 64}
    own = changed(row, lambda card: put(card, "provenance.plugins", [blobs]))
    words = verify.replay_words(cards.from_json(json.dumps(own)), tmp_path)
    assert [w for w in words if w.startswith("data=")] == ["data=blobs"]


def test_an_error_that_the_replay_alone_raises_is_a_difference(
    row, monkeypatch, tmp_path, capsys
):
    """Equal numbers do not hide that the replay's noise is not accounted for."""
    error = {"name": "unclipped", "level": "error", "text": "twice the norm"}
    again = changed(row, lambda c: c["trials"][1].update(flags=[error]))
    monkeypatch.setattr(
        cli, "_again", lambda scenario: cards.from_json(json.dumps(again))
    )
    out = verified(capsys, tmp_path, row, 1)
    assert "sum_inversion on noisy_sum: unclipped: an error here" in out
    verified(capsys, tmp_path, again, 0)


@pytest.mark.parametrize(
    ("theirs", "ours", "equal"),
    [(1.0, 1.0005, True), (1.0, 1.002, False), (float("inf"), float("inf"), True),
     (float("inf"), 1.0, False), (float("nan"), float("nan"), True), (0.0, 0.0, True)],
)  # fmt: skip
def test_numbers_without_an_error_have_a_thousandth(theirs, ours, equal):
    allowed = verify.LEAST * abs(theirs)
    assert Number("x", theirs, ours, allowed).equal is equal


# Rows that are not what their replay gives --------------------------------------------


def committed(name):
    return json.loads((RESULTS / name / "scorecard.json").read_text())


def verdict(row, replay):
    """The verdict on one card if another is its replay, by the same code."""
    return verify.compare(*(cards.from_json(json.dumps(c)) for c in (row, replay)), [])


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/scorecard.json")), ids=lambda p: p.parent.name
)
def test_committed_rows_are_equal_to_themselves(path):
    card = schema.load(path)
    same = verify.compare(card, card, [])
    assert (same.word, same.missing, same.left_out) == ("equal", (), ())


def trials(card, attack):
    return [t for t in card["trials"] if t["attack"] == attack]


def without_the_strongest(card):
    card["trials"] = [t for t in card["trials"] if t["attack"] != "unrolled_inversion"]


def failed(card):
    for trial in trials(card, "unrolled_inversion"):
        trial.update(status="failed", reason="out of memory", result=None, flags=[])


def called_an_oracle(card):
    trials(card, "unrolled_inversion")[0]["result"]["oracle"] = True


def with_any_error(card):
    """An error that allows everything."""
    headline = trials(card, "ridge")[0]["result"]["headline"]
    headline.update(value=0.9, standard_error=1.0)


def with_a_small_error(card):
    """A number that is more precise than it is."""
    trials(card, "ridge")[0]["result"]["headline"]["standard_error"] /= 2.1


def without_an_error(card):
    trials(card, "ridge")[0]["result"]["headline"]["standard_error"] = None


def without_an_epsilon(card):
    card["defenses"]["dpsgd"]["epsilon"] = None


def with_a_smaller_fisher_information(card):
    """The third number under 1/dFIL is the inverse of its mean."""
    card["defenses"]["dpsgd"]["dfil"]["mean"] /= 1.01


def of_bound(statistic, name="cramer_rao"):
    def changed(card):
        (bound,) = (b for b in card["defenses"]["dpsgd"]["bounds"] if b["name"] == name)
        bound[statistic] *= 2.1

    return changed


def of_result(key, by):
    def changed(card):
        trials(card, "ridge")[0]["result"][key] += by

    return changed


def with_another_rate(card):
    """What an attack finds at 1% false positives."""
    point = trials(card, "lira")[0]["result"]["operating"]["shadows"][0]
    assert point["nominal"] == 0.01
    point["tpr"]["value"] /= 2


RECONSTRUCTION, MEMBERSHIP = "binary_mnist-mnist5k", "mia_mnist5k-mnist5k"
STRONGEST = "defenses.sgd.strongest.mse"


@pytest.mark.parametrize(
    ("card", "change", "named"),
    [
        (RECONSTRUCTION, without_the_strongest, "unrolled_inversion on sgd: here, not"),
        (RECONSTRUCTION, without_the_strongest, f"{STRONGEST}: 0.0055"),
        (RECONSTRUCTION, failed, "unrolled_inversion on sgd: here, not in the row"),
        (RECONSTRUCTION, called_an_oracle, f"{STRONGEST}: "),
        (RECONSTRUCTION, with_any_error, "ridge on sgd.mse: 0.9 in the row"),
        (RECONSTRUCTION, with_a_small_error, "ridge on sgd.mse.standard_error: "),
        (RECONSTRUCTION, without_an_error, "on sgd.mse.standard_error: here, not"),
        (RECONSTRUCTION, without_an_epsilon, "dpsgd.epsilon: here, not in the row"),
        (RECONSTRUCTION, with_a_smaller_fisher_information, "dpsgd.dfil.mean: "),
        (RECONSTRUCTION, of_bound("min"), "dpsgd.cramer_rao.min: "),
        (RECONSTRUCTION, of_bound("median"), "dpsgd.cramer_rao.median: "),
        (
            RECONSTRUCTION, of_bound("standard_error", "finite_prior"),
            "dpsgd.finite_prior.standard_error: ",
        ),
        (RECONSTRUCTION, of_result("mse", 0.01), "ridge on sgd.result.mse: "),
        (RECONSTRUCTION, of_result("lpips", 0.5), "ridge on sgd.result.lpips: "),
        (RECONSTRUCTION, of_result("ssim", -0.5), "ridge on sgd.result.ssim: "),
        (RECONSTRUCTION, of_result("win_rate", -0.5), "ridge on sgd.result.win_rate: "),
        (MEMBERSHIP, with_another_rate, "result.operating.shadows.0.tpr.value: "),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_what_a_row_shows_is_what_its_replay_gives(card, change, named):
    replay = committed(card)
    judged = verdict(changed(replay, change), replay)
    assert judged.word == "differs"
    assert named in verify.render(judged)


def test_odd_numbers_are_differences():
    """The schema leaves to a game what it adds."""
    row = committed(RECONSTRUCTION)

    def odd(card):
        card["defenses"]["dpsgd"]["eta"] = {"mean": "much"}
        result = trials(card, "ridge")[0]["result"]
        result |= {"beats_floor": 7.0, "win_rate_se": "x", "ssim": [[]], "lpips": "nan"}

    judged = verdict(changed(row, odd), row)
    assert judged.word == "differs"
    assert {n.name.split(".")[-1] for n in judged.numbers if not n.equal} == {
        "beats_floor",
        "lpips",
    }
    assert judged.missing == ()


def test_what_newer_code_says_of_a_trial_is_no_difference():
    row = committed(RECONSTRUCTION)
    older = changed(row, lambda card: trials(card, "ridge")[0]["result"].pop("ssim"))
    assert verdict(older, row).word == "equal"
    assert verdict(row, older).missing == ("trials.ridge on sgd.result.ssim",)


def test_a_seed_changes_standard_errors_by_less_than_is_allowed():
    """In all but a few pairs of seeds; another machine draws the same seed.

    Not of `unrolled_inversion`: one target that stays unsolved decides its mean and the
    standard error, which differs by more in 5 of 9 pairs, and nothing is judged there.
    """
    settings, ratios = {}, []
    for path in sorted(RESULTS.rglob("scorecard.json")):
        card = schema.load(path)
        rows = {
            (t.defense, t.attack): t.result.headline.standard_error
            for t in card.trials
            if t.result is not None and t.result.headline.standard_error
            if t.attack != "unrolled_inversion"
        }
        settings.setdefault(average_seeds.but_seed(card), []).append(rows)
    for seeds in settings.values():
        for one, other in itertools.combinations(seeds, 2):
            for row in one.keys() & other.keys():
                ratios.append(max(one[row] / other[row], other[row] / one[row]))
    assert len(ratios) >= 1000
    assert np.mean(np.array(ratios) > verify.FACTOR) < 0.002


def test_the_smaller_error_is_the_tolerance():
    """Of the row and of its replay: neither is widened by an error of its own."""
    row = committed(RECONSTRUCTION)

    def moved(card):
        result = trials(card, "ridge")[0]["result"]
        result["headline"]["value"] += 1.5 * result["headline"]["standard_error"]
        result["headline"]["standard_error"] *= 1.9
        return result

    assert verdict(changed(row, moved), row).word == "equal"
    assert verdict(row, changed(row, moved)).word == "equal"

    def exact(card):
        moved(card)["headline"]["standard_error"] = 0.0

    assert verdict(changed(row, exact), row).word == "differs"


# Words of a row that do more than set up a scenario -----------------------------------

COMMAND = "provenance.command"
RUN = "python -m audit run scenario=calibration"
REFUSED = {
    "rm -rf /": "is not one of python -m audit run",
    "python -m audit reproduce all": "is not one of python -m audit run",
    "python -m audit run scenario=../../evil": "is not of its scenario=calibration",
    "python -m audit run scenario=binary_mnist": "is not of its scenario=calibration",
    f"{RUN} scenario=binary_mnist": "is not of its scenario=calibration",
    f"{RUN} --config-dir /tmp/evil": "'--config-dir', which is not replayed",
    f"{RUN} -m seed=0,1": "'-m', which is not replayed",
    f"{RUN} hydra.callbacks.x._target_=os.system": "which is not replayed",
    f"{RUN} hydra/launcher=joblib": "which is not replayed",
    f"{RUN} +x=1": "'+x=1', which is not replayed",
    f"{RUN} ~attacks": "which is not replayed",
    f"{RUN} 'seed=${{oc.env:HOME}}'": "which is not replayed",
    f"{RUN}; touch /tmp/x": "'touch', which is not replayed",
    f"{RUN};touch=x": "is not of its scenario=calibration",
    f"{RUN} 'seed=0": "cannot read the row's command",
    f"{RUN} seed=-1": "seed=-1",
    f"{RUN} sedd=1": "unknown key sedd",
}


@pytest.mark.parametrize("command", REFUSED)
def test_commands_that_are_not_replayed(row, command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "_again", lambda *a: pytest.fail("something was trained"))
    path = written(tmp_path, changed(row, lambda c: put(c, COMMAND, command)))
    assert REFUSED[command] in refused(capsys, "verify", str(path))


def test_a_row_cannot_choose_where_things_are_written_or_which_data(row, tmp_path):
    command = f"{row['provenance']['command']} out=/etc/x store=/etc/y"
    other = changed(row, lambda card: put(card, COMMAND, command))
    card = cards.from_json(json.dumps(other))
    words = verify.replay_words(card, tmp_path)
    assert words[-2:] == ["data=digits", f"out={tmp_path}"]
    assert not any("/etc" in word for word in words)
    assert len([w for w in words if w.startswith(("out=", "data="))]) == 2


def test_a_row_is_validated_first(tmp_path, capsys):
    path = str(written(tmp_path, {"schema": 2}))
    assert "field required" in refused(capsys, "verify", path)
    assert "verify which row?" in refused(capsys, "verify")
    line = refused(capsys, "verify", "/no/such.json")
    assert "cannot read /no/such.json: No such file" in line


@pytest.mark.parametrize(
    "further_seeds",
    [False, pytest.param(True, marks=pytest.mark.slow)],  # of a row that is there
)
def test_committed_rows_can_be_composed(further_seeds, tmp_path, monkeypatch):
    """Their words still exist, whatever data this machine has."""
    monkeypatch.chdir(tmp_path)
    folders = {path.parent for path in RESULTS.glob("*/scorecard.json")}
    seeds = {f for f in folders if re.search(r"-seed\d+$", f.name)}
    assert seeds
    for folder in sorted(seeds if further_seeds else folders - seeds):
        path = folder / "scorecard.json"
        card = schema.load(path)
        scenario = verify.compose(card, tmp_path / "out")
        assert scenario.data == card.data["name"]
        assert list(scenario.resolved()["defense"]) == list(card.scenario["defense"])


def test_a_row_is_composed_again_only_where_its_line_up_differs(
    row, tmp_path, monkeypatch
):
    calls = []

    def counted(words):
        calls.append(words)
        return composed(words)

    monkeypatch.setattr(verify.hydra_app, "composed", counted)
    card = schema.load(written(tmp_path, row))
    verify.compose(card, tmp_path)
    assert len(calls) == 1
    shorter = changed(row, lambda card: card["scenario"]["attack"].popitem())
    card = schema.load(written(tmp_path, shorter))
    attacks = verify.compose(card, tmp_path).attacks
    assert [entry.label for entry in attacks] == list(shorter["scenario"]["attack"])
    assert len(calls) == 3


# Who chose the settings ---------------------------------------------------------------


def test_who_chose_goes_into_the_card_and_changes_nothing_else(tmp_path):
    who = "chosen={noisy_sum: {by: the source, cost: none}}"
    plain, chosen = (composed([*SMALL, *words])[0] for words in ([], [who]))
    assert chosen.spec.chosen["noisy_sum"].by == "the source"
    assert plain.resolved() == chosen.resolved()
    assert len({workspace.place(s, tmp_path)[1] for s in (plain, chosen)}) == 1


def test_who_chose_outside_a_shorter_line_up_is_left_out():
    words = ["scenario=binary_mnist", "data=digits", "defenses=[sgd]"]
    assert set(composed(words)[0].spec.chosen) == {"sgd"}


def test_who_chose_for_nobody_is_an_error(capsys):
    words = ["show", *SMALL, "chosen={noisy_smu: {by: x, cost: y}}"]
    assert "did you mean 'noisy_sum'" in refused(capsys, *words)
