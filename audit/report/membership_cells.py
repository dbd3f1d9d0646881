"""How the rates of a membership attack print; what a reader must know of them."""

from __future__ import annotations

from typing import Any

from audit.report.columns import number


def estimate(held: dict[str, Any] | None, digits: int = 3) -> str:
    """Return "value [low, high]", or "-"."""
    if held is None:
        return "-"
    value, low, high = (number(held[k], digits) for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def rate(result: dict[str, Any], fpr: float, chosen_on: str, *, full: bool) -> str:
    """Return the true-positive rate at one nominal false-positive rate.

    Args:
      result: of a trial.
      fpr: nominal.
      chosen_on: `shadows` or `targets`.
      full: with interval, counts and the realised rate.
    """
    point = result["operating"][chosen_on][result["fprs"].index(fpr)]
    if isinstance(point, str):
        return point
    tpr, real = point["tpr"], point["fpr"]
    short = percent(tpr["value"])
    if not full:
        return short
    limits = f"[{percent(tpr['low'])}, {percent(tpr['high'])}]"
    return f"{short} {limits} {tpr['k']}/{tpr['n']}; FPR {percent(real['value'])}"


def percent(share: float) -> str:
    """Return a small share in percent, to two digits."""
    return f"{100 * float(share):.3g}%"


def balanced(result: dict[str, Any], chosen_on: str) -> str:
    """Return the balanced accuracy at the threshold chosen there."""
    held = next(a for a in result["accuracy"] if a["chosen_on"] == chosen_on)
    return number(held["value"], 3)


def _at(fpr: float, chosen_on: str) -> Any:
    return lambda r: rate(r, fpr, chosen_on, full=True)


TABLE = {
    "AUC [95%]": lambda r: estimate(r["auc"]),
    "over loss_threshold": lambda r: estimate(r.get("over_loss_threshold")),
    "accuracy, threshold from shadows": lambda r: balanced(r, "shadows"),
    "from targets": lambda r: balanced(r, "targets"),
    **{
        f"TPR at {percent(fpr)} FPR, from {where}": _at(fpr, where)
        for where in ("shadows", "targets")
        for fpr in (1e-2, 1e-3, 1e-4)
    },
}
SAID = (
    "One threshold for all records. From shadows: chosen on the attacker's own "
    "calibration models, which is what can be deployed; the realised FPR stands beside "
    "it. From targets: chosen on the scored models themselves, optimistic, and what "
    "papers print. Rates have Clopper-Pearson intervals on the counts beside them, as "
    "if all scores were independent; those of the AUC take records as what is. "
    "unavailable (n): fewer than 10/FPR non-members."
)


def leakage(card: Any) -> list[list[str]]:
    """Return a row a defense: how well each record's signals tell models apart."""
    rows = []
    for label, own in card.defenses.items():
        held = own["membership"]
        spread = [number(held["separation"][k], 3) for k in ("mean", "median", "q90")]
        most = number(held["separation"]["max"], 3)
        against = estimate(held.get("against_dfil"))
        adjacency = held["adjacency"].replace("_", "-")
        rows.append([label, *spread, most, against, adjacency])
    return rows


LEAKAGE = [
    "defense",
    "separation, mean",
    "median",
    "90%",
    "largest",
    "rank correlation with dFIL [95%]",
    "adjacency",
]
LEAKAGE_SAID = (
    "Separation: of one record's signals on shadow models with and without it, the AUC "
    "of the best threshold for this record alone; .5 where nothing leaks. The "
    "adjacency is that of the game's design: compare with epsilon under that name."
)
