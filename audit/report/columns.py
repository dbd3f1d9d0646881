"""The cells of a scorecard's tables: which columns there are, and how numbers print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.accounting.bounds import format_bound
from audit.report import audit_cells
from audit.scorecard.card import Scorecard
from audit.scorecard.flags import VOID

MARKS = {"note": "i", "warning": "!", "error": "×"}  # of flags: apart without colour
NARROW = ("cramer_rao", "hammersley_chapman_robbins", "finite_prior")  # ranked bounds
SHORT = {
    "cramer_rao": "1/dFIL",
    "hammersley_chapman_robbins": "HCR",
    "van_trees": "van Trees",
    "finite_prior": "finite prior",
}
TOP = 100  # records with the largest eta, compared between defenses


class Line(NamedTuple):
    """One defense of a card, with its strongest attack."""

    card: Scorecard
    label: str
    own: dict[str, Any]
    best: dict[str, Any] | None


class Column(NamedTuple):
    """One column of the table of defenses."""

    header: str
    cell: Callable[[Line], str]
    narrow: bool = True  # in the terminal too, not only in markdown
    right: bool = True


# Rows ---------------------------------------------------------------------------------


def lines(card: Scorecard) -> list[Line]:
    """Return the defenses in order."""
    return [
        Line(card, label, own, strongest(card, label))
        for label, own in card.defenses.items()
    ]


def bound_names(card: Scorecard) -> dict[str, str]:
    """Return the bounds on a card and how tables call them: the suite's own first."""
    held = {b["name"] for own in card.defenses.values() for b in own["bounds"]}
    ours = {name: short for name, short in SHORT.items() if name in held}
    return ours | {name: name for name in sorted(held - set(SHORT))}


def strongest(card: Scorecard, defense: str) -> dict[str, Any] | None:
    """Return the attack with the smallest error on a defense, oracles aside."""
    rows = [
        t
        for t in card.trials
        if t["defense"] == defense and t["status"] == "ok" and not t["result"]["oracle"]
    ]
    sound = [t for t in rows if not VOID & {f["name"] for f in t["flags"]}]
    return min(sound, key=lambda t: error(t["result"]), default=None)


def error(result: dict[str, Any]) -> float:
    """Return what a smaller value of makes an attack stronger."""
    if "auc" in result:
        return -float(result["auc"]["value"])
    if "epsilon_lower" in result:
        return -result["epsilon_lower"]
    return result["mse"] if "mse" in result else -result["success"]


def shared(card: Scorecard) -> dict[str, dict[str, int]]:
    """Return how many of the `TOP` records with the largest eta two defenses share.

    Nothing where there are fewer than two defenses with an eta, or few records.
    """
    etas = {
        label: card.arrays[f"{label}/eta"]
        for label, own in card.defenses.items()
        if own.get("eta")
    }
    if len(etas) < 2 or min(map(len, etas.values())) < 2 * TOP:
        return {}
    tops = {
        label: set(np.argsort(-eta, kind="stable")[:TOP].tolist())
        for label, eta in etas.items()
    }
    return {
        label: {other: len(own & tops[other]) for other in tops}
        for label, own in tops.items()
    }


def columns(card: Scorecard) -> list[Column]:
    """Return the columns that have something to say on this card."""
    game, attacked = card.scenario["game"], bool(card.trials)
    # for more than the attack's columns
    room = not attacked or game in ("attribute", "canary", "one_run")
    found = [
        Column("defense", lambda v: v.label, right=False),
        Column(_utility_name(card), lambda v: utility(v.own)),
    ]
    if any(_noiseless(own) is not None for own in card.defenses.values()):
        cell = lambda v: number(_noiseless(v.own))  # noqa: E731
        found.append(Column("noiseless", cell, narrow=room))
    if any(own.get("eta") for own in card.defenses.values()):
        found.append(Column("η, mean ± sd", lambda v: eta(v.own), narrow=room))
    if attacked:
        found += ATTACKED[game]
    found += BOUNDED[game]
    found += [_named(name, False) for name in bound_names(card) if name not in SHORT]
    return [*found, Column("flags", lambda v: _flags(v), right=False)]


