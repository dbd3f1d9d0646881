"""The leaderboard: rows checked, tables from rows, nothing unescaped, no network."""

import base64
import copy
import io
import json
import re
from itertools import pairwise

import numpy as np
import pytest

from audit.__main__ import main
from audit.errors import UserError
from audit.report.figures import common
from audit.report.html import template
from audit.report.leaderboard import markdown as leaderboard
from audit.report.leaderboard import standings
from audit.report.leaderboard.standings import CommittedCard
from audit.scorecard import average_seeds, schema
from audit.scorecard import card as cards
from tests import pages
from tests.pages import RESULTS, SCRIPT

DOCS = RESULTS.parent / "docs"


@pytest.fixture
def data():
    return pages.plain()


# Rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/scorecard.json")), ids=lambda p: p.parent.name
)
def test_committed_rows_keep_the_contract(path):
    card = schema.load(path)
    assert json.loads(cards.to_json(card)) == json.loads(path.read_text())


def test_the_schema_in_the_docs_is_the_one_that_is_checked():
    """Made again by: json.dumps(schema.schema(), indent=1)."""
    text = (DOCS / "scorecard.schema.json").read_text()
    assert json.loads(text) == schema.schema()


GONE = object()


def wrong(*path, value):
    """A committed row with another value at a path, or GONE."""
    row = part = pages.plain()
    for step in path[:-1]:
        part = part[step]
    if value is GONE:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return row


FATAL = [{"name": "x", "level": "fatal", "text": ""}]
WRONG = {  # what: path, value, error
    "a script as a defense": (("defenses", SCRIPT), {}, "defenses.<script>"),
    "a path as a scenario": (
        ("scenario", "scenario"), "../../etc/passwd",
        "scenario.scenario='../../etc/passwd'",
    ),
    "a path as data": (("data", "name"), "../x", "data.name='../x'"),
    "an attack with a slash": (("trials", 0, "attack"), "a/b", "trials.0.attack"),
    "a level unknown": (("trials", 0, "flags"), FATAL, "'note', 'warning' or 'error'"),
    "text for a number": (("trials", 0, "result", "mse"), "small", "result.mse"),
    "control characters": (("scenario", "title"), "\x1b[31mred", "scenario.title"),
    "two lines": (("provenance", "command"), "a\nb", "provenance.command"),
    "no digest": (("data", "digest"), "abc", "data.digest='abc'"),
    "a field nobody knows": (("extra",), 1, "extra=1"),
    "a part missing": (("floor",), GONE, "floor: field required"),
}  # fmt: skip
INCONSISTENT = {
    "a defense that is not there": (("trials", 0, "defense"), "nobody", "'nobody'"),
    "ok without a result": (("trials", 0, "result"), None, "trials.0 is ok"),
    "two data sets": (("data", "name"), "mnist", "'mnist' is not"),
}


