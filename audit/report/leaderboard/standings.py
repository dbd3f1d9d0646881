"""From scorecards to the tables of a leaderboard, and which rows can be compared.

There is one table per scenario, data set and game. Cards that differ in their seed
alone form one group, whose numbers are means over seeds.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.report import columns as cells
from audit.report import strips, terminal
from audit.report.html.template import figures
from audit.scorecard import average_seeds, settings
from audit.scorecard.card import Scorecard
from audit.scorecard.flags import is_void
from audit.scorecard.view import STANDARD_ERRORS, Column, Line, number, with_error

NOBODY = "nobody attacks here"
NOT_RECORDED, NOT_MEASURED = "not recorded", "not measured"
# the settings that agree where two defenses add equal noise
NOISE = (
    "noise_multiplier", "noise_stddev", "concentration", "clip_norm", "steps",
    "sampling", "batch_size",
)  # fmt: skip


class CommittedCard(NamedTuple):
    """One card and the name of the folder it is in."""

    folder: str
    card: Scorecard


class SeedGroup(NamedTuple):
    """The cards of one set of settings, one card per seed, and their mean."""

    members: tuple[CommittedCard, ...]
    card: Scorecard  # the mean


class Standing(NamedTuple):
    """One row of a table: one defense of one group."""

    group: SeedGroup
    line: Line
    protection: float | None  # larger is better; None where no attack is valid
    protection_se: float  # infinite where it is not known
    utility: float | None
    apart: tuple[str, ...] = ()  # what tells it from rows of its label

    @property
    def label(self) -> str:
        """The defense, as the card calls it."""
        return self.line.label

    @property
    def name(self) -> str:
        """The defense, told from that of another card of its table."""
        return " ".join([self.label, *self.apart])


class Comparison(NamedTuple):
    """Rows that can be compared, best protected first, and why; or why none can."""

    what: str  # is equal
    why: str
    rows: tuple[Standing, ...] = ()
    left_out: str = ""

    def results(self, separator: str) -> str:
        """Return each row with the headline of the strongest attack on it."""
        return separator.join(f"{r.name} {protection_text(r)}" for r in self.rows)


class StandingsTable(NamedTuple):
    """The standings of one scenario and game on one data set, best protected first."""

    scenario: str
    data: str
    game: str  # "" where no other game of the scenario is on these data
    title: str
    rows: tuple[Standing, ...]
    columns: tuple[Column, ...]
    front: frozenset[int]  # rows that no row beats beyond noise
    measure: str | None  # what measures protection, in words; None where nobody attacks
    sign: float  # shown value = sign * protection

    @property
    def heading(self) -> str:
        """What the table is of."""
        return f"{self.scenario} on {self.data}" + (self.game and f", {self.game}")

    @property
    def anchor(self) -> str:
        """What a link on its page calls the table."""
        return "-".join(filter(None, [self.scenario, self.data, self.game]))

    @property
    def cards(self) -> list[Scorecard]:
        """The mean card of every group, once."""
        return list({id(r.group.card): r.group.card for r in self.rows}.values())

    def chosen(self, most: int) -> cells.Selection:
        """Return the most important columns; those with one text are folded."""
        lines = [row.line for row in self.rows]
        return cells.selected(lines[0].card, list(self.columns), lines, most)

    def notes(self, chosen: cells.Selection) -> str:
        """Return the notes of all cards to the columns chosen, each line once."""
        shown = {c.header for c in chosen.columns} | chosen.constant.keys()
        each = [terminal.notes(card, shown) for card in self.cards]
        return "\n".join(dict.fromkeys("\n".join(each).split("\n")))

    @property
    def commands(self) -> list[str]:
        """What makes every card again."""
        members = (member for row in self.rows for member in row.group.members)
        return list(dict.fromkeys(m.card.provenance.command for m in members))

    @property
    def comparisons(self) -> list[Comparison]:
        """Which rows can be compared: those of equal noise, of equal utility."""
        if self.measure is None:
            return [Comparison(f"equal {k}", NOBODY) for k in ("noise", "utility")]
        return [*_of_equal_noise(self.rows), _of_equal_utility(self.rows)]


# Tables -------------------------------------------------------------------------------


def tables(cards: list[CommittedCard]) -> list[StandingsTable]:
    """Return one table per scenario, data set and game, in alphabetical order."""
    each = [_table(seed_groups(members)) for members in by_table(cards)]
    games = Counter((t.scenario, t.data) for t in each)
    return [t if games[t.scenario, t.data] > 1 else t._replace(game="") for t in each]


def by_table(cards: list[CommittedCard]) -> list[list[CommittedCard]]:
    """Return the cards of each table, in the order of tables."""
    grouped = itertools.groupby(sorted(cards, key=_place), _place)
    return [list(members) for _, members in grouped]


def _place(member: CommittedCard) -> tuple[str, str, str]:
    scenario = member.card.scenario
    return scenario.scenario, member.card.data.name, scenario.game


def seed_groups(cards: list[CommittedCard]) -> list[SeedGroup]:
    """Return cards that differ in their seed alone together, each seed at most once."""
    groups: dict[tuple[str, int], list[CommittedCard]] = {}
    times: Counter[tuple[str, int]] = Counter()  # that one seed of one key occurred
    for member in sorted(cards, key=lambda m: (m.card.scenario.seed, m.folder)):
        key = average_seeds.but_seed(member.card)
        seed = key, member.card.scenario.seed
        groups.setdefault((key, times[seed]), []).append(member)
        times[seed] += 1  # a second card of one seed starts another group
    return [
        SeedGroup(tuple(members), average_seeds.merged([m.card for m in members]))
        for members in groups.values()
    ]


def _table(groups: list[SeedGroup]) -> StandingsTable:
    first = groups[0].card
    apart = _differences(groups)
    rows = [
        _row(group, line)._replace(apart=apart[id(group.card), line.label])
        for group in groups
        for line in _compared(group.card)
    ]
    rows.sort(key=_order)
    # an R² of one seed has no known error: no difference to another is beyond noise
    errors = [_utility_error(r) for r in rows]
    spreads = [math.inf if error is None else error for error in errors]
    headlines = [r.line.result.headline for r in rows if r.line.result is not None]
    metric = headlines[0].metric if headlines else ""
    text = MEASURES.get(metric, f"{metric} of the strongest attack")
    return StandingsTable(
        scenario=first.scenario.scenario,
        data=first.data.name,
        game=first.scenario.game,
        title=first.scenario.title,
        rows=tuple(rows),
        columns=tuple(_columns(groups, apart)),
        # a larger audit proves more of the same defense: that is no lack of protection
        front=frozenset()
        if metric == "epsilon_lower"
        else pareto(
            [(r.utility, r.protection) for r in rows],
            [(s, r.protection_se) for s, r in zip(spreads, rows, strict=True)],
        ),
        measure=text if headlines else None,
        sign=-1.0 if headlines and headlines[0].better == "higher" else 1.0,
    )


def _compared(card: Scorecard) -> list[Line]:
    """Return the rows with the attacks that they are compared by.

    These are attacks on what is released; where none of them learns anything from any
    row, it is the attacks that are shown every step.
    """
    lines = cells.lines(card)
    if any(strips.learns(line.best) for line in lines):
        return lines
    return [strips.drawn(line) for line in lines]


def _row(group: SeedGroup, line: Line) -> Standing:
    headline = None if line.result is None else line.result.headline
    protection = None if headline is None else -headline.strength
    error = None if headline is None else headline.standard_error
    spread = math.inf if error is None else float(error)
    return Standing(group, line, protection, spread, cells.usefulness(line.defense))


def _order(row: Standing) -> tuple[bool, float, str]:
    if row.protection is None or math.isnan(row.protection):
        return True, 0.0, row.label
    return False, -row.protection, row.label


# figures by what a reader looks for, the first that is there counts
LINKS = {
    "per target": (
        "mse_vs_bound.png", "mse_vs_bound_records.png", "success_by_eta.png",
        "separation_vs_dfil.png", "eta_by_class.png",
    ),
    "rebuilt": ("reconstructions.png", "rebuilt.png", "eta_extremes.png"),
    "ROC": ("roc.png",),
}  # fmt: skip
MEASURES = {
    "mse": "MSE of the strongest attack",
    "success": "share the strongest attack tells right",
    "auc": "AUC of the strongest attack",
    "epsilon_lower": "ε proved by the strongest attack",
}


@np.errstate(invalid="ignore")  # of two infinite numbers neither is better
def pareto(points: list[tuple], errors: list[tuple] | None = None) -> frozenset[int]:
    """Return the points that no other beats: as good in both and better in one.

    Points are (utility, protection), larger is better; None or nan: left out. Numbers
    that differ by less than two standard errors are equally good.

    Args:
      points: to be compared.
      errors: standard errors of both numbers of each point, infinite where they are
        not known; none = exact.
    """
    each = np.array(points, float).reshape(-1, 2)
    se = np.array(errors or np.zeros_like(each), float).reshape(-1, 2)
    se = np.where(np.isnan(se), np.inf, se)
    beaten = [False] * len(each)
    for i, (p, e) in enumerate(zip(each, se, strict=True)):
        gap, noise = each - p, STANDARD_ERRORS * np.hypot(se, e)
        better, worse = gap > noise, gap < -noise
        beaten[i] = bool((better.any(1) & ~worse.any(1) & ~np.isnan(gap).any(1)).any())
    front = ~np.array(beaten, bool) & ~np.isnan(each).any(1)
    return frozenset(np.flatnonzero(front).tolist())


def links(
    row: Standing, folder: Path
) -> list[tuple[CommittedCard, str, dict[str, str]]]:
    """Return each card of a row, its seed in words, and its figures by what they show.

    The words are "" where the row has one seed only.
    """
    several, linked = len(row.group.members) > 1, []
    for member in row.group.members:
        seed = f"seed {member.card.scenario.seed}, " if several else ""
        names = figures(folder / member.folder)
        shown = {text: [n for n in each if n in names] for text, each in LINKS.items()}
        linked.append((member, seed, {text: n[0] for text, n in shown.items() if n}))
    return linked


def utility_se(group: SeedGroup, label: str) -> float | None:
    """Return the standard error of a defense's utility over seeds; None for one."""
    each = (cells.usefulness(member.card.defenses[label]) for member in group.members)
    values = [value for value in each if value is not None]
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


