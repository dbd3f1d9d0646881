"""Figures of published numbers, and `python -m audit scale RUN RUN ...`.

`draw` sets a source's tables against each other, with our numbers beside them.

`scale` compares noises of different laws at equal Renyi divergence. Scorecards of
gradient inversion know the divergence of one update under each defense; scorecards of a
membership game with defenses of the same names and noise add what the noise hides of
who was trained on. Intervals are over seeds.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from audit.cli.reproduce.published import Panel, PublishedFigure
from audit.cli.reproduce.verdicts import ComparedNumber
from audit.engine import store
from audit.errors import UserError
from audit.report.columns import number
from audit.report.figures import common
from audit.report.figures import gradient_inversion as inversion
from audit.report.markdown import grid
from audit.scorecard import average_seeds, schema
from audit.scorecard.card import Scorecard, replacing

NOT_NOISE = ("steps", "batch_size", "sampling", "optimizer", "learning_rate")
CONFIDENCE = 0.95


def draw(figure: PublishedFigure, numbers: list[ComparedNumber], path: Path) -> None:
    """Draw every panel: published hollow, ours filled where both of its numbers exist.

    The numbers are those of the source, with the tables that the figure names.
    """
    series = dict.fromkeys(_series(n) for n in numbers)  # one colour in all panels
    colours = dict(zip(series, cycle(common.COLOURS), strict=False))
    quantity = {n.table: n.quantity for n in numbers}
    size, up = (3.0, 3.0), figure.panels[0].up
    drawn, axes = common.panels(len(figure.panels), size, quantity[up])
    handles: dict[str, Any] = {}
    for axis, panel in zip(axes, figure.panels, strict=True):
        count = listed = 0
        for name, lines in points(panel, numbers).items():
            ours = lines[~np.isnan(lines).any(1), 2:]
            count, listed = count + len(ours), listed + len(lines)
            style: dict[str, Any] = {"ms": 4, "color": colours[name]}
            (handles[f"{name}, published"],) = axis.plot(
                *lines[:, :2].T, "o-", lw=0.7, mfc="white", **style
            )
            if len(ours):
                (handles[f"{name}, ours"],) = axis.plot(*ours.T, "s", **style)
        axis.set_title(f"{panel.title}\nours: {count} of {listed}")
        axis.set_xlabel(quantity[panel.across])
    legend = {"loc": "outside lower center", "ncols": 4, **common.LEGEND}
    drawn.legend(handles.values(), handles, **legend)
    common.save(drawn, path)


def points(panel: Panel, numbers: list[ComparedNumber]) -> dict[str, np.ndarray]:
    """Return series -> [n, (across, up, ours across, ours up)].

    Ours are means over seeds, and nan where there is none.
    """
    across, up = (
        [n for n in numbers if n.table == t] for t in (panel.across, panel.up)
    )
    series = defaultdict[str, list[list[float | None]]](list)
    for x, y in zip(across, up, strict=True):
        series[_series(x)].append([x.published, y.published, x.ours, y.ours])
    return {name: np.array(lines, float) for name, lines in series.items()}


def _series(number: ComparedNumber) -> str:
    """Return what a row's name says before its first comma."""
    return number.row.split(",")[0]


# Scale --------------------------------------------------------------------------------


def read_cards(folders: list[Path]) -> list[Scorecard]:
    """Return the cards of runs. Raises UserError where there is no run or scorecard."""
    if not folders:
        raise UserError("scale which? give folders of runs, each with scorecard.json")
    files = [folder / "scorecard.json" for folder in folders]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such file")
    return [schema.load(file) for file in files]


def over_seeds(cards: list[Scorecard]) -> list[inversion.Point]:
    """Return the defenses that have a place on the scale, least divergence first.

    Their readings are means over the seeds of all cards, with half a 95% interval.
    Raises UserError if there is none, if two cards of one game differ in more than the
    seed or do not differ in it, or if two games mean different noise by one name.
    """
    games = defaultdict[str, list[Scorecard]](list)
    for card in cards:
        games[card.scenario.game].append(card)
    for game, same in games.items():
        average_seeds.check(same, f"of {game}")
    placed = {point.label: point for card in cards for point in inversion.points(card)}
    if not placed:
        raise UserError("scale: no card of exposed updates has a Renyi divergence")
    values = {label: defaultdict[str, list[float]](list) for label in placed}
    noises: dict[str, Any] = {}
    for card in cards:
        readings = {point.label: point.readings for point in inversion.points(card)}
        for label in placed.keys() & card.defenses:
            settings = card.defenses[label]["settings"]
            noise = {k: v for k, v in settings.items() if k not in NOT_NOISE}
            if noises.setdefault(label, noise) != noise:
                text = f"{label} is {noises[label]} in one card, {noise} in another"
                raise UserError(f"scale: {text}")
            means = {name: mean for name, (mean, _) in readings.get(label, {}).items()}
            means |= {
                f"AUC of {t['attack']}": float(t["result"]["auc"]["value"])
                for t in card.trials
                if t["defense"] == label and t["status"] == "ok" and t["use"] != "coin"
                if "auc" in t["result"]
            }
            for name, value in means.items():
                values[label][name].append(value)
    points = [
        point._replace(readings={q: interval(v) for q, v in values[label].items()})
        for label, point in placed.items()
    ]
    # equal to the digits shown: the last bits of divergences do not decide who is first
    return sorted(points, key=lambda p: (float(f"{p.divergence:.4g}"), p.use))


