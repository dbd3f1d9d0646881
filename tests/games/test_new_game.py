"""A game from elsewhere is one file; and what every game shows an attack."""

import json
from pathlib import Path

import jax.numpy as jnp
import pytest

from audit.__main__ import main
from audit.config import plugins, registry
from audit.games import base
from audit.models import networks
from audit.report.leaderboard import markdown
from audit.types import Observation, ThreatModel
from tests.conftest import records
from tests.games import worlds

PLUGIN = Path(__file__).parent / "pair_plugin"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    place = tmp_path_factory.mktemp("pairs") / "pair-digits"
    words = ["run", "scenario=pair_digits", f"out={place}", "--plugins", str(PLUGIN)]
    assert main(words) == 0
    return place


def test_a_new_game_runs_and_ranks(out):
    card = json.loads((out / "scorecard.json").read_text())
    assert card["scenario"]["overlap"] is True
    assert {p["kind"] for p in card["provenance"]["plugins"]} >= {"game", "attack"}
    results = {(t["defense"], t["attack"]): t["result"] for t in card["trials"]}
    assert len(results) == 4
    assert all(r["targets"] == 8 for r in results.values())
    mean, grey = (results["sgd", f"pair_{k}"]["headline"] for k in ("mean", "grey"))
    assert mean["floor"] == pytest.approx(mean["value"])
    assert mean["value"] < grey["value"]
    # grey fails without a defense, too; the mean sees nothing
    assert "no valid attack, attack-dead" in (out / "scorecard.md").read_text()


@pytest.mark.parametrize("installed", [True, False])
def test_a_new_game_prints(out, tmp_path, installed):
    """By its own view; and by its headline where the plug-in is not at hand."""
    card = json.loads((out / "scorecard.json").read_text())
    for trial in card["trials"]:  # as if grey were no dead attack
        trial["flags"] = [f for f in trial["flags"] if f["level"] != "error"]
    place = tmp_path / out.name
    place.mkdir()
    (place / "scorecard.json").write_text(json.dumps(card))
    folders = [str(PLUGIN)] if installed else []
    with plugins.only(folders):
        files = markdown.write(tmp_path)
        assert main(["report", str(place)]) == 0
    table = files[0][0].read_text()
    assert "pair_mean" in table
    assert ("; both " in table) == installed  # equal in all rows, hence said once
    assert ("value ± s.e." in table) != installed


def test_a_new_game_refuses_what_it_cannot_play(capsys):
    words = ["run", "scenario=pair_digits", "--plugins", str(PLUGIN)]
    assert main([*words, "sets.digits.splits.targets=0"]) == 2
    assert "the game pair needs targets" in capsys.readouterr().err
    assert main([*words, "canaries={}"]) == 2
    assert "canaries: a setting of canary, one_run; the game is pair" in (
        capsys.readouterr().err
    )


# What is shown ------------------------------------------------------------------------

FEW = {"membership": {"shadows": 2, "calibration": 2}}
SETTINGS = {
    "attribute": {"attribute": "age"},
    "canary": {"canaries": {"count": 1}},
    "one_run": {"canaries": {"count": 4}},
    "identification": {"candidates": {"priors": [3]}},
    "membership": FEW,
    "membership_replace_one": FEW,
}


def made(name):
    """Return a game of the suite."""
    settings = registry.check("game", name, SETTINGS.get(name, {}), "")
    return registry.find("game", name)(**settings)


@pytest.mark.parametrize("name", registry.built_in("game"))
def test_every_word_a_game_grants_shows_a_field(name):
    fields = base.OBSERVED_BY | base.KNOWN_BY
    for word in made(name).grants:
        assert any(word in words for words in fields.values()), word


@pytest.mark.parametrize("field", base.OBSERVED_BY)
def test_observe_shows_what_was_declared_and_nothing_else(field):
    everything = dict.fromkeys(base.OBSERVED_BY, 1.0)
    for word in base.OBSERVED_BY[field]:
        for model in (
            ThreatModel("reconstruction", sees=frozenset({word})),
            ThreatModel("reconstruction", knows=frozenset({word})),
        ):
            shown = base.observe(model, **everything)._asdict()
            wanted = {f for f, by in base.OBSERVED_BY.items() if word in by}
            assert {f for f, v in shown.items() if v is not None} == wanted
    assert base.observe(ThreatModel("reconstruction"), **everything) == Observation()


N, PICTURE = 6, (4, 4, 1)
GUESSES = {
    "reconstruction": PICTURE,
    "leave_one_out": PICTURE,
    "attribute": (2,),
    "membership": (N,),
    "membership_replace_one": (N,),
    "canary": (),
    "one_run": (4,),
}


@pytest.mark.parametrize("name", GUESSES)
def test_an_attack_that_declares_nothing_is_shown_nothing(name):
    game, features = made(name), (4,) if name == "attribute" else PICTURE
    task = networks.binary_linear(features, 2)
    task = task if game.task is None else game.task(task)
    fixed, pool, targets = (records(n, features, 2, seed=n) for n in (N, 8, 3))
    fixed.x[:, 0] = fixed.x[:, 0] > 0.5
    columns, defense = (), ("dpsgd", {"steps": 2})
    if name == "attribute":
        columns, defense = ("age", "b", "c", "d"), ("output_perturbed_glm", {})
    targets = targets if game.targets else None
    problem = worlds.problem(task, fixed, pool, targets=targets, columns=columns)
    learner = worlds.learner(task, defense[0], **defense[1])
    spy = worlds.spy(game.goal, jnp.zeros(GUESSES[name]))
    runs = 1 if name == "one_run" else 2
    played = worlds.play(game, spy.attack, learner, worlds.table(problem, runs))
    assert played.numbers["fit"] == {"fitted": True}
    assert spy.knowledge[0].pool is pool
    assert spy.granted() == set()
    assert spy.observations
    assert spy.shown() == set()