def _utility_name(card: Scorecard) -> str:
    given = [own["utility"] for own in card.defenses.values() if own["utility"]]
    return "R²" if given and all("r2" in u for u in given) else "accuracy"


def _noiseless(own: dict[str, Any]) -> float | None:
    return (own["utility"] or {}).get("noiseless")


def _flags(line: Line) -> str:
    if not line.card.trials:  # nobody attacks: what its own runs say
        return flag_names({"flags": line.own.get("flags", [])}, set())
    common = set(common_flags(line.card))
    return flag_names(line.best, common) if line.best else "no valid attack"


def flag_names(row: dict[str, Any], common: set[str]) -> str:
    """Return the names of a row's own flags."""
    names = [f["name"] for f in row["flags"] if f["name"] not in common]
    return ", ".join(names) or "-"


def common_flags(card: Scorecard) -> dict[str, str]:
    """Return the flags every row raises with one text: said once, below the table."""
    rows = [
        {f["name"]: f["text"] for f in t["flags"]}
        for t in card.trials
        if t["status"] == "ok"
    ]
    first = rows[0] if rows else {}
    return {n: text for n, text in first.items() if all(r.get(n) == text for r in rows)}


# Cells --------------------------------------------------------------------------------


def number(value: float | str | None, digits: int = 4) -> str:
    """Return a number as the tables print it: .0123, 3.2e-05, 4.5e+04, nan, or none."""
    if value is None:
        return "none"
    value = float(value)
    if value and (abs(value) < 5 * 10.0**-digits or 1e4 <= abs(value) < float("inf")):
        return f"{value:.1e}"
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def with_error(value: float | str | None, error: float | str | None) -> str:
    """Return "value ± error", both to the same digits; without an error the value."""
    if value is None or error is None:  # too few to tell, or none at all
        return number(value)
    value, error = float(value), float(error)
    if abs(value) < 1e-3 or abs(value) >= 1e3:
        return f"{value:.1e} ± {error:.0e}"
    return " ± ".join(f"{v:.4f}".removeprefix("0") for v in (value, error))


def utility(own: dict[str, Any]) -> str:
    """Return a defense's test accuracy, or R^2."""
    held = own["utility"] or {}
    return number(held.get("accuracy", held.get("r2")))


def eta(own: dict[str, Any]) -> str:
    """Return mean and standard deviation of eta over the records."""
    held = own.get("eta")
    if not held:
        return "none"
    digits = 3 if float(held["mean"]) < 1 else 2
    return " ± ".join(
        f"{float(held[k]):.{digits}f}".removeprefix("0") for k in ("mean", "sd")
    )


def lpips(result: dict[str, Any]) -> str:
    """Return a trial's LPIPS."""
    if result["lpips"] is None:
        return "unavailable" if "lpips_unavailable" in result else "-"
    return f"{result['lpips']:.3f}".removeprefix("0")


def bound_text(bound: dict[str, Any], which: str = "mean") -> str:
    """Return a bound as the tables print it."""
    return format_bound(float(bound[which]), bound["log10"])


def _bound(own: dict[str, Any], name: str, which: str = "mean") -> str:
    held = next((b for b in own["bounds"] if b["name"] == name), None)
    return "none" if held is None else bound_text(held, which)


def _of_best(cell: Callable[[dict[str, Any]], str]) -> Callable[[Line], str]:
    return lambda line: "none" if line.best is None else cell(line.best["result"])


def _attack(line: Line) -> str:
    return "none" if line.best is None else line.best["attack"]


def _beats_floor(line: Line) -> str:
    """Return the largest share of records an attack rebuilds better than the floor."""
    shares = [
        t["result"]["beats_floor"]
        for t in line.card.trials
        if t["defense"] == line.label and t["status"] == "ok"
    ]
    return f"{max(shares):.0%}" if shares else "none"


