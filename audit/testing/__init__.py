"""The conformance kit: hold a plug-in against the laws of its kind.

    from audit.testing import check_defense, load

    def test_laws():
        check_defense(load("my_plugins/defenses/quiet.py"), steps=2)

A broken law raises AssertionError with its name and what was seen; `docs/plugins.md`
lists them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit.config import plugins
from audit.testing import accounting, attack, defense, query
from audit.testing import scenario as scenario_laws
from audit.testing.laws import Law, judge
from audit.types import Task

DEFENSE_LAWS: tuple[Law, ...] = (
    *defense.LAWS,
    *accounting.LAWS,
    *query.LAWS,
)
ATTACK_LAWS: tuple[Law, ...] = attack.LAWS
SCENARIO_LAWS: tuple[Law, ...] = scenario_laws.LAWS


def load(path: str | Path) -> Callable:
    """Import the plug-in in a file and return its function.

    Raises:
      UserError: if it cannot be imported, or holds no function of its own name.
    """
    path = Path(path)
    module = plugins.load(plugins.Place(path, "", (path,)), path.stem)
    factory = getattr(module, path.stem, None)
    if factory is None:
        raise plugins.UserError(f"{path} holds no function {path.stem!r}")
    return factory


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
      AssertionError: naming every law that is broken, and what was seen.
    """
    case = defense.Case(factory, task, settings)
    return judge(f"defense {factory.__name__}", DEFENSE_LAWS, case)


def check_attack(
    factory: Callable,
    *,
    task: Task | None = None,
    oracle: bool = False,
    leaves_domain: bool = False,
    **settings: Any,
) -> dict[str, str]:
    """Hold an attack against every law, shown what a game would grant it.

    Args:
      factory: (task, *, settings) -> Attack.
      task: what is attacked; default: as for `check_defense`.
      oracle: whether it may see the target: a reference, never ranked.
      leaves_domain: whether its guesses may leave the records' domain, as those of
        unbiased attackers do.
      **settings: of the factory; the rest are its defaults.

    Returns:
      Law -> "holds", or "does not apply: why".

    Raises:
      AssertionError: naming every law that is broken, and what was seen.
    """
    case = attack.Case(factory, task, settings, oracle, leaves_domain)
    return judge(f"attack {factory.__name__}", ATTACK_LAWS, case)


def check_scenario(
    scenario: str | Path, *words: str, run: bool = True
) -> dict[str, str]:
    """Hold a scenario against every law, its run with a small budget among them.

    Args:
      scenario: a YAML file, or the name of one that is found.
      *words: of the small budget, as typed after `python -m audit run`.
      run: whether it is run at all; without, laws of its card do not apply.

    Returns:
      Law -> "holds", or "does not apply: why".

    Raises:
      AssertionError: naming every law that is broken, and what was seen.
    """
    with scenario_laws.Case(scenario, words, run) as case:
        return judge(f"scenario {case.name}", SCENARIO_LAWS, case)
