"""Files beside a scorecard that a page may link to."""

from __future__ import annotations

from pathlib import Path

# figures by what a reader looks for, the first that is there counts
PER_TARGET = (
    "mse_vs_bound.png", "mse_vs_bound_records.png", "success_by_eta.png",
    "separation_vs_dfil.png", "eta_by_class.png",
)  # fmt: skip
REBUILT = ("reconstructions.png", "rebuilt.png", "eta_extremes.png")
LINKS = {"per target": PER_TARGET, "rebuilt": REBUILT, "ROC": ("roc.png",)}


def beside(folder: Path, name: str) -> Path | None:
    """Return the file `name` in `folder`, or None: not there, or not inside it.

    A link that leads out of the folder is not followed.
    """
    path = folder / name
    if Path(name).name != name or not path.is_file():
        return None
    return path if path.resolve().parent == folder.resolve() else None


def figures(folder: Path) -> list[str]:
    """Return the names of the figures in a card's folder."""
    names = sorted(p.name for p in folder.glob("*.png"))
    return [name for name in names if beside(folder, name)]


def pick(names: list[str], wanted: tuple[str, ...]) -> str | None:
    """Return the first wanted name there is."""
    return next((name for name in wanted if name in names), None)
