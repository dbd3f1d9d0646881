"""What the informed attacker's success depends on: one card per switch, one table.

    python -m tests.benchmarks.informed_switches results/informed_switches data=mnist5k

Every switch is `informed_mnist` with one word changed, at a small size unless further
words say otherwise. Cards are written to FOLDER/SWITCH, the table to FOLDER/table.md.
What is finished is not run again.
"""

import sys
from pathlib import Path

from audit.__main__ import main as audit
from audit.report.columns import number
from audit.report.markdown import grid
from audit.scorecard import card as cards
from audit.scorecard.view import with_error

SMALL = (
    "{splits}.fixed=200",
    "{splits}.targets=100",
    "attack.reconstructor.width=300",
    "attack.reconstructor.width_last=300",
)
SWITCHES = {
    "reference": (),
    "label_known": ("attack.reconstructor.label=true",),
    "shadows_500": ("attack.reconstructor.shadows=500",),
    "fresh_start": ("training.start=fresh",),
    "fixed_50": ("{splits}.fixed=50",),
    "fixed_500": ("{splits}.fixed=500",),
    "width_5": ("task.settings.hidden=5",),
    "width_20": ("task.settings.hidden=20",),
    "relu": ("task.settings.activation=relu",),
    "tanh": ("task.settings.activation=tanh",),
}


def row(name, words, card):
    """Return one line of the table."""
    (result,) = (t.result for t in card.trials if t.attack == "reconstructor")
    return [
        name,
        " ".join(words),
        number(card.defenses["sgd"].utility.accuracy),
        number(result["mae_plus_mse"]),
        with_error(result.mse, result.mse_se),
        number(card.floor.mse),
        f"{100 * result['win_rate']:.0f}%",
    ]


def main(folder, *common):
    """Run what is missing and write the table."""
    data = dict(word.split("=", 1) for word in common)["data"]
    rows = []
    for name, changed in SWITCHES.items():
        out = Path(folder) / name
        splits = f"sets.{data}.splits"
        small, words = ([w.format(splits=splits) for w in g] for g in (SMALL, changed))
        chosen = {w.split("=", 1)[0]: w for w in (*small, *common, *words)}
        if not (out / "scorecard.json").exists():
            run = "run", "scenario=informed_mnist", *chosen.values(), f"out={out}"
            audit(list(run))
        rows.append(row(name, words, cards.load(out)))
    heads = "switch", "words", "accuracy", "MAE + MSE", "MSE", "floor", "wins"
    (Path(folder) / "table.md").write_text(grid(heads, rows) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
