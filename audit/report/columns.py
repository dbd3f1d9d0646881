"""The table of defenses: which columns a card has, and who attacks strongest."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from audit.config import plugins, registry
from audit.errors import UserError
from audit.scorecard.card import plain
from audit.scorecard.flags import VOID, is_void
from audit.scorecard.schema import (
    DefenseRow,
    EpsilonPair,
    RaisedFlag,
    Scorecard,
    TrialRow,
)
from audit.scorecard.view import (
    PLAIN,
    SHORT,
    Column,
    Line,
    View,
    bound_column,
    bound_names,
    number,
)

MARKS = {"note": "i", "warning": "!", "error": "×"}  # of flags: apart without colour
ANYBODY = ("finite_prior", "closed_world")  # bounds on any attacker's error
TOP = 100  # records with the largest eta, compared between defenses


def of_one_run(card: Scorecard) -> list[str]:
    """Return the defenses whose dFIL is of one released run: probes are its error."""
    dfil = {label: d.dfil or {} for label, d in card.defenses.items()}
    return [
        label
        for label, numbers in dfil.items()
        if numbers.get("probe_se") and numbers["probe_se"] == numbers.get("relative_se")
    ]


def view(card: Scorecard) -> View:
    """Return how the numbers of a card's game print; plainly, if it is not here."""
    settings = plain(card.scenario.model_extra or {})
    folders = tuple(plugins.named_folders())
    return _view(card.scenario.game, json.dumps(settings, sort_keys=True), folders)


@functools.lru_cache(maxsize=64)
def _view(game: str, scenario: str, folders: tuple[str, ...]) -> View:
    del folders  # where plug-ins are looked for
    try:
        words = registry.settings("game", game)
        given = {k: v for k, v in json.loads(scenario).items() if k in words}
        settings = registry.check("game", game, given, "scenario")
        return registry.find("game", game)(**settings).view
    except UserError:  # a plug-in that is not installed here, or of another version
        return PLAIN


# Rows ---------------------------------------------------------------------------------


def lines(card: Scorecard) -> list[Line]:
    """Return the defenses in order."""
    return [
        Line(card, label, defense, strongest(card, label))
        for label, defense in card.defenses.items()
    ]


def strongest(card: Scorecard, defense: str) -> TrialRow | None:
    """Return the strongest attack on a defense: on what it releases.

    Oracles, void rows and attacks that are shown more than the release do not count.
    Where every attack that sees the release is void, nobody attacked it: one that sees
    nothing is no substitute.
    """
    tried = [
        trial
        for trial in card.trials
        if trial.defense == defense and trial.result is not None
        if not trial.result.oracle and trial.result.shown is None
    ]
    seeing = [trial for trial in tried if not trial.blind]
    if seeing and all(is_void(trial.flags) for trial in seeing):
        return None
    return strongest_of(tried)


def strongest_of(trials: Iterable[TrialRow]) -> TrialRow | None:
    """Return the trial of the largest strength: void ones do not count, nor nan."""
    strengths = [
        (trial.result.headline.strength, trial)
        for trial in trials
        if trial.result is not None and not is_void(trial.flags)
    ]
    numbers = (pair for pair in strengths if not math.isnan(pair[0]))
    return max(numbers, key=lambda pair: pair[0], default=(0, None))[1]


def shared(card: Scorecard) -> dict[str, dict[str, int]]:
    """Return how many of the `TOP` records with the largest eta two defenses share.

    Nothing where there are fewer than two defenses with an eta, or few records.
    """
    arrays = {d: card.arrays.get(f"{d}/eta") for d, r in card.defenses.items() if r.eta}
    etas = {d: eta for d, eta in arrays.items() if eta is not None}
    if len(etas) < 2 or min(map(len, etas.values())) < 2 * TOP:
        return {}
    tops = {d: set(np.argsort(-v, kind="stable")[:TOP]) for d, v in etas.items()}
    return {d: {o: len(top & tops[o]) for o in tops} for d, top in tops.items()}


# Columns ------------------------------------------------------------------------------


def columns(card: Scorecard) -> list[Column]:
    """Return the columns that have something to say on this card."""
    game, attacked = view(card), bool(card.trials)
    room = not attacked or game.spare  # for more than the attack's columns
    measured = [d.utility for d in card.defenses.values() if d.utility]
    name = "R²" if measured and all("r2" in u for u in measured) else "accuracy"
    table = [
        Column("defense", lambda line: line.label, right=False),
        Column(name, lambda line: number(usefulness(line.defense))),
    ]
    if any(u.noiseless is not None for u in measured):
        table.append(Column("noiseless", _noiseless, narrow=room))
    if any(defense.eta for defense in card.defenses.values()):
        table.append(Column("η, mean ± sd", _eta, narrow=room))
    table += [*(game.attack if attacked else ()), *game.bounds]
    headers = {column.header for column in table}
    if "ε upper" not in headers and any(d.epsilon for d in card.defenses.values()):
        table.append(Column("ε upper", epsilon_upper))
    plug_ins = [name for name in bound_names(card) if name not in SHORT]
    table += [bound_column(name, narrow=False) for name in plug_ins]
    rows = lines(card)
    filled = [c for c in table if not c.optional or {c.cell(r) for r in rows} != {"-"}]
    return [*filled, Column("flags", flags_of, right=False)]