@pytest.mark.parametrize("case", [*WRONG, *INCONSISTENT])
def test_wrong_rows_are_refused_by_field_and_by_any_json_schema_tool(data, case):
    """A JSON Schema cannot say that two fields contradict each other."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    path, value, message = (WRONG | INCONSISTENT)[case]
    row = wrong(*path, value=value)
    with pytest.raises(UserError, match="here: ") as error:
        schema.from_json(json.dumps(row), "here")
    assert message in str(error.value)
    assert validator(schema.schema()).is_valid(row) == (case in INCONSISTENT)
    assert validator(schema.schema()).is_valid(data)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 2}', '{"schema": NaN}', "[" * 100_000]
)
def test_what_is_no_row_at_all(text):
    with pytest.raises(UserError, match="here: "):
        schema.from_json(text, "here")


def test_a_row_from_elsewhere_that_is_wrong_stops_with_exit_code_two(tmp_path, capsys):
    pages.folder(tmp_path, "x", wrong("floor", "mse", value="none"))
    assert main(["leaderboard", f"results={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "floor.mse" in error
    assert error.count("\n") == 1


# Tables -------------------------------------------------------------------------------


def test_the_committed_leaderboard_is_what_the_rows_give():
    """Made again by `python -m audit leaderboard`."""
    text = (RESULTS / "LEADERBOARD.md").read_text()
    tables = standings.tables(leaderboard.committed(RESULTS)[0])
    assert leaderboard.markdown(tables, RESULTS) == text
    targets = set(re.findall(r"\]\(([^)#]+)", text))
    assert targets
    assert all((RESULTS / target).exists() for target in targets)


def table(data):
    (table,) = standings.tables([CommittedCard("a", pages.card(data))])
    return table


def test_there_is_one_table_per_scenario_and_data_set_best_protected_first(data):
    other = pages.plain("binary_mnist-mnist")
    rows = [CommittedCard("a", pages.card(data)), CommittedCard("b", pages.card(other))]
    tables = standings.tables(rows)
    assert [(t.scenario, t.data) for t in tables] == [
        ("binary_mnist", "mnist"),
        ("binary_mnist", "mnist5k"),
    ]
    for t in tables:
        protection = [r.protection for r in t.rows]
        assert protection == sorted(protection, reverse=True)


def test_two_games_of_one_scenario_are_two_tables(data):
    """They have other columns, and their numbers are of other questions."""
    from audit.report.leaderboard import html

    own = [data, pages.plain("mia_mnist5k-mnist5k")]
    own.append(copy.deepcopy(own[1]))
    own[2]["scenario"]["game"] = "membership_replace_one"
    for card in own:
        card["scenario"]["scenario"] = "own"
    rows = [CommittedCard(f, pages.card(r)) for f, r in zip("abc", own, strict=True)]
    tables = standings.tables(rows)
    games = "membership", "membership_replace_one", "reconstruction"
    assert [t.heading for t in tables] == [f"own on mnist5k, {g}" for g in games]
    text = leaderboard.markdown(tables, RESULTS / "nowhere")
    page = html.render(tables, RESULTS / "nowhere")
    for game in games:
        assert re.search(rf"^## own on mnist5k, {re.escape(game)}$", text, re.M)
        assert f'<section id="own-mnist5k-{game}"' in page
        assert f'<a href="#own-mnist5k-{game}"' in page
    (alone,) = standings.tables(rows[:1])
    assert alone.heading == "own on mnist5k"


def test_seeds_are_one_entry_and_their_spread_is_the_error(data):
    shifts = (0.0, 0.003, 0.006)
    each = [pages.card(pages.seeded(data, i, s)) for i, s in enumerate(shifts)]
    (whole,) = standings.tables([CommittedCard(f"s{i}", c) for i, c in enumerate(each)])
    row = next(r for r in whole.rows if r.label == "dpsgd")
    assert len(row.group.members) == 3
    spread = np.std(shifts, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose(standings.utility_se(row.group, "dpsgd"), spread)
    first = next(
        t for t in data["trials"]
        if (t["defense"], t["attack"]) == ("dpsgd", "matched_filter")
    )["result"]  # fmt: skip
    best = row.line.result
    np.testing.assert_allclose(best.mse, first["mse"] + 0.003)
    np.testing.assert_allclose(float(best.headline.value), best.mse)
    expected = np.hypot(first["mse_se"], spread)  # targets and seeds, in quadrature
    np.testing.assert_allclose(best.mse_se, expected)
    np.testing.assert_allclose(best.headline.standard_error, expected)
    cells = {c.header: c.cell(row.line) for c in whole.columns}
    assert cells["seeds"] == "3"
    assert "±" in cells["accuracy"]


def test_rows_of_other_settings_say_which(data):
    other = pages.seeded(data, 7)
    other["scenario"]["runs"] += 1
    cards = [pages.card(data), pages.card(other)]
    (both,) = standings.tables([CommittedCard(f"c{i}", c) for i, c in enumerate(cards)])
    shown = {both.columns[0].cell(row.line) for row in both.rows}
    runs = data["scenario"]["runs"]
    assert {f"dpsgd runs={runs}", f"dpsgd runs={runs + 1}"} < shown


def beside(*rows):
    """The names of the rows of one table, of cards in folders a, b, ..."""
    cards = [CommittedCard(f, pages.card(r)) for f, r in zip("abc", rows, strict=False)]
    (whole,) = standings.tables(cards)
    names = sorted(row.name for row in whole.rows)
    assert names == sorted(whole.columns[0].cell(row.line) for row in whole.rows)
    return names


def of_defenses(data, *labels):
    """The card with these defenses alone."""
    card = copy.deepcopy(data)
    for rows in (card["defenses"], card["scenario"]["defense"]):
        for label in rows.keys() - set(labels):
            del rows[label]
    card["trials"] = [t for t in card["trials"] if t["defense"] in labels]
    return card


def test_a_row_is_named_by_its_own_settings_alone(data):
    """A sweep over the noise of one defense says nothing of the others' noise."""
    first = of_defenses(data, "sgd", "dpsgd")
    second = copy.deepcopy(first)
    second["scenario"]["defense"]["dpsgd"]["noise_multiplier"] = 0.2
    assert beside(first, second) == [
        "dpsgd noise_multiplier=0.05",
        "dpsgd noise_multiplier=0.2",
        "sgd folder=a",
        "sgd folder=b",
    ]
    second["scenario"]["attack"]["ridge"]["repeats"] = 4
    assert beside(first, second) == [
        "dpsgd noise_multiplier=0.05 ridge.repeats=1",
        "dpsgd noise_multiplier=0.2 ridge.repeats=4",
        "sgd ridge.repeats=1",
        "sgd ridge.repeats=4",
    ]


