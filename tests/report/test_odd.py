"""Odd and hostile cards: each costs its own row, and no command its life."""

import copy
import json
import os
import random
import re
from pathlib import Path

import pytest

from audit.__main__ import main
from audit.cli import verify
from audit.errors import UserError
from audit.report import html, odd, terminal
from audit.report.leaderboard import markdown as leaderboard
from audit.scorecard import schema
from tests import pages
from tests.commands import call, refused
from tests.pages import RESULTS

COMMITTED = [p.read_text() for p in sorted(RESULTS.glob("*/scorecard.json"))]
NOWHERE = Path(os.devnull)


def headline(card, **fields):
    for trial in card["trials"]:
        trial["result"]["headline"] |= fields


def nan(card):
    headline(card, value="nan", standard_error="nan")
    for trial in card["trials"]:
        trial["result"]["mse"] = "nan"


def infinite(card):
    headline(card, value="inf", standard_error="inf")


def steps_are_nan(card):
    """Attacks on what is released have a place on the scale, those on steps none."""
    for trial in card["trials"]:
        if trial["result"].get("shown"):
            trial["result"]["headline"]["value"] = "nan"


def no_models(card):
    for defense in card["defenses"].values():
        defense["utility"] |= {"models": 0, "test": 0, "accuracy": 2.0}


def no_spread(card):
    """An eta without its spread: no cell can show it."""
    next(iter(card["defenses"].values()))["eta"] = {"mean": 1.0}


SHOWN = {
    "mse is nan": nan,
    "an unknown game": lambda card: card["scenario"].update(game="nobody_s"),
    "no models": no_models,
    "nobody attacks": lambda card: card.update(trials=[]),
    "no defenses": lambda card: card.update(trials=[], defenses={}),
}
LEFT_OUT = {
    "no headline": lambda card: card["trials"][0]["result"].pop("headline"),
    "text for a number": lambda card: card["floor"].update(mse="small"),
    "models without end": lambda card: no_models(card) or next(
        iter(card["defenses"].values()))["utility"].update(models=10**400),
    "no spread": no_spread,
}  # fmt: skip


@pytest.fixture
def results(tmp_path):
    """A folder of two cards of one scenario, the second to be made odd."""
    pages.folder(tmp_path, "good", pages.plain(), ())
    data = pages.plain()
    data["scenario"]["accounting_runs"] = 7  # no seed of the first

    def change(how):
        how(data)
        pages.folder(tmp_path, "odd", data, ())
        return tmp_path

    return change


@pytest.mark.parametrize("how", [*SHOWN, *LEFT_OUT])
def test_an_odd_card_costs_its_own_row(how, results, capsys):
    folder = results((SHOWN | LEFT_OUT)[how])
    assert main(["leaderboard", f"results={folder}"]) == (how in LEFT_OUT)
    text, err = (folder / "LEADERBOARD.md").read_text(), capsys.readouterr().err
    assert re.search(r"\| dpsgd( \w+=\w+)* \|", text)  # rows that differ say in what
    assert ("left out: odd: " in err) == (how in LEFT_OUT)
    assert err.count("\n") == (how in LEFT_OUT)
    listed = "Left out, as they cannot be shown: odd."
    for page in (text, (folder / "leaderboard.html").read_text()):
        assert (listed in page) == (how in LEFT_OUT)


@pytest.mark.parametrize("how", [infinite, steps_are_nan])
def test_a_report_lacks_no_row_that_has_no_place_on_its_scale(how, results, capsys):
    folder = results(how) / "odd"
    assert call("report", str(folder)) == 0
    assert "left out" not in capsys.readouterr().err


def test_a_report_lacks_the_row_that_cannot_be_shown(results, capsys):
    folder = results(no_spread) / "odd"
    first, second, *_ = pages.plain()["defenses"]
    assert call("report", str(folder)) == 1
    err = capsys.readouterr().err
    assert f"left out: {first}: KeyError: 'sd'\n" in err
    assert f" on {first}: ValueError: its defense is left out\n" in err
    text = (folder / html.PAGE).read_text()
    assert second in text


