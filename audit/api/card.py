"""A scorecard in Python: a table, its figures, its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit.api import files, shown
from audit.engine import store
from audit.errors import UserError, did_you_mean
from audit.report import columns, html, terminal
from audit.report.figures import drawings
from audit.report.html.template import fragment
from audit.scorecard.schema import DefenseRow, Number, Scorecard, TrialRow

# columns of `frame` that hold numbers, NaN where there is none
NUMBERS = (
    "value", "standard_error", "floor", "targets", "runs", "accuracy", "r2", "dfil",
    "dfil_relative_se", "rdp_order_2", "delta", "epsilon", "epsilon_add_remove",
)  # fmt: skip


class Card(Scorecard):
    """One audit, as `audit.run` and `audit.load` return it.

    Its fields are those of every scorecard (docs/scorecard.schema.json): `scenario`,
    `provenance`, `data`, `floor`, `defenses`, `trials`, and `arrays` of per-target
    values.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the table and its notes, as a run prints them."""
        return terminal.page(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the table and its notes for a notebook, everything escaped."""
        return fragment(columns.columns(self), columns.lines(self), _notes(self))

    def frame(self) -> Any:
        """Return a pandas DataFrame with one row per defense and attack.

        Its columns: scenario, data, seed, defense, attack, status, metric, value,
        standard_error, better (which value is the stronger attack's), floor, targets,
        runs, oracle, flags; of the defense: accuracy or r2, dfil (mean), rdp_order_2,
        epsilon and epsilon_add_remove (the tighter accountant's, at delta). What was
        not measured is NaN or None.
        """
        import pandas as pd

        rows = [_row(self, trial) for trial in self.trials]
        if not rows:  # nobody attacks
            rows = [_common(self, label) for label in self.defenses]
        frame = pd.DataFrame(rows)
        numbers = [name for name in NUMBERS if name in frame]
        return frame.astype(dict.fromkeys(numbers, float))

    @property
    def figures(self) -> list[str]:
        """The names that `plot` takes."""
        return [name.removesuffix(".png") for name in drawings(self)]

    def plot(self, name: str) -> Any:
        """Return one figure, by name, as a matplotlib Figure.

        Raises:
          UserError: if the card has no such figure; the text lists those it has.
        """
        every = {k.removesuffix(".png"): draw for k, draw in drawings(self).items()}
        if (wanted := str(name).removesuffix(".png")) not in every:
            raise UserError(f"no figure {name!r}{did_you_mean(wanted, every)}")
        return shown.in_notebooks(every[wanted](self))

    def save(self, folder: str | Path) -> Path:
        """Write what the command line writes, and the page; return the folder.

        `scorecard.json`, `scorecard.npz`, `scorecard.md`, `report.html`, and a PNG file
        per figure. A card that is there already is replaced.

        Raises:
          UserError: if it is no folder's path, or cannot be written.
        """
        place = files.place(folder, "folder")
        store.make_writable(place, "folder")
        files.write(self, place)
        html.write(place, place / html.PAGE)
        return place


def _notes(card: Scorecard) -> list[str]:
    return [line for line in terminal.notes(card).split("\n") if line]


def _common(card: Scorecard, label: str) -> dict[str, Any]:
    """Return what all rows of a defense share, its own numbers last."""
    scenario = card.scenario
    return {
        "scenario": scenario.scenario,
        "data": card.data.name,
        "seed": scenario.seed,
        "defense": label,
        **_measures(card.defenses[label]),
    }


def _measures(row: DefenseRow) -> dict[str, Any]:
    utility, epsilon = row.utility, row.epsilon
    numbers: dict[str, Any] = {
        "accuracy": utility and utility.accuracy,
        "r2": utility and utility.r2,
        "dfil": row.dfil and row.dfil.get("mean"),
        "dfil_relative_se": row.dfil and row.dfil.get("relative_se"),
        "rdp_order_2": row.rdp2,
        "delta": epsilon and epsilon.delta,
        "epsilon": epsilon and epsilon.replace_one and epsilon.replace_one.least,
        "epsilon_add_remove": epsilon
        and epsilon.add_remove
        and epsilon.add_remove.least,
    }
    return {name: _number(value) for name, value in numbers.items()}


def _row(card: Scorecard, trial: TrialRow) -> dict[str, Any]:
    common, result = _common(card, trial.defense), trial.result
    headline: Any = result and result.headline
    measured = list(_measures(card.defenses[trial.defense]))
    first = {k: v for k, v in common.items() if k not in measured}
    return {
        **first,
        "attack": trial.attack,
        "status": trial.status,
        "metric": headline and headline.metric,
        "value": _number(headline and headline.value),
        "standard_error": _number(headline and headline.standard_error),
        "better": headline and headline.better,
        "floor": _number(headline and headline.floor),
        "targets": result and result.targets,
        "runs": result and result.runs,
        "oracle": result and result.oracle,
        "flags": ", ".join(flag.name for flag in trial.flags),
        **{k: common[k] for k in measured},
    }


def _number(value: Number | None) -> float | None:
    return None if value is None else float(value)