class Selection(NamedTuple):
    """The columns of a table that has room for some, and what becomes of the others."""

    columns: list[Column]  # in their order
    constant: dict[str, str]  # header -> what every row says; none that says nothing
    dropped: list[Column]


EMPTY = {"-", "none", "not measured", "not recorded", "none; none"}


def ranked(card: Scorecard, table: list[Column]) -> list[Column]:
    """Return columns, the most important first: what is dropped last.

    The defense; what the strongest attack got; how useful the model is; epsilon; the
    bounds that hold for any attacker; flags; all others in their order.
    """
    attack = {column.header: i for i, column in enumerate(view(card).attack)}
    anybody = {SHORT[name] for name in ANYBODY}

    def rank(column: Column) -> tuple[float, int]:
        place, header = table.index(column), column.header
        if place == 0:
            return 0, place
        if header in attack and column.narrow:
            return (1 if attack[header] < 3 else 4.5), attack[header]
        useful, private = place == 1, header.startswith("ε")
        groups = [useful, private, header in anybody, header == "flags", column.narrow]
        return 2 + [*groups, True].index(True), place

    return sorted(table, key=rank)


def selected(
    card: Scorecard, table: list[Column], rows: Sequence[Line], most: int
) -> Selection:
    """Return at most so many columns, the most important; constant ones are folded.

    A column says the same in every row where there are two or more rows; then one line
    under the table says it once. The first column and the flags are never folded.
    """
    cells = {c.header: {c.cell(row) for row in rows} for c in table[1:]}
    same = {
        header: texts.pop()
        for header, texts in cells.items()
        if len(rows) > 1 and len(texts) == 1 and header != "flags"
    }
    nothing = {h for h, texts in cells.items() if texts <= EMPTY and h != "flags"}
    varied = [c for c in table if c.header not in same.keys() | nothing]
    kept = ranked(card, varied)[:most]
    return Selection(
        [c for c in varied if c in kept],
        {h: text for h, text in same.items() if text not in EMPTY},
        [c for c in varied if c not in kept],
    )


def usefulness(defense: DefenseRow) -> float | None:
    """Return a defense's test accuracy, or R^2; None where it predicts nothing."""
    if defense.utility is None:
        return None
    accuracy, r2 = defense.utility.accuracy, defense.utility.r2
    value = r2 if accuracy is None else accuracy
    return None if value is None else float(value)


def share_error(share: float, answers: float) -> float:
    """Return the standard error of a share of answers, after Agresti and Coull (1998).

    Two right and two wrong answers are added, so that a share of 1 is not certain. A
    card from elsewhere may have a share outside of [0, 1], which is cut.
    """
    more = answers + 4
    middle = (min(max(share, 0.0), 1.0) * answers + 2) / more
    return math.sqrt(middle * (1 - middle) / more)


def epsilon_upper(line: Line) -> str:
    """Return the accounted epsilon of the game's adjacency: replace-one, or its own."""
    if line.result is not None and line.result.get("upper") is not None:
        return number(line.result["upper"], 2)  # of the adjacency the attack audits
    adjacency = line.defense.get("membership", {}).get("adjacency", "replace_one")
    epsilon = line.defense.epsilon
    pair: EpsilonPair | None = None if epsilon is None else epsilon[adjacency]
    return "none" if pair is None else number(pair.least, 2)


def _noiseless(line: Line) -> str:
    utility = line.defense.utility
    return "none" if utility is None else number(utility.noiseless)


def _eta(line: Line) -> str:
    """Return mean and standard deviation of eta over the records."""
    eta = line.defense.eta
    if not eta:
        return "none"
    mean, sd = float(eta["mean"]), float(eta["sd"])
    digits = 3 if mean < 1 else 2
    return " ± ".join(f"{v:.{digits}f}".removeprefix("0") for v in (mean, sd))


def raised(line: Line) -> list[RaisedFlag]:
    """Return the flags of the strongest attack on a defense, less those all share.

    Where nobody attacks they are those of the defense's own runs; where no attack is
    valid, these and those that make attacks void.
    """
    if not line.card.trials:
        return line.defense.flags
    if line.best is None:
        rows = [t for t in line.card.trials if t.defense == line.label]
        void = {f.name: f for t in rows for f in t.flags if f.name in VOID}
        reasons = void | {f.name: f for f in line.defense.flags}
        return [reasons[name] for name in sorted(reasons)]
    common = common_flags(line.card)
    return [flag for flag in line.best.flags if flag.name not in common]


def flags_of(line: Line) -> str:
    """Return the names of a row's flags, and whether no attack on it is valid."""
    names = [flag.name for flag in raised(line)]
    if line.card.trials and line.best is None:
        names = ["no valid attack", *names]
    return ", ".join(names) or "-"


def common_flags(card: Scorecard) -> dict[str, str]:
    """Return the flags every row raises with one text: named once, below the table."""
    rows = [{f.name: f.text for f in t.flags} for t in card.trials if t.status == "ok"]
    first = rows[0] if rows else {}
    return {n: text for n, text in first.items() if all(r.get(n) == text for r in rows)}