def test_a_card_of_which_nothing_can_be_shown(results, monkeypatch, capsys):
    folder = results(nan)
    monkeypatch.setattr(html, "render", lambda *_: {}["x"])
    line = refused(capsys, "report", str(folder / "odd"))
    assert "this card cannot be shown: KeyError: 'x'" in line


# Sizes --------------------------------------------------------------------------------


def gigabyte(path):
    with path.open("wb") as file:
        file.truncate(10**9)


BIG = {
    "larger than 20,000,000 bytes": gigabyte,
    "no regular file": lambda path: os.mkfifo(path),
    "not JSON": lambda path: path.write_text('{"schema": ' + "[" * 10**6),
    "no scorecard": lambda path: path.write_text("[[]]"),
}


@pytest.mark.parametrize("what", BIG)
def test_what_is_too_large_is_not_read(what, tmp_path, capsys):
    (tmp_path / "x").mkdir()
    BIG[what](tmp_path / "x" / "scorecard.json")
    assert what in refused(capsys, "leaderboard", f"results={tmp_path}")
    if what != "no regular file":  # `report` finds no card there
        refused(capsys, "report", str(tmp_path / "x"))
    refused(capsys, "verify", str(tmp_path / "x"))


def test_a_bomb_beside_a_card_is_not_read(tmp_path, monkeypatch, capsys):
    import numpy as np

    folder = pages.folder(tmp_path, "x", pages.plain(), ())
    np.savez_compressed(folder / "scorecard.npz", a=np.zeros(10**6))
    monkeypatch.setattr(schema, "MOST_OF_ARRAYS", 10**6)
    assert "its arrays take" in refused(capsys, "report", str(folder))
    (folder / "scorecard.npz").write_bytes(b"PK")
    assert "cannot read" in refused(capsys, "report", str(folder))


# Generated ----------------------------------------------------------------------------

ODD = [
    None, True, 0, -1, 1, 1.5, -0.0, 1e308, -1e308, 5e-324, 10**400, -(10**30), "",
    "nan", "inf", "-inf", "x", "x" * 1999, pages.HOSTILE, "\u202e\ud7ff", "${a}", [],
    {}, [1], {"a": 1}, [[]], {"": {}}, "2", "reconstruction", "higher",
]  # fmt: skip


def mutated(rng):
    """Return a committed card with one to three fields changed, moved or taken away."""
    card = json.loads(rng.choice(COMMITTED))
    for _ in range(rng.choice([1, 1, 2, 3])):
        part, key = card, None
        while part and (key is None or rng.random() < 0.85):
            whole, key = part, rng.choice(list(part) if isinstance(part, dict) else
                                          range(len(part)))  # fmt: skip
            part = whole[key] if isinstance(whole[key], (dict, list)) else None
        match rng.randrange(8):
            case 0 | 1:
                del whole[key]
            case 2 if isinstance(whole, list):
                whole.append(copy.deepcopy(whole[key]))
            case 3 if isinstance(whole, dict):
                whole[rng.choice(["x", "", "<s>", "é" * 99])] = whole.pop(key)
            case _:
                whole[key] = rng.choice(ODD)
    return card


def in_one_line(command):
    try:
        return command()
    except UserError as error:
        text = str(error)
    assert "\n" not in text
    return None


def survives(seed, folder):
    """Whatever a card holds, each command ends with what it shows, or with one line."""
    place = pages.folder(folder, f"card{seed}", mutated(random.Random(seed)), ())
    card = in_one_line(lambda: schema.load(place / "scorecard.json"))
    if card is None:
        return
    page = lambda card: html.render(card, NOWHERE)
    text = lambda card: terminal.table(card) + terminal.notes(card)
    in_one_line(lambda: leaderboard.write(folder))
    in_one_line(lambda: odd.shown(card, page))
    in_one_line(lambda: odd.shown(card, text))
    in_one_line(lambda: verify.replay_words(card, NOWHERE))
    verify.render(verify.compare(card, card, []))


@pytest.mark.parametrize("seed", range(40))
def test_generated_cards_end_no_command(seed, tmp_path):
    survives(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(100))
def test_a_thousand_generated_cards_end_no_command(tens, tmp_path):
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        survives(seed, tmp_path / str(seed))