def _floor(line: Line) -> str:
    return number(line.card.floor["mse"])


def _named(name: str, narrow: bool) -> Column:
    return Column(SHORT.get(name, name), lambda v: _bound(v.own, name), narrow)


def _auc(result: dict[str, Any]) -> str:
    held = result["auc"]
    return f"{number(held['value'], 3)} ± {number((held['high'] - held['low']) / 2, 3)}"


def _tpr(fpr: float) -> Callable[[dict[str, Any]], str]:
    """Return the true-positive rate at a threshold from shadow models."""

    def cell(result: dict[str, Any]) -> str:
        point = result["operating"]["shadows"][result["fprs"].index(fpr)]
        return (
            "n/a" if isinstance(point, str) else f"{100 * point['tpr']['value']:.3g}%"
        )

    return cell


def _epsilon(line: Line) -> str:
    """Return the accounted epsilon of the game's adjacency."""
    held = line.own["epsilon"]
    held = held and held[line.own["membership"]["adjacency"]]
    return number(held and (held["tight"] or held["rdp"]), 2)


_MEMBERSHIP = [
    Column("strongest", _attack, right=False),
    Column("AUC ± 95%", _of_best(_auc)),
    Column("TPR@1%", _of_best(_tpr(1e-2))),
    Column("TPR@.1%", _of_best(_tpr(1e-3))),
    Column("ε upper", _epsilon),
]
_RECONSTRUCTED = [
    Column("strongest", _attack, right=False),
    Column("MSE ± s.e.", _of_best(lambda r: with_error(r["mse"], r["mse_se"]))),
    Column("LPIPS", _of_best(lpips)),
    Column("floor", _floor),
]
_REBUILT_IN_TURN = [
    *_RECONSTRUCTED[:2],
    _RECONSTRUCTED[2]._replace(narrow=False),
    _RECONSTRUCTED[3],
    Column("beaten", _beats_floor),
]
ATTACKED = {
    "reconstruction": _RECONSTRUCTED,
    "leave_one_out": _REBUILT_IN_TURN,
    "anatomy": _REBUILT_IN_TURN,
    "exposed": [
        *_RECONSTRUCTED,
        Column(
            "normalised median", _of_best(lambda r: number(r["mse_normalised_median"]))
        ),
        Column("PSNR", _of_best(lambda r: number(r["psnr_median"], 1)), narrow=False),
        Column("matched", _of_best(lambda r: f"{r['matching']:.0%}"), narrow=False),
    ],
    "canary": [
        Column("attack", _attack, right=False),
        *(Column(h, _of_best(cell)) for h, cell in audit_cells.CANARY.items()),
    ],
    "one_run": [
        Column("attack", _attack, right=False),
        *(Column(h, _of_best(cell)) for h, cell in audit_cells.ONE_RUN.items()),
    ],
    "attribute": [
        Column("strongest", _attack, right=False),
        Column(
            "guessed", _of_best(lambda r: with_error(r["success"], r["success_se"]))
        ),
        Column("floor", lambda v: number(1 - v.card.floor["mse"])),
    ],
    "membership": _MEMBERSHIP,
    "membership_replace_one": _MEMBERSHIP,
}
_OF_ONE = [
    Column("least 1/dFIL", lambda v: _bound(v.own, "cramer_rao", "min")),
    Column("median", lambda v: _bound(v.own, "cramer_rao", "median")),
    Column("1/dFIL mean", lambda v: _bound(v.own, "cramer_rao"), narrow=False),
    _named("hammersley_chapman_robbins", narrow=True),
    _named("van_trees", narrow=False),
]
BOUNDED = {
    "reconstruction": [_named(name, name in NARROW) for name in SHORT],
    "leave_one_out": _OF_ONE,
    "anatomy": _OF_ONE,
    "attribute": [],
    "exposed": [_named(name, narrow=True) for name in NARROW[:2]],
    "membership": [],
    "membership_replace_one": [],
    "canary": [],
    "one_run": [],
}
