"""`audit.run`, `audit.scenario`, `audit.load` and `audit.compare`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from audit.api import comparison, files, words
from audit.api.card import Card
from audit.api.shown import notebook_or_terminal
from audit.config import compose, hydra_app, plugins, workspace
from audit.config.compose import Scenario
from audit.engine.progress import Progress
from audit.errors import UserError
from audit.report import html
from audit.scorecard.card import Scorecard

OWN = "own"  # the scenario that data and models of one's own start from
RUNS = Path("results/runs")


class Draft(NamedTuple):
    """A scenario from Python: the words it starts from, checked."""

    name: str  # of the scenario whose settings hold where nothing else is said
    settings: dict[str, Any]
    folders: tuple[str, ...] = ()  # of plug-ins

    def __str__(self) -> str:
        """Return every setting, resolved, as `show` prints it."""
        from omegaconf import OmegaConf

        resolved = _composed(self.name, self.settings, self.folders)[0].resolved()
        return OmegaConf.to_yaml(resolved)


def scenario(
    *,
    data: Any,
    task: Any = None,
    defenses: Sequence[Any] | None = None,
    attacks: Sequence[Any] | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    **settings: Any,
) -> Draft:
    """Return a scenario without a YAML file, checked; `run` takes it.

    It is the scenario `own` with other words: `str(scenario)` shows all of them.

    Args:
      data: a name, "file:PATH.npz", (x, y), `audit.dataset(...)`, or a function that
        returns one.
      task: a model's name, a flax module, a function (features, classes) -> Task, or a
        dictionary: model, classes, settings, label_private. Default: `mlp` on all
        classes there are.
      defenses: names, functions `(task, *, settings) -> Defense`, or dictionaries
        {label: {"use": name or function, setting: value}}.
      attacks: the same for attacks.
      plugins: folders of plug-ins, or one.
      **settings: further words: game="membership", splits={"targets": 5}, runs=8,
        training={"steps": 50}, seed=1.

    Raises:
      UserError: naming what is wrong, before anything is trained.
    """
    given = {"task": task, "defenses": defenses, "attacks": attacks}
    # `data` stays if it is None, and is refused: a loader without `return` gives that
    chosen = {"data": data, **{k: v for k, v in given.items() if v is not None}}
    chosen |= settings
    if not isinstance(chosen.get("task", {}), dict):
        chosen["task"] = {"model": chosen["task"]}
    if "task" in chosen or not isinstance(data, str) or data.startswith("file:"):
        chosen["task"] = {"classes": "all", **chosen.get("task", {})}
    draft = Draft(OWN, chosen, _folders(plugins))
    _composed(draft.name, draft.settings, draft.folders)
    return draft


def run(
    scenario: str | Path | Draft,
    *,
    plugins: str | Path | Sequence[str | Path] = (),
    progress: bool = True,
    **settings: Any,
) -> Card:
    """Audit: train the defenses, attack them, return the scorecard.

    The words are those of `python -m audit run`, composed and checked alike, and the
    card is equal to that of the command, bit for bit.

    Args:
      scenario: a name (`python -m audit list`), a YAML file, or what `audit.scenario`
        returned.
      plugins: folders of plug-ins, or one.
      progress: whether to show it, in a terminal or a notebook.
      **settings: words of the command line: data="mnist5k", seed=0, runs=8,
        splits={"targets": 5}, defense={"dpsgd": {"noise_multiplier": 0.1}}. `data`,
        `task`, `defenses` and `attacks` also take what `audit.scenario` does. With
        out="DIR" the files are written that the command writes; store="DIR" keeps the
        runs, by default results/runs/store, so that a run that was stopped goes on.

    Raises:
      UserError: naming what is wrong, before anything is trained.
    """
    start = scenario if isinstance(scenario, Draft) else Draft(str(scenario), {})
    folders = (*start.folders, *_folders(plugins))
    merged = _merged(start.settings, settings)
    checked, replay, given = _composition(start.name, merged, folders)
    if checked.spec.plan:
        raise UserError("plan=true: only the command line prints plans")
    with _plugins_of(folders, given):
        folder = workspace.open_folder(checked, RUNS)[0] if checked.spec.out else None
        card = Card(*execute(checked, f"python -m audit run {replay}", show=progress))
        if folder is not None:
            files.write(card, folder)
    return card


def execute(scenario: Scenario, command: str = "", *, show: bool = True) -> Scorecard:
    """Run a checked scenario with the store it names; write nothing else.

    Raises:
      UserError: if it cannot work, before anything is trained.
    """
    from audit.pipeline import audit

    folder = workspace.place(scenario, RUNS)[0]
    workspace.prepare_jax()
    with notebook_or_terminal() if show else Progress(io.StringIO()) as progress:
        engine = workspace.engine(scenario, folder, RUNS, progress)
        return audit(scenario, engine, command)


def load(path: str | Path) -> Card:
    """Return the card of a folder, of a scorecard.json, or of a run by its name.

    Raises:
      UserError: if there is none, or it cannot be read.
    """
    return Card(*html.load(html.locate(str(files.place(path, "path")))))


def compare(first: Any, second: Any) -> comparison.CardComparison:
    """Return whether the second card's defenses protect less than the first's.

    Args:
      first: a card, several seeds of one, or the path of a run or a folder of runs.
      second: the same.

    Raises:
      UserError: if they are not of one scenario and one data set.
    """
    sides = (
        comparison.read(str(cards)) if isinstance(cards, (str, Path)) else cards
        for cards in (first, second)
    )
    return comparison.compare(*sides)


def _folders(given: Any) -> tuple[str, ...]:
    """Return folders as typed: one by itself is no sequence of letters."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    return tuple(map(str, given if several else [given]))


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return settings of which the second win, dictionaries key by key."""
    out = dict(first)
    for k, v in second.items():
        both = isinstance(v, dict) and isinstance(out.get(k), dict)
        out[k] = _merged(out[k], v) if both else v
    return out


def _composed(
    name: str, settings: dict[str, Any], folders: Sequence[str]
) -> tuple[Scenario, str]:
    scenario, replay, _ = _composition(name, settings, folders)
    return scenario, replay


def _composition(
    name: str, settings: dict[str, Any], folders: Sequence[str]
) -> tuple[Scenario, str, words.Typed]:
    """Return the checked scenario, the words that replay it, and its functions."""
    typed = words.typed(settings)
    path = Path(name)
    at = [f"scenario={path.stem if path.suffix == '.yaml' else name}"]
    if path.suffix == ".yaml":
        if not path.is_file():
            raise UserError(f"no such file: {name}")
        at += ["--config-dir", str(path.parent)]
    with _plugins_of(folders, typed):
        scenario, replay = hydra_app.composed([*at, *typed.words])
        compose.play(scenario)  # refuses what the game cannot be played with
    return scenario, replay, typed


def _plugins_of(folders: Sequence[str], typed: words.Typed) -> Any:
    """Look for plug-ins in these folders, and among these functions."""
    for folder in folders:
        plugins.existing(folder, "plugins")
    stack = contextlib.ExitStack()
    stack.enter_context(plugins.using(list(folders)))
    stack.enter_context(plugins.given(typed.factories))
    return stack