# Comparisons --------------------------------------------------------------------------


def _of_equal_noise(rows: tuple[Standing, ...]) -> list[Comparison]:
    """Return groups of rows with equal noise settings, or why there is none."""
    what, groups = "equal noise", defaultdict(list)
    for row in rows:
        given = row.line.defense.settings
        noise = {k: given[k] for k in NOISE if given.get(k) is not None}
        if any(k in noise for k in NOISE[:3]):
            words = ", ".join(f"{k} {value}" for k, value in noise.items())
            groups[id(row.group), words].append(row)
    equal = [Comparison(what, k[1], tuple(r)) for k, r in groups.items() if len(r) > 1]
    none = Comparison(what, "no two defenses here have the same noise settings")
    return equal or [none]


def _of_equal_utility(rows: tuple[Standing, ...]) -> Comparison:
    """Return the rows whose utility equals the best one's, or why there is none.

    Nobody tuned the settings until utilities were equal. Two standard errors of the
    difference are allowed. R^2 has none with one seed.
    """
    what = "equal utility"
    shown = (row for row in rows if row.protection is not None)
    ranked = [(row, row.utility) for row in shown if row.utility is not None]
    if not ranked:
        return Comparison(what, "no release here is a model")
    if len(ranked) < 2:
        return Comparison(what, "no other row has a utility")
    best, most = max(ranked, key=lambda pair: pair[1])
    errors = {id(row): _utility_error(row) for row, _ in ranked}
    if any(error is None for error in errors.values()):
        return Comparison(what, "R² has no standard error with one seed")

    def equal(row: Standing, utility: float) -> bool:
        error = math.hypot(*(errors[id(r)] or 0.0 for r in (row, best)))
        return row is best or most - utility <= STANDARD_ERRORS * error

    within = tuple(row for row, utility in ranked if equal(row, utility))
    if len(within) < 2:
        return Comparison(what, "every other row is less useful than the best")
    less = ", ".join(row.name for row, utility in ranked if not equal(row, utility))
    why = f"within two standard errors of the best, {number(most)}"
    return Comparison(what, why, within, less)