def interval(values: list[float]) -> tuple[float, float]:
    """Return mean and half width of its 95% interval over seeds; nan with one seed."""
    from scipy import stats

    n = len(values)
    if n < 2:
        return float(np.mean(values)), float("nan")
    width = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) / np.sqrt(n)
    return float(np.mean(values)), float(width * np.std(values, ddof=1))


def floors(cards: list[Scorecard]) -> dict[str, float]:
    """Return what each kind of quantity is where nothing leaks."""
    errors = [float(card.floor["mse"]) for card in cards if inversion.points(card)]
    return {"MSE": float(np.mean(errors)), "AUC": 0.5}


def write(cards: list[Scorecard], out: Path) -> list[Path]:
    """Write scale.md and scale.png, and matching.md and matching.png; return the paths.

    Of several data sets only the latter are drawn, one row each; where a data set has
    not both noises, only the former.
    """
    from audit.cli.reproduce import matching  # which imports JAX

    groups = defaultdict[str, list[Scorecard]](list)
    for card in cards:
        groups[card.scenario.get("data", "")].append(card)
    store.make_writable(out, "out")
    paths = _scale(cards, out) if len(groups) == 1 else []
    placed = {d: matching.places(over_seeds(each), each) for d, each in groups.items()}
    if not all(placed.values()):
        return paths
    floor = {data: floors(each)["MSE"] for data, each in groups.items()}
    page, image = out / "matching.md", out / "matching.png"
    text = [
        "# Noises matched in three ways",
        matching.table(placed, floor),
        _runs(cards),
    ]
    with replacing(page) as path:
        path.write_text("\n\n".join(text) + "\n")
    common.save(matching.draw(placed, floor), image)
    return [*paths, page, image]


def _scale(cards: list[Scorecard], out: Path) -> list[Path]:
    points, floor = over_seeds(cards), floors(cards)
    page, image = out / "scale.md", out / "scale.png"
    with replacing(page) as path:
        path.write_text(table(points, cards) + "\n")
    figure, axes = inversion.panels(points, 3.0, "Rényi divergence, one update")
    for axis, quantity in zip(axes, inversion.quantities(points), strict=True):
        kind = quantity.split()[0]
        if kind in floor:
            line = {"color": common.INK, "lw": 1, "ls": ":"}
            axis.axhline(floor[kind], label="nothing leaks", **line)
    common.legend_below(figure)
    common.save(figure, image)
    return [page, image]


def table(points: list[inversion.Point], cards: list[Scorecard]) -> str:
    """Return the page: one row per defense, and which runs it is made of."""
    names = inversion.quantities(points)
    rows = [
        [p.label, p.use, f"{p.divergence:.4g}", *(_cell(p, name) for name in names)]
        for p in points
    ]
    floor = ", ".join(f"{k} {number(v)}" for k, v in floors(cards).items())
    return "\n\n".join(
        [
            "# Noises on one scale",
            "The divergence is that of one update when one record is replaced. ± is "
            f"half a {CONFIDENCE:.0%} interval of Student's t over seeds, where there "
            f"are two or more. Where nothing leaks: {floor}.",
            grid(["defense", "", "Rényi divergence of order 2", *names], rows),
            "![The same as a figure](scale.png)",
            _runs(cards),
        ]
    )


def _runs(cards: list[Scorecard]) -> str:
    """Return which runs a page is made of."""
    commands = dict.fromkeys(
        (c.provenance["command"], (c.provenance.get("git") or {}).get("commit"))
        for c in cards
    )
    rows = ([command, (git or "")[:12]] for command, git in commands)
    return "## Runs\n\n" + grid(["command", "commit"], rows)


def _cell(point: inversion.Point, quantity: str) -> str:
    if quantity not in point.readings:
        return "-"
    mean, half = point.readings[quantity]
    return number(mean) if np.isnan(half) else f"{number(mean)} ± {number(half)}"