def test_who_else_is_in_the_line_up_names_no_row(data):
    """Nor is a setting named that the row's card lacks."""
    first = of_defenses(data, "sgd", "dpsgd")
    second = of_defenses(data, "sgd", "dpsgd", "prune")
    del second["scenario"]["attack"]["ridge"]
    noise = second["scenario"]["defense"]["dpsgd"]
    del noise["noise_multiplier"]
    noise["target_epsilon"] = 8.0
    assert beside(first, second) == [
        "dpsgd noise_multiplier=0.05",
        "dpsgd target_epsilon=8.0",
        "prune",
        "sgd folder=a",
        "sgd folder=b",
    ]


def test_a_count_that_differs_between_seeds_stays_whole(data):
    cards = [pages.seeded(data, seed) for seed in range(2)]
    for card, count in zip(cards, (7, 10), strict=True):
        bound = next(b for b in card["defenses"]["dpsgd"]["bounds"] if b.get("needed"))
        bound["needed"] = count
    means = average_seeds.merged([pages.card(c) for c in cards]).defenses["dpsgd"]
    assert [b.needed for b in means.bounds if b.needed] == [9]


def test_an_estimated_bound_varies_with_its_seeds_too(data):
    """Bounds of .1 and .5, each known to +-.05; no such error under either seed."""
    cards = [pages.seeded(data, seed) for seed in range(2)]
    for card, mean in zip(cards, (0.1, 0.5), strict=True):
        known, unknown = card["defenses"]["dpsgd"]["bounds"][:2]
        known |= {"mean": mean, "standard_error": 0.05}
        unknown |= {"mean": mean, "standard_error": None}
        card["trials"][0]["result"]["headline"]["standard_error"] = None
    card = average_seeds.merged([pages.card(c) for c in cards])
    known, unknown = card.defenses["dpsgd"].bounds[:2]
    assert known.mean == pytest.approx(0.3)
    assert known.standard_error == pytest.approx(np.hypot(0.05, 0.2))
    assert unknown.standard_error is None
    assert card.trials[0].result.headline.standard_error is None


def test_intervals_vary_with_their_seeds_too(data):
    """Two areas, each known to .02 at 95%; a rate that may be 0 and is never below."""
    cards = [pages.seeded(data, seed) for seed in range(2)]
    for card, area, rate in zip(cards, (0.6, 0.7), (0.0, 0.01), strict=True):
        card["trials"][0]["result"] |= {
            "auc": {"value": area, "low": area - 0.02, "high": area + 0.02},
            "tpr": {"value": rate, "low": 0.0, "high": rate + 0.001},
            "named": {"success": area, "low": area, "high": area, "confidence": 0.99},
        }
    result = average_seeds.merged([pages.card(c) for c in cards]).trials[0].result
    error = 0.1 / np.sqrt(2) / np.sqrt(2)
    reach = np.hypot(0.02, 1.959964 * error)
    assert result["auc"] == pytest.approx(
        {"value": 0.65, "low": 0.65 - reach, "high": 0.65 + reach}
    )
    assert result["named"]["low"] == pytest.approx(0.65 - 2.575829 * error)
    assert result["tpr"]["low"] == 0
    assert result["tpr"]["high"] > 0.01