def _utility_error(row: Standing) -> float | None:
    """Return the standard error of a row's utility; None where it is not known.

    It is that over seeds, or over the models of the one seed, and of a share of the
    test records also theirs.
    """
    utility, error = row.line.defense.utility, utility_se(row.group, row.label)
    if utility is None or utility.accuracy is None:
        return error
    if error is None:
        error = float(utility.accuracy_sd or 0.0) / math.sqrt(max(1, utility.models))
    share = cells.share_error(float(utility.accuracy), float(utility.test))
    return math.hypot(error, share)


def protection_text(row: Standing) -> str:
    """Return the headline of a row's strongest attack, as the tables print it."""
    if row.line.result is None:
        return "no valid attack"
    headline = row.line.result.headline
    if headline.standard_error is None:
        return number(headline.value, 3)
    return with_error(headline.value, headline.standard_error)


# Columns ------------------------------------------------------------------------------


def _columns(
    groups: list[SeedGroup], apart: dict[tuple[int, str], tuple[str, ...]]
) -> list[Column]:
    """Return the columns of the cards' tables and those that a leaderboard adds."""
    group_of = {id(group.card): group for group in groups}
    shown: dict[str, Column] = {}
    for group in groups:
        for column in cells.columns(group.card):
            shown.setdefault(column.header, column)
    defense, utility, *rest = shown.values()

    def useful(line: Line) -> str:
        se = utility_se(group_of[id(line.card)], line.label)
        value = utility.cell(line)
        return value if se is None else f"{value} ± {number(se)}"

    def named(line: Line) -> str:
        return " ".join([defense.cell(line), *apart[id(line.card), line.label]])

    both = {"ε upper": cells.epsilon_upper, "ε lower": epsilon_lower}
    epsilons = [Column(name, cell) for name, cell in both.items()]
    return [
        defense._replace(cell=named),
        utility._replace(cell=useful),
        *(c for c in rest if c.header != "flags"),
        *(c for c in epsilons if not any(h.startswith(c.header) for h in shown)),
        shown["flags"],
        Column("noise", noise, right=False),
        Column("settings by, cost", chosen, right=False),
        Column("targets × runs", effort),
        Column("seeds", lambda v: str(len(group_of[id(v.card)].members))),
    ]


