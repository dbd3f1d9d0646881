"""The conformance kit: hold a plug-in against the laws of its kind.

    from audit.testing import check_defense, load

    def test_laws():
        check_defense(load("my_plugins/defenses/quiet.py"), steps=2)

A broken law raises AssertionError with its name and the numbers; `docs/plugins.md`
lists all laws. Importing this package imports neither JAX nor a law: pytest does so at
every start, for `audit.testing.pytest_plugin`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audit.testing.laws import Law
    from audit.types import Task

# kind of plug-in -> the modules with its laws
MODULES = {
    "defense": ("laws", "defense", "accounting", "query"),
    "attack": ("laws", "attack"),
    "scenario": ("scenario",),
}


def laws_of(kind: str) -> tuple[Law, ...]:
    """Return the laws of a kind of plug-in: its modules' public functions of `case`."""
    return tuple(
        law
        for name in MODULES[kind]
        for law in vars(importlib.import_module(f"{__name__}.{name}")).values()
        if inspect.isfunction(law) and not law.__name__.startswith("_")
        if list(inspect.signature(law).parameters) == ["case"]
    )


def load(path: str | Path) -> Callable:
    """Import the plug-in in a file and return its function.

    Raises:
      UserError: if it cannot be imported, or holds no function of its own name.
    """
    from audit.config import plugins

    path = Path(path)
    return plugins.load(plugins.Place(path, "", (path,)), path.stem)


def check_defense(
    factory: Callable, *, task: Task | None = None, **settings: Any
) -> dict[str, str]:
    """Hold a defense against every law, in a world of a dozen tiny records.

    Args:
      factory: (task, *, settings) -> Defense.
      task: what is learnt; default: two classes, one linear logit, 4 x 4 images.
      **settings: of the factory; the rest are its defaults. Few steps keep it quick.

    Returns:
      Law -> "holds", or "does not apply: why".

    Raises:
      AssertionError: naming every law that is broken, and what was observed.
    """
    from audit.testing.defense import DefenseCase
    from audit.testing.laws import judge

    case = DefenseCase(factory, task, settings)
    return judge(f"defense {factory.__name__}", laws_of("defense"), case)


def check_attack(
    factory: Callable,
    *,
    task: Task | None = None,
    oracle: bool = False,
    leaves_domain: bool = False,
    **settings: Any,
) -> dict[str, str]:
    """Hold an attack against every law, shown what a game would grant it.

    An `oracle` may see the target: it is a reference, never ranked. With
    `leaves_domain` guesses may leave the records' domain, as those of unbiased
    attackers do. All else is as for `check_defense`.
    """
    from audit.testing.attack import AttackCase
    from audit.testing.laws import judge

    case = AttackCase(factory, task, settings, oracle, leaves_domain)
    return judge(f"attack {factory.__name__}", laws_of("attack"), case)


def check_scenario(
    scenario: str | Path, *words: str, run: bool = True
) -> dict[str, str]:
    """Hold a scenario, a file or a name, against every law; as `check_defense`.

    `words` are those of the small budget it is run with, as typed after `python -m
    audit run`. A file in `DIR/scenarios/` finds the plug-ins of DIR. Without `run`,
    laws of its card do not apply; where none of its data sets is on this machine, nor
    do those that need records.
    """
    from audit.config import plugins
    from audit.testing.laws import judge
    from audit.testing.scenario import ScenarioCase

    case = ScenarioCase(scenario, words, run)
    with plugins.using(case.neighbours):
        return judge(f"scenario {case.name}", laws_of("scenario"), case)