def test_what_one_seed_has_no_number_for_has_no_mean(data):
    cards = [pages.seeded(data, seed) for seed in range(2)]
    cards[1]["trials"][0]["result"]["lpips"] = None
    cards[0]["trials"][0]["result"]["lpips"] = 0.5
    card = average_seeds.merged([pages.card(c) for c in cards])
    assert card.trials[0].result.lpips is None


def test_errors_that_are_infinite_raise_no_warning(data):
    """Which would be an error here: of every row under one seed, and of all there is.

    One picture of them has no place for an infinite number.
    """
    from audit.report.leaderboard import html

    mine = [pages.seeded(data, seed) for seed in range(3)]
    for card, attacks in zip(mine, (1, 100, 100), strict=True):
        for trial in [t for t in card["trials"] if t["status"] == "ok"][:attacks]:
            trial["result"]["headline"] |= {"value": "inf", "standard_error": "inf"}
    cards = [CommittedCard(str(i), pages.card(card)) for i, card in enumerate(mine)]
    for shown in (cards[:2], cards[1:]):
        tables = standings.tables(shown)
        assert " inf" in leaderboard.markdown(tables, RESULTS / "nowhere")
        assert html.render(tables, RESULTS / "nowhere")


def test_seeds_that_are_not_averaged(data):
    """The same seed twice is two entries; a trial that failed once has no mean."""
    same = [CommittedCard(folder, pages.card(data)) for folder in "ab"]
    assert len(standings.seed_groups(same)) == 2
    bad = pages.seeded(data, 1)
    bad["trials"][2] |= {"status": "failed", "reason": "broke", "result": None}
    trial = average_seeds.merged([pages.card(data), pages.card(bad)]).trials[2]
    assert (trial.status, trial.reason) == ("failed", "broke")


def test_seeds_of_two_codes_of_a_plug_in_are_two_rows(data):
    each = [pages.made_with(pages.seeded(data, i), str(i) * 64) for i in range(2)]
    names = beside(*(of_defenses(card, "sgd") for card in each))
    assert names == ["sgd folder=a", "sgd folder=b"]


@pytest.mark.parametrize(
    ("points", "error", "front"),
    [
        ([(1, 1), (2, 0.5), (0.5, 2)], None, {0, 1, 2}),
        ([(1, 1), (1, 2), (0, 2)], None, {1}),
        ([(1, 1), (1, 1)], None, {0, 1}),
        ([(None, 1), (1, float("nan")), (0, 0)], None, {2}),
        # with a standard error, a dot is lost to a difference beyond noise: two
        # standard errors of a difference are .028
        ([(1, 1), (1, 1.015)], 0.01, {0, 1}),
        ([(1, 1), (1, 1.04)], 0.01, {1}),
        ([(1, 1), (0.985, 1.04)], 0.01, {1}),
        ([(1, 1), (0.96, 2)], 0.01, {0, 1}),
    ],
)
def test_pareto(points, error, front):
    errors = [] if error is None else [[(error, error)] * len(points)]
    assert standings.pareto(points, *errors) == front


@pytest.mark.parametrize("unknown", [np.inf, np.nan])
def test_what_has_an_unknown_error_decides_nothing(unknown):
    points = [(1, 1), (0.5, 2)]
    assert standings.pareto(points, [(unknown, 0.01)] * 2) == {1}
    assert standings.pareto(points, [(0.01, unknown)] * 2) == {0}


def test_an_audit_that_proves_less_protects_no_better():
    """One defense, audited with few runs and with many."""
    names = ("epsilon_audit-digits", "epsilon_audit_200-digits")
    cards = [CommittedCard(n, pages.card(pages.plain(n))) for n in names]
    (both,) = standings.tables(cards)
    assert len({row.label for row in both.rows}) < len(both.rows)
    assert both.front == frozenset()
    assert all(np.isinf(row.protection_se) for row in both.rows)


def error(row):
    """The standard error of an accuracy of one seed, plus four answers."""
    utility = row.line.defense.utility
    m = utility.test + 4
    share = (utility.accuracy * utility.test + 2) / m
    return np.sqrt(share * (1 - share) / m + utility.accuracy_sd**2 / utility.models)


