"""Fixtures for pytest: run or read a scorecard, and hold attacks and bounds to it.

pytest loads this module wherever the package is installed, so neither it nor
`audit.testing` imports JAX, NumPy or the suite until a test asks for a fixture. See
docs/strength.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def scorecard() -> Callable[..., Any]:
    """Return a function that gives the scorecard of a run, or of a folder.

    `scorecard("binary_mnist", "data=digits", "runs=2")` runs a scenario with words as
    after `python -m audit run`, once per session for equal words; nothing is written.
    `"--plugins", "mine"` among them is a folder with defenses or attacks of your own.
    `scorecard("results/binary_mnist-mnist")` reads what a run wrote; a path that holds
    no card is an error, never the name of a scenario.
    """
    cards: dict[tuple[str, ...], Any] = {}

    def get(what: str | Path, *words: str) -> Any:
        from audit.report import html
        from audit.testing import strength

        key = (str(what), *words)
        if key not in cards:
            folder = Path(what)
            there = (folder / "scorecard.json").is_file()
            cards[key] = (
                html.load(folder)
                if not words and (there or len(folder.parts) > 1)
                else strength.play([f"scenario={what}", *words])[0]
            )
        return cards[key]

    return get


@pytest.fixture(scope="session")
def assert_attack_at_least() -> Callable[..., None]:
    """Return a function that fails where an attack is weaker than the numbers given.

    `assert_attack_at_least(card, "reconstructor", "sgd", mse=0.02)`: an error at most
    that, or an AUC, success rate, epsilon at least that. Labels are the line-up's. A
    row that a flag makes void fails too: its number says nothing.
    """

    def check(card: Any, attack: str, defense: str, **limits: float) -> None:
        from audit.scorecard.flags import VOID
        from audit.scorecard.path import trial
        from audit.testing.strength import STRONGER, Cell, value

        if not limits:
            raise TypeError("say how strong, e.g. mse=0.02 or auc=0.6")
        for metric, limit in limits.items():
            cell = Cell(attack, defense, metric)
            reached = value(card, cell)
            flags = {flag.name for flag in trial(card, defense, attack).flags}
            void = ", ".join(sorted(VOID & flags))
            assert not void, f"{attack} on {defense} is void: {void}"
            sign = ">=" if STRONGER[metric] else "<="
            strong = reached >= limit if STRONGER[metric] else reached <= limit
            assert strong, f"{cell.name} = {reached:.6g}, wanted {sign} {limit:.6g}"

    return check


@pytest.fixture(scope="session")
def assert_bound_holds() -> Callable[..., None]:
    """Return a function that fails where a theorem about a defense does not hold.

    `assert_bound_holds(card, "dpsgd")`: no error below a bound that binds the attack,
    no audited epsilon and no true-positive rate above what is accounted for, and noise,
    clip and batches as accounted for, by the card's own flags. A defense without a
    theorem, or without a valid attack that saw its release, fails too.
    """

    def check(card: Any, defense: str) -> None:
        from audit.testing.strength import broken

        contradictions = broken(card, defense)
        assert not contradictions, "; ".join(contradictions)

    return check
