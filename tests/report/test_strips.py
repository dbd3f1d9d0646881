"""Where attacks stand between all there is to get and the floor, and what that says."""

import copy

import pytest

from audit.games import scoring
from audit.report import columns, strips, summary
from audit.report.leaderboard import standings
from audit.scorecard.schema import Headline
from audit.scorecard.view import NOT_TOLD_APART
from tests import pages


def headline(value, floor, metric="mse", error=None):
    better = "lower" if metric == "mse" else "higher"
    return Headline(
        metric=metric, value=value, standard_error=error, better=better, floor=floor
    )


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (headline(0.0, 0.05), 0.0),
        (headline(0.025, 0.05), 0.5),
        (headline(0.06, 0.05), 1.2),
        (headline(0.5, 0.5, "auc"), 1.0),
        (headline(0.75, 0.5, "auc"), 0.5),
        (headline(1.0, 0.125, "success"), 0.0),
        (headline(2.0, 0.0, "epsilon_lower"), None),  # no end of the scale
        (headline(0.1, None), None),
        (headline(0.1, 0.0), None),
        (headline("nan", 0.05), None),
    ],
)
def test_a_scale_goes_from_everything_to_the_floor(number, place):
    assert strips.place(number) == (place if place is None else pytest.approx(place))


def test_the_scale_parts_where_the_words_of_reconstruction_do():
    assert (strips.CLOSE, strips.LITTLE) == (scoring.CLOSE, scoring.LITTLE)


def test_a_strip_has_both_attacks_and_the_verdict_of_the_stronger():
    """The transcript of dpsgd tells twice as much as its release."""
    each = {s.defense: s for s in strips.strips(pages.card())}
    dpsgd = each["dpsgd"]
    assert dpsgd.final.attack == "matched_filter"
    assert dpsgd.transcript.attack == "transcript_bayes"
    assert dpsgd.transcript.place < dpsgd.final.place < 1
    assert dpsgd.final.low < dpsgd.final.place < dpsgd.final.high
    assert (dpsgd.epsilon, dpsgd.level) == ("5572.92", "warning")
    assert [limit.name for limit in dpsgd.limits] == ["finite prior"]
    assert each["sgd"].transcript is None
    assert (each["sgd"].level, each["dpsgd_eps1"].level) == ("error", "note")
    data = pages.plain()
    for t in data["trials"]:
        if (t["defense"], t["attack"]) == ("dpsgd", "transcript_bayes"):
            t["result"]["mse"] = t["result"]["headline"]["value"] = 0.001
    stronger = {s.defense: s for s in strips.strips(pages.card(data))}["dpsgd"]
    assert (stronger.word, stronger.level) == ("records are rebuilt closely", "error")


def test_an_attack_without_a_number_hides_no_other_on_the_steps():
    data = pages.plain()
    rows = [t for t in data["trials"] if t["result"].get("shown")]
    [first] = [t for t in rows if t["defense"] == "dpsgd"]
    blank = copy.deepcopy(first) | {"attack": "blank"}
    blank["result"]["headline"]["value"] = "nan"
    data["trials"].insert(0, blank)
    [line] = [v for v in columns.lines(pages.card(data)) if v.label == "dpsgd"]
    assert strips.of_steps(line).attack == first["attack"]


def test_pictures_show_all_steps_only_where_no_release_tells_anything():
    """Else the class mean would stand for a defense whose steps say a lot."""
    each = {line.label: line for line in columns.lines(pages.card())}
    assert strips.drawn(each["dpsgd"]).best.attack == "matched_filter"
    assert strips.drawn(each["dpsgd_eps8"]).best is each["dpsgd_eps8"].best
    assert strips.drawn(each["sgd"]).best.attack == "unrolled_inversion"
    blind = {line.label: line for line in columns.lines(pages.card(without_final()))}
    assert blind["dpsgd"].best.attack == "class_mean"
    assert strips.drawn(blind["dpsgd"]).best.attack == "transcript_bayes"
    assert strips.drawn(blind["sgd"]).best.attack == "class_mean"


def test_rows_that_only_steps_tell_apart_are_ranked_by_them():
    [table] = standings.tables(
        [standings.CommittedCard("x", pages.card(without_final()))]
    )
    order = [r.label for r in table.rows]
    assert order.index("dpsgd_eps8") < order.index("fim") < order.index("dpsgd")
    assert {r.line.best.attack for r in table.rows} >= {"transcript_bayes"}


def without_final():
    """Return the card as if nobody had attacked what is released."""
    data = pages.plain()
    sees = ("class_mean", "transcript_bayes")
    data["trials"] = [t for t in data["trials"] if t["attack"] in sees]
    return data


def test_where_a_bound_leaves_nothing_no_record_is_said_to_be_rebuilt():
    """A third of the guesses at epsilon 1 are closer than the floor, by chance."""
    data = pages.plain()  # of attacks that nothing tells them apart from the floor
    data["trials"] = [t for t in data["trials"] if t["attack"] != "ridge"]
    noise = {s.defense: s for s in strips.strips(pages.card(data))}["dpsgd_eps1"]
    assert noise.limits[0].place > scoring.NEAR
    assert noise.word == NOT_TOLD_APART
    [line] = [n for n in columns.lines(pages.card(data)) if n.label == "dpsgd_eps1"]
    assert summary.verdict(line).headline == NOT_TOLD_APART
    rare = strips.strips(pages.card(pages.plain("glm_reconstruction-mnist")))
    [perturbed] = [s for s in rare if s.defense == "perturbed"]
    assert perturbed.limits == []
    assert perturbed.word.endswith("and some records are rebuilt")


def test_words_are_those_of_the_report_and_of_games_without_a_scale():
    card = pages.card(pages.plain("epsilon_audit-digits"))
    for strip, line in zip(strips.strips(card), columns.lines(card), strict=True):
        assert strip.word == summary.verdict(line).headline
        assert strip.final.place is None
    alone = strips.strips(pages.card(pages.plain("glm_fil_mnist-mnist")))
    assert {(s.word, s.level, s.final) for s in alone} == {
        ("not attacked", "note", None)
    }