def test_all_of_few_records_right_is_not_certain():
    """60 of 60 and 59.75 of 60 are not told apart; a lone row has nobody to equal."""
    whole = table(pages.plain("epsilon_audit-digits"))
    utility = whole.comparisons[-1]
    assert {"epsilon_4", "epsilon_8"} <= {row.label for row in utility.rows}
    lone = table(pages.plain("epsilon_final_model-mnist")).comparisons[-1]
    assert lone.why == "no other row has a utility"


def test_comparisons_say_what_is_equal_or_why_there_is_none(data):
    whole = table(data)
    noise, utility = whole.comparisons
    assert {r.label for r in noise.rows} == {"fim", "public_mean", "prune", "dpsgd"}
    assert "noise_multiplier 0.05" in noise.why
    best = max(whole.rows, key=lambda row: row.utility)
    for row in whole.rows:
        reach = 2 * np.hypot(error(best), error(row))
        assert (row in utility.rows) == (
            row is best or best.utility - row.utility <= reach
        )
    assert 1 < len(utility.rows) < len(whole.rows)
    for name, reason in {
        "glm_fil_mnist-mnist": "nobody attacks here",
        "glm_attributes-diabetes": "R² has no standard error with one seed",
    }.items():
        last = table(pages.plain(name)).comparisons[-1]
        assert (last.why, last.rows) == (reason, ())


def test_epsilon_lower_and_who_chose_are_shown_where_a_card_has_them():
    row = wrong("trials", 6, "result", "epsilon_lower", value=1.25)
    who = {"dpsgd": {"by": "Table B.2", "cost": "not stated"}}
    row["provenance"]["chosen"] = who
    whole = table(row)
    shown = {
        r.label: {c.header: c.cell(r.line) for c in whole.columns} for r in whole.rows
    }
    assert shown["dpsgd"]["ε lower"] == "1.25"
    assert shown["dpsgd"]["settings by, cost"] == "Table B.2; not stated"
    assert shown["sgd"]["ε lower"] == "not measured"
    assert shown["sgd"]["settings by, cost"] == "not recorded"


@pytest.mark.parametrize(
    ("metric", "better", "value", "words"),
    [
        ("mse", "lower", 0.03, "MSE of the strongest attack"),
        ("success", "higher", 0.6, "share the strongest attack tells right"),
        ("auc", "higher", 0.7, "AUC of the strongest attack"),
        ("epsilon_lower", "higher", 1.5, "ε proved by the strongest attack"),
        ("bits", "higher", 3.0, "bits of the strongest attack"),
    ],
)
def test_attacks_are_ranked_and_shown_by_their_headline(metric, better, value, words):
    card = pages.plain()
    for i, trial in enumerate(card["trials"]):
        trial["result"]["headline"] = {
            "metric": metric, "value": value + i, "standard_error": 0.025,
            "better": better, "floor": None,
        }  # fmt: skip
    whole = table(card)
    row = whole.rows[0]
    headline = row.line.result.headline
    assert whole.measure == words
    assert whole.sign * row.protection == headline.value
    assert standings.protection_text(row).endswith("± .0250")
    assert (headline.strength < 0) == (better == "lower")


@pytest.mark.parametrize(
    ("small", "large"),
    [(".0098 ± .0007", ".0407"), ("10^-4322", "10^-44"), ("10^-44", ".0018"),
     ("4.6e-04", ".0018"), ("-.5", "0"), (".9976", "1.0e+07"), ("0", "10^-4322")],
)  # fmt: skip
def test_cells_sort_by_their_numbers(small, large):
    assert template.sort_value(small) < template.sort_value(large)
    assert template.sort_value("none") is None


# Pages --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A leaderboard with a hostile row in a folder of a hostile name."""
    place = tmp_path_factory.mktemp("results")
    name = "x'><img src=y onerror=alert(1)>"
    pages.folder(place, name, pages.hostile(pages.plain()), figures=())
    (place / name / "mse_vs_bound.png").symlink_to("/etc/hostname")
    return leaderboard.write(place)[0]


