"""`python -m audit frontier RUN RUN ...`: accuracy against bounds, over many runs.

The layout of Guo et al. (2022), Figure 5: accuracy against lower bounds on the error of
an attacker, one point per configuration, and the Pareto front of each bound. Beside
them stands what that figure lacks: the error of the strongest attack that was tried.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.engine import store
from audit.errors import UserError, counted
from audit.report import columns
from audit.report.figures import common
from audit.report.leaderboard import standings
from audit.report.markdown import grid, literal
from audit.scorecard.card import replacing
from audit.scorecard.schema import DefenseRow, Scorecard
from audit.scorecard.view import bound_text, number

ATTACK = "strongest attack"
RENYI = "Rényi bound"
# the bounds of one defense, by what is made of its records' dFIL
OF_DFIL = {"1/max dFIL": "max", "1/mean dFIL": "mean", "1/median dFIL": "median"}
SERIES = (RENYI, *OF_DFIL, ATTACK)
BELOW = 1e-3  # of the least other value: a smaller Renyi bound stands at the edge


class Configuration(NamedTuple):
    """One defense of one run."""

    defense: str
    settings: dict[str, Any]
    accuracy: float
    errors: dict[str, float]  # by series; 0 where a bound is smaller than any number
    floor: float | None  # error of who ignores the release
    renyi: str = "none"  # that bound in words, however small
    pixels: bool = True  # whether coordinates lie in [0, 1]


def configurations(cards: list[Scorecard]) -> list[Configuration]:
    """Return every defense with an accuracy and 1/dFIL, most accurate first.

    Raises:
      UserError: if there is none, or the cards are of two scenarios or data sets.
    """
    for what, names in (
        ("scenarios", {card.scenario.scenario for card in cards}),
        ("data sets", {card.data.name for card in cards}),
    ):
        if len(names) > 1:
            text = " and ".join(sorted(names))
            raise UserError(f"frontier: these cards are of two {what}: {text}")
    each = [
        _configuration(card, label, defense)
        for card in cards
        for label, defense in card.defenses.items()
        if columns.usefulness(defense) is not None and _bounded(defense)
    ]
    if not each:
        raise UserError(
            "frontier: no defense on these cards has an accuracy and a bound by dFIL"
        )
    return sorted(each, key=lambda c: (-c.accuracy, c.errors[SERIES[1]]))


def _bounded(defense: DefenseRow) -> bool:
    """Return whether 1/dFIL bounds an error: some losses take weights for constants."""
    return any(bound.name == "cramer_rao" for bound in defense.bounds)


def _configuration(card: Scorecard, label: str, defense: DefenseRow) -> Configuration:
    assert defense.dfil is not None
    dfil = {name: float(defense.dfil[key]) for name, key in OF_DFIL.items()}
    errors = {name: 1 / value for name, value in dfil.items() if value > 0}
    renyi = "none"
    for bound in defense.bounds:
        if bound.name == "hammersley_chapman_robbins":
            errors[RENYI], renyi = float(bound.mean), bound_text(bound)
    best = columns.strongest(card, label)
    if best is not None and best.result is not None and best.result.mse is not None:
        errors[ATTACK] = float(best.result.mse)
    floor = None if card.floor.mse is None else float(card.floor.mse)
    accuracy = columns.usefulness(defense)
    assert accuracy is not None
    pixels = card.data.coordinate == "pixel"
    return Configuration(
        label, defense.settings, accuracy, errors, floor, renyi, pixels
    )


def fronts(points: list[Configuration]) -> dict[str, frozenset[int]]:
    """Return which configurations no other beats in accuracy and error, by series."""
    drawn = (name for name in SERIES if any(name in p.errors for p in points))
    return {
        name: standings.pareto([(p.accuracy, p.errors.get(name)) for p in points])
        for name in drawn
    }


def draw(points: list[Configuration]) -> Any:
    """Draw every configuration once per series, the fronts, and the floor."""
    look, front = common.looks(SERIES), fronts(points)
    attacked = ", and the strongest attack's" if ATTACK in front else ""
    words = f"MSE: lower bounds{attacked}", "test accuracy"
    figure, (axis,) = common.panels(1, (6.4, 4.6), *words)
    shown = [v for p in points for k, v in p.errors.items() if k != RENYI]
    least = BELOW * min(shown)
    for name, members in front.items():
        pairs = [(p.accuracy, p.errors[name]) for p in points if name in p.errors]
        values = np.maximum(np.array(pairs), (0, least)).T
        text = name
        if small := int((np.array(pairs)[:, 1] < least).sum()):
            text += f" ({small} of {len(pairs)} below the axis)"
        axis.scatter(*values, s=16, label=text, **look[name].points())
        line = sorted((points[i].accuracy, points[i].errors[name]) for i in members)
        line = [(x, y) for x, y in line if y >= least]
        if line:
            axis.plot(*zip(*line, strict=True), "--", lw=1, color=look[name].color)
    axis.set_yscale("log")
    axis.set_ylim(bottom=least)
    axis.set_xlim(right=min(axis.get_xlim()[1], 1))
    floors = [p.floor for p in points if p.floor is not None]
    if floors:
        text = "floor: ignores the release"
        axis.axhline(float(np.mean(floors)), label=text, **common.FLOOR)
    elif all(p.pixels for p in points):
        axis.axhline(1, label="1: any guess in [0, 1] does as well", **common.FLOOR)
    common.few_labels(axis.yaxis)
    common.legend_below(figure, 3)
    return figure


def table(points: list[Configuration], cards: list[Scorecard]) -> str:
    """Return the page: one row per configuration, and which runs it is made of."""
    every = list(dict.fromkeys(itertools.chain(*(p.settings for p in points))))
    varied = [k for k in every if len({str(p.settings.get(k)) for p in points}) > 1]
    front = fronts(points)

    def cells(i: int, point: Configuration) -> list[str]:
        settings = (literal(str(point.settings.get(k, "-"))) for k in varied)
        texts = {name: number(point.errors.get(name)) for name in front}
        texts |= {RENYI: point.renyi} if RENYI in texts else {}
        values = (
            f"{texts[name]}{' •' if i in members else ''}"
            for name, members in front.items()
        )
        return [point.defense, *settings, number(point.accuracy), *values]

    rows = [cells(i, point) for i, point in enumerate(points)]
    runs = [(c.provenance.command, c.provenance.git) for c in cards]
    commands = dict.fromkeys((c, git.commit if git else "") for c, git in runs)
    title, data = cards[0].scenario.title, cards[0].data.name
    floors = [p.floor for p in points if p.floor is not None]
    floor = f" Floor: {number(float(np.mean(floors)))}." if floors else ""
    prior = "an attack that uses a prior is biased and may lie below them"
    many = counted(len(points), "configuration")
    return "\n\n".join(
        [
            f"# Frontier: {title}, on {data}",
            f"{many}. Bounds are on the mean squared error of unbiased attackers; "
            f"{prior}. • no configuration beats it in both.{floor}",
            "![The same as a figure](frontier.png)",
            grid(["defense", *varied, "accuracy", *front], rows),
            "## Runs",
            grid(["command", "commit"], [[c, commit[:12]] for c, commit in commands]),
        ]
    )


def write(cards: list[Scorecard], out: Path) -> list[Path]:
    """Write frontier.png and frontier.md into a folder; return their paths."""
    store.make_writable(out, "out")
    points = configurations(cards)
    page, image = out / "frontier.md", out / "frontier.png"
    with replacing(page) as path:
        path.write_text(table(points, cards) + "\n")
    common.save(draw(points), image)
    return [page, image]