def _differences(groups: list[SeedGroup]) -> dict[tuple[int, str], tuple[str, ...]]:
    """Return what tells each row, by card and label, from the others of its table.

    These are settings in which the cards differ, as `name=value`: of the row's own
    defense, of an attack, and of the card. Where two rows are still called alike, the
    folders of their cards tell them apart.
    """
    odd = settings.unequal([g.card for g in groups])
    others = [p for p in odd if not p.startswith("defense.")]

    def words(card: Scorecard, label: str) -> tuple[str, ...]:
        paths = [p for p in odd if settings.owner(p) == f"defense.{label}"] + others
        values = settings.by_path(card)
        return tuple(f"{_name(p)}={values[p]}" for p in paths if p in values)

    rows = [(g, d) for g in groups for d in g.card.defenses]
    apart = {(id(g.card), d): words(g.card, d) for g, d in rows}
    names = Counter((label, texts) for (_, label), texts in apart.items())
    for group, label in rows:
        key = id(group.card), label
        if names[label, apart[key]] > 1:
            apart[key] += (f"folder={group.members[0].folder}",)
    return apart


def _name(path: str) -> str:
    """Return what a row calls a setting: an attack's by the attack's label too."""
    return ".".join(path.split(".")[-2 if path.startswith("attack.") else -1 :])


def epsilon_lower(line: Line) -> str:
    """Return the largest epsilon an attack on this defense proves."""
    proved = [
        float(trial.result.epsilon_lower)
        for trial in line.card.trials
        if trial.defense == line.label and trial.result is not None
        if trial.result.epsilon_lower is not None and not is_void(trial.flags)
    ]
    return number(max(proved), 2) if proved else NOT_MEASURED


def noise(line: Line) -> str:
    """Return the settings that say how much noise a defense adds."""
    given = line.defense.settings
    values = {k: given[k] for k in NOISE[:3] if given.get(k) is not None}
    texts = (
        f"{k} {value:g}" if isinstance(value, float) else f"{k} {value}"
        for k, value in values.items()
    )
    return ", ".join(texts) or "none"


def effort(line: Line) -> str:
    """Return how many targets were attacked, and how many releases per target."""
    if line.result is None or line.result.targets is None:
        return "-"
    return f"{float(line.result.targets):.0f} × {float(line.result.runs or 1):.0f}"


def chosen(line: Line) -> str:
    """Return who chose a defense's settings and what that cost."""
    who = line.card.provenance.chosen.get(line.label)
    return f"{who.by}; {who.cost}" if who else NOT_RECORDED