def test_a_hostile_row_puts_no_markup_into_either_file(hostile):
    markdown, html = (p.read_text() for p in hostile)
    assert "<script>document" not in html
    assert "<img src=" not in html.replace('<img src="data:', "")
    assert "onerror" in html  # as text
    assert html.count("<script>") == 1
    shown = re.sub(r"```.*?```", "", markdown, flags=re.S)  # code blocks show as typed
    assert "<script" not in shown
    assert "<img" not in shown
    assert not re.search(r"(?<!\\)\]\(javascript", shown)
    rows = [line for line in shown.split("\n") if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1
    assert max(markdown.count("```"), 0) % 2 == 0


def test_files_outside_a_cards_folder_are_not_read(hostile, tmp_path):
    place = hostile[0].parent
    (folder,) = (p for p in place.iterdir() if p.is_dir())
    assert template.figures(folder) == []
    assert "mse_vs_bound.png" not in hostile[0].read_text()
    (tmp_path / "secret.png").write_bytes(b"")
    inside = tmp_path / "card"
    inside.mkdir()
    for name in ("../secret.png", "..", ".", "a/../../secret.png", "/etc/hostname"):
        assert template.beside(inside, name) is None


ONE_PER_KIND = re.compile("binary_mnist|glm_attributes|epsilon_audit|mia_mnist5k")
ALL = pytest.param(re.compile(""), marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[ONE_PER_KIND, ALL], ids=["one per kind", "all"])
def html(request, tmp_path_factory):
    """The page of committed rows, figures and all."""
    from audit.report.leaderboard import html as leaderboard_page

    place = tmp_path_factory.mktemp("page") / "leaderboard.html"
    every, _ = leaderboard.committed(RESULTS)
    rows = [card for card in every if request.param.match(card.folder)]
    place.write_text(leaderboard_page.render(standings.tables(rows), RESULTS))
    return place


def test_the_page_is_small_and_asks_for_nothing(html):
    text = html.read_text()
    assert len(text.encode()) < template.MOST_BYTES
    loaded = re.findall(r'(?:src|srcset|action|poster|data)="([^"]*)"', text)
    assert all(u.startswith("data:") for u in loaded)
    assert not re.findall(r"url\(|@import|<link(?! rel=\"icon\" href=\"data:)", text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")


def test_plots_name_rows_as_tables_do(html):
    text = html.read_text()
    for name in ("epsilon_1 audits=200 runs=500", "epsilon_1 audits=1 runs=20000"):
        assert f"{name}: accuracy" in text


def test_the_page_opens_offline_in_a_browser_and_its_script_runs(html, tmp_path):
    shown, requests = pages.opened(html, tmp_path)
    assert "<option>accuracy</option>" in shown  # the script filled the chooser
    assert shown.count("<svg") == html.read_text().count("<svg")
    assert requests == []


MEASURE = """<script>
document.title = JSON.stringify([document.documentElement.scrollHeight,
  document.documentElement.scrollWidth,
  [...document.querySelectorAll("table.standings")].map((t) =>
    [...t.tHead.rows[0].cells].filter((c) => c.offsetWidth).length)]);
</script></body>"""


def test_the_page_is_short_and_as_wide_as_the_window(html, tmp_path):
    """Measured with nothing unfolded, at 1280 pixels; eight columns at the most."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", html.read_text())
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", MEASURE))
    shown, _ = pages.opened(copy, tmp_path, "--window-size=1280,800")
    high, wide, columns = json.loads(re.search("<title>(.*?)</title>", shown)[1])
    assert high < 6000
    assert wide <= 1280
    assert 2 <= max(columns) <= 8


def test_tables_of_the_leaderboard_have_nine_columns_and_name_the_rest():
    text = (RESULTS / "LEADERBOARD.md").read_text()
    heads = [h for h, line in pairwise(text.split("\n")) if line.startswith("| --- |")]
    assert len(heads) >= 20
    assert max(head.count("|") - 1 for head in heads) <= 9
    assert text.count("On the cards and in `leaderboard.html`:") > len(heads) / 2


def test_what_every_row_says_is_said_once(data):
    whole = table(data)
    chosen = whole.chosen(8)
    assert chosen.constant["floor"] == ".0467"
    assert len(chosen.columns) == 8
    names = {c.header for c in (*chosen.columns, *chosen.dropped)}
    assert "floor" not in names
    assert "ε lower" not in names | chosen.constant.keys()  # measured nowhere
    alone = table(pages.plain("calibration-mnist5k")).chosen(8)
    assert alone.constant == {}  # one row has nothing in common with another


def test_no_script_of_a_row_runs_in_a_browser(hostile, tmp_path):
    shown, requests = pages.opened(hostile[1], tmp_path)
    assert "<title>Breachmark leaderboard</title>" in shown
    assert "<option>accuracy</option>" in shown
    assert requests == []


def test_columns_sort_and_rows_filter(html, tmp_path):
    """Driven by a second script, in a copy without the policy that would stop it."""
    drive = """
    <script>
    const table = document.querySelector("table.standings");
    const names = () => [...table.tBodies[0].rows].filter((r) => !r.hidden)
      .map((r) => r.cells[0].querySelector("span").textContent).join(" ");
    table.tHead.rows[0].cells[1].querySelector("button").click();
    const up = names();
    table.tHead.rows[0].cells[1].querySelector("button").click();
    const down = names();
    const box = document.querySelector("#filter");
    box.value = "binary_mnist prune";
    box.dispatchEvent(new Event("input"));
    const shown = document.querySelectorAll("section:not([hidden])").length;
    new Image().src = "http://asked.invalid/";
    const left = names();
    box.value = "";
    const choose = (of, value) => {
      const select = document.querySelector(`select[data-of=${of}]`);
      select.value = value;
      select.dispatchEvent(new Event("change"));
    };
    choose("scenario", "binary_mnist");
    choose("set", "mnist5k");
    const chosen = [...document.querySelectorAll("section:not([hidden])")];
    const entries = document.querySelectorAll("nav li:not([hidden])").length;
    const seen = [...chosen[0].querySelectorAll("tbody tr")].length;
    choose("sees", "nothing like it");
    choose("sees", document.querySelector("select[data-of=sees]").options[1].value);
    document.title = [up, down, left, shown, chosen.map((s) => s.id), entries, seen]
      .join("; ");
    </script>"""
    text = re.sub(r"<meta http-equiv[^>]*>", "", html.read_text())
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", drive + "</body>"))
    shown, requests = pages.opened(copy, tmp_path)
    assert requests == ["http://asked.invalid/"]  # a request would have been seen
    up, down, left, sections, *chosen = re.search("<title>(.*?)</title>", shown)[
        1
    ].split("; ")
    assert chosen == ["binary_mnist-mnist5k", "1", "8"]
    folders = [
        "binary_mnist-mnist", *(p.name for p in RESULTS.glob("binary_mnist-mnist-*"))
    ]  # fmt: skip
    seeds = [pages.plain(folder)["defenses"] for folder in folders]
    order = {
        d: np.mean([row[d]["utility"]["accuracy"] for row in seeds]) for d in seeds[0]
    }
    ups, downs = up.split(), down.split()
    assert ups[0] == min(order, key=order.get)
    assert [round(order[d], 4) for d in downs] == sorted(
        (round(v, 4) for v in order.values()), reverse=True
    )
    assert (left, sections) == ("prune", "2")


def test_pictures_stop_where_there_is_no_room_left(tmp_path):
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    album = template.Album(room=4000)
    uris = [album.picture(tmp_path / "a.png") for _ in range(4)]
    assert uris[0] is not None
    assert uris[-1] is None
    assert album.full
    (tmp_path / "b.png").write_bytes(b"no picture")
    assert template.Album().picture(tmp_path / "b.png") is None


def test_a_small_picture_keeps_the_curves_apart(tmp_path):
    """Thin lines on a page that is nearly all grey levels."""
    from PIL import Image

    pixels = np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (256, 1, 3))
    drawn = common.COLOURS[:6]
    for i, colour in enumerate(drawn):
        pixels[10 * i] = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    Image.fromarray(pixels).save(tmp_path / "a.png")
    uri = template.Album().picture(tmp_path / "a.png")
    shown = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))).convert("RGB")
    rows = np.asarray(shown, int)[[10 * i for i in range(6)], 0]
    expected = pixels[[10 * i for i in range(6)], 0].astype(int)
    assert np.abs(rows - expected).max() < 40
