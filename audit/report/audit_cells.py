"""The cells of an audited epsilon: columns, units, and the table of all estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cell = Callable[[dict[str, Any]], str]
UNITS = {
    "canary": "ε upper, lower: of the add-or-remove game at the card's delta; lower "
    "ends hold with 95% each: GDP's threshold is fixed in advance, CP's and Bayes' "
    "paid for by Bonferroni; above: audits whose lower end exceeds the upper one",
    "one_run": "ε upper, lower: of the add-or-remove game at the card's delta; lower "
    "ends hold with 95% each, guesses fixed in advance, median over audits; above: "
    "audits whose lower end exceeds the upper one",
}
NAMES = {
    "clopper_pearson": "Clopper-Pearson",
    "gdp": "GDP",
    "bayesian": "Bayesian",
    "one_run": "one run",
    "one_run_fdp": "one run, f-DP",
}
SAID = (
    "upper: the tighter of privacy-loss distribution and Renyi curve. GDP and f-DP "
    "hold of Gaussian claims only, and are left out elsewhere; the Bayesian number is "
    "credible, not a confidence bound."
)


def epsilon(value: float | None) -> str:
    """Return an epsilon as the tables print it."""
    return "none" if value is None else f"{float(value):.3f}"


def _of(method: str) -> Cell:
    """Return the cell of one estimator."""

    def cell(result: dict[str, Any]) -> str:
        held = result["lower"].get(method)
        if held is None:
            return "-"
        return epsilon(held[result["headline"][method]]["epsilon"])

    return cell


def _median(method: str) -> Cell:
    def cell(result: dict[str, Any]) -> str:
        held = result["epsilon_lower_median"].get(method)
        return "-" if held is None else epsilon(held)

    return cell


def _ratio(result: dict[str, Any]) -> str:
    if not result["upper"]:
        return "-"
    return f"{float(result['epsilon_lower']) / float(result['upper']):.2f}"


def _above(result: dict[str, Any]) -> str:
    return f"{result['above_upper'][result['method']]} of {result['audits']}"


def _auc(result: dict[str, Any]) -> str:
    auc = result["auc"]
    low, value, high = (float(auc[k]) for k in ("low", "value", "high"))
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


CANARY: dict[str, Cell] = {
    "ε upper": lambda r: epsilon(r["upper"]),
    "RDP": lambda r: epsilon(r["upper_rdp"]),
    "ε lower, GDP": _of("gdp"),
    "CP": _of("clopper_pearson"),
    "Bayes": _of("bayesian"),
    "lower/upper": _ratio,
    "above": _above,
}
ONE_RUN: dict[str, Cell] = {
    "ε upper": lambda r: epsilon(r["upper"]),
    "RDP": lambda r: epsilon(r["upper_rdp"]),
    "ε lower, f-DP": _median("one_run_fdp"),
    "one run": _median("one_run"),
    "above": _above,
}
MORE: dict[str, Cell] = {
    "runs a side": lambda r: str(r["runs"]),
    "AUC, 95%": _auc,
}


def tables(card: Any) -> list[str]:
    """Return every estimator and every way to pay for its threshold, and the rates."""
    lowers, rates, header = [], [], "| defense | attack | estimator | fixed | split |"
    for t in card.trials:
        if t["status"] != "ok" or "lower" not in t["result"]:
            continue
        who = f"| {t['defense']} | {t['attack']} |"
        for method, by in t["result"]["lower"].items():
            cells = [_counted(one) for one in by.values()]
            lowers.append(f"{who} {NAMES[method]} | {' | '.join(cells)} |")
        rates += [f"{who} {_rate(o)} |" for o in t["result"].get("operating", [])]
    if not lowers:
        return []
    top = [f"{header} Bonferroni | many splits |", "|---" * 7 + "|"]
    out = ["### Lower ends of epsilon", "\n".join([*top, *lowers])]
    if rates:
        top = ["| defense | attack | FPR | realised | TPR, 95% |", "|---" * 5 + "|"]
        out += ["### Rates, threshold chosen on targets", "\n".join([*top, *rates])]
    return out


def _counted(one: dict[str, Any]) -> str:
    counts = (
        f"{one['tp']}/{one['p']}, {one['fp']}/{one['n']}"
        if "tp" in one
        else f"{one['right']}/{one['guesses']}"
    )
    return f"{epsilon(one['epsilon'])} ({counts})"


def _rate(point: dict[str, Any]) -> str:
    nominal = f"{float(point['nominal']):.2%}"
    if "unavailable" in point:
        return f"{nominal} | - | {point['unavailable']}"
    fpr, tpr = point["fpr"], point["tpr"]
    value, low, high = (f"{float(tpr[k]):.4f}" for k in ("value", "low", "high"))
    realised = f"{float(fpr['value']):.4%} ({fpr['k']}/{fpr['n']})"
    return f"{nominal} | {realised} | {value} [{low}, {high}] ({tpr['k']}/{tpr['n']})"
