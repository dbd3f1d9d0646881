"""`python -m audit scale CARDS`: noises of different laws at equal Renyi divergence.

Cards of the game `exposed` know the divergence of one update under each defense; cards
of a membership game with defenses of the same names and noise add what it hides of who
was trained on. One figure, one table; seeds are what intervals are over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.errors import UserError
from audit.report import markdown
from audit.report.columns import number

NOT_NOISE = ("steps", "batch_size", "sampling", "optimizer", "learning_rate")
CONFIDENCE = 0.95


class Asked(NamedTuple):
    """The words of the command."""

    cards: list[dict[str, Any]]
    out: Path


class Point(NamedTuple):
    """One defense on the scale."""

    label: str
    use: str
    divergence: float  # of order 2, one update, one record replaced
    values: dict[str, list[float]]  # quantity -> one a seed


def words(given: list[str]) -> Asked:
    """Return the cards and the folder the words name.

    Raises:
      UserError: naming the word that is wrong.
    """
    out, folders = Path("results/scale"), []
    for word in given:
        if word.startswith("out="):
            out = Path(word.removeprefix("out="))
        elif "=" in word:
            raise UserError(f"scale takes folders of runs and out=DIR, not {word!r}")
        else:
            folders.append(Path(word))
    if not folders:
        raise UserError("scale which? give folders of runs, each with scorecard.json")
    return Asked([_card(folder) for folder in folders], out)


def _card(folder: Path) -> dict[str, Any]:
    from audit.scorecard import schema

    file = folder / "scorecard.json"
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    return schema.load(file)._asdict()


def points(cards: list[dict[str, Any]]) -> list[Point]:
    """Return every defense that has a place on the scale, weakest divergence first.

    Raises:
      UserError: if no card has one, or two cards mean different noise by one name.
    """
    exposed = [c for c in cards if c["scenario"]["game"] == "exposed"]
    places = {
        label: (own["use"], own["rdp2"], _noise(own))
        for card in exposed
        for label, own in card["defenses"].items()
        if own["rdp2"] is not None
    }
    if not places:
        raise UserError("scale: no card of the game exposed has a Renyi divergence")
    found = []
    for label, (use, divergence, noise) in places.items():
        values: dict[str, list[float]] = {}
        for card in cards:
            own = card["defenses"].get(label)
            if own is None:
                continue
            if _noise(own) != noise:
                raise UserError(
                    f"scale: {label} is {noise} in one card, {_noise(own)} in another"
                )
            for quantity, value in _read(card, label).items():
                values.setdefault(quantity, []).append(value)
        found.append(Point(label, use, float(divergence), values))
    # equal to the digits shown: the last bits of divergences do not decide who is first
    return sorted(found, key=lambda p: (float(f"{p.divergence:.4g}"), p.use))


def _noise(own: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in own["settings"].items() if k not in NOT_NOISE}


def _read(card: dict[str, Any], label: str) -> dict[str, float]:
    """Return what one card says of one defense; accuracy of the exposed models only."""
    held = {}
    if card["scenario"]["game"] == "exposed":
        held["accuracy"] = float(card["defenses"][label]["utility"]["accuracy"])
    for trial in card["trials"]:
        if trial["defense"] != label or trial["status"] != "ok":
            continue
        if trial["use"] == "gradient_inversion":
            held[f"MSE of {trial['attack']}"] = float(trial["result"]["mse"])
        elif "auc" in trial["result"] and trial["use"] != "coin":
            auc = float(trial["result"]["auc"]["value"])
            held[f"AUC of {trial['attack']}"] = auc
    return held


def interval(values: list[float]) -> tuple[float, float]:
    """Return mean and half width of its 95% interval over seeds; nan with one seed."""
    from scipy import stats

    n = len(values)
    if n < 2:
        return float(np.mean(values)), float("nan")
    width = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) / np.sqrt(n)
    return float(np.mean(values)), float(width * np.std(values, ddof=1))


def floors(cards: list[dict[str, Any]]) -> dict[str, float]:
    """Return what each kind of quantity is where nothing leaks."""
    errors = [
        float(c["floor"]["mse"]) for c in cards if c["scenario"]["game"] == "exposed"
    ]
    return {"MSE": float(np.mean(errors)), "AUC": 0.5}


def write(asked: Asked) -> list[Path]:
    """Write scale.png and scale.md; return their paths."""
    from audit.scorecard.card import replacing

    found = points(asked.cards)
    asked.out.mkdir(parents=True, exist_ok=True)
    with replacing(asked.out / "scale.md") as path:
        path.write_text(table(found, asked.cards) + "\n")
    _draw(found, floors(asked.cards), asked.out / "scale.png")
    return [asked.out / "scale.md", asked.out / "scale.png"]


def table(found: list[Point], cards: list[dict[str, Any]]) -> str:
    """Return the page: one row a defense, and which runs it is made of."""
    quantities = _quantities(found)
    rows = [
        [p.label, p.use, f"{p.divergence:.4g}", *(_cell(p, q) for q in quantities)]
        for p in found
    ]
    header = ["defense", "", "Rényi divergence of order 2", *quantities]
    made = dict.fromkeys(
        (c["provenance"]["command"], (c["provenance"].get("git") or {}).get("commit"))
        for c in cards
    )
    runs = markdown.grid(
        ["command", "commit"], ([c, (git or "")[:12]] for c, git in made)
    )
    floor = ", ".join(f"{k} {number(v)}" for k, v in floors(cards).items())
    return "\n\n".join(
        [
            "# Noises on one scale",
            "The divergence is that of one update when one record is replaced. ± is "
            f"half a {CONFIDENCE:.0%} interval of Student's t over seeds, where there "
            f"are two or more. Where nothing leaks: {floor}.",
            markdown.grid(header, rows),
            "![The same as a figure](scale.png)",
            "## Runs",
            runs,
        ]
    )


def _quantities(found: list[Point]) -> list[str]:
    return list(dict.fromkeys(q for p in found for q in p.values))


def _cell(point: Point, quantity: str) -> str:
    if quantity not in point.values:
        return "-"
    mean, half = interval(point.values[quantity])
    return number(mean) if np.isnan(half) else f"{number(mean)} ± {number(half)}"


def _draw(found: list[Point], floor: dict[str, float], path: Path) -> None:
    from audit.report.figures import common

    plt, quantities = common.pyplot(), _quantities(found)
    figure, axes = plt.subplots(
        1, len(quantities), figsize=(3.9 * len(quantities), 3.8), squeeze=False
    )
    uses = sorted({p.use for p in found})
    for axis, quantity in zip(axes[0], quantities, strict=True):
        for use, colour in zip(uses, common.COLOURS, strict=False):
            own = [p for p in found if p.use == use and quantity in p.values]
            each = [(p.divergence, *interval(p.values[quantity])) for p in own]
            shown = [(at, mean, np.nan_to_num(half)) for at, mean, half in each]
            common.means(axis, shown, use, colour)
        kind = quantity.split()[0]
        if kind in floor:
            line = axis.axhline(floor[kind], color=common.INK, lw=1, ls=":")
            axis.legend([line], ["nothing leaks"], frameon=False)
        axis.set(xscale="log", xlabel="Rényi divergence, one update", ylabel=quantity)
        axis.grid(color=common.MUTED, alpha=0.25)
    axes[0, 0].legend(frameon=False)
    common.save(figure, path)
