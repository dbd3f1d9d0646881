"""Words of the command line -> Hydra -> a checked scenario, for every sweep point."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit.config import compose, plugins, scenario_file
from audit.config.registry import SUITE
from audit.data import local
from audit.engine import store as stores
from audit.errors import Refused, UserError, brief, did_you_mean

# Hydra composes and sweeps; logging and output folders are the suite's own.
QUIET = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.dir=results/runs/multirun",
    "hydra.sweep.subdir=.",
)
MOST_LETTERS = 4_096  # of one word
BUILT_IN = Path(__file__).resolve().parent.parent.parent / "scenarios"
PLAIN = re.compile(r"(file:[\w./-]|[A-Za-z_])[\w./-]*", re.ASCII)
SPOKEN_FOR = {"true", "false", "null", "inf", "nan", "on", "off", "yes", "no"}
FILE = f"data={local.PREFIX}"
FOLDERS = ("out", "store")  # words whose value is a path
IN_QUOTES = re.compile(r"""(['"])(\\.|(?!\1)[^\\])*\1""")  # one string of Hydra's
SWEEP = ("-m", "--multirun")
FLAGS = (*SWEEP, "--config-dir", "--plugins")


def folders(config_dir: str | None) -> list[Path]:
    """Return where scenarios are looked for; the user's folder comes first."""
    first = [Path(config_dir)] if config_dir else []
    return [*first, BUILT_IN, *(folder for folder, _ in plugins.scenario_folders())]


def locate(name: str, config_dir: str | None = None) -> tuple[Path, str]:
    """Return the folder of a scenario, and where it is from.

    A scenario in `config_dir`, the user's folder, may stand in for another. Raises
    UserError if there is none of that name, or two.
    """
    known = compose.scenario_names(folders(config_dir))
    if name not in known:  # which may not even be the name of a file
        raise UserError(f"unknown scenario {brief(name)}{did_you_mean(name, known)}")
    if config_dir and (Path(config_dir) / f"{name}.yaml").is_file():
        return Path(config_dir), f"folder {config_dir}"
    every = [(BUILT_IN, SUITE), *plugins.scenario_folders()]
    files = [plugins.Place(f / f"{name}.yaml", origin, ()) for f, origin in every]
    there = [at for at in files if at.path.is_file()]
    at = plugins.single("scenario", name, there, lambda: known)
    return at.path.parent, at.origin


def launch(words: list[str], job: Callable[[compose.Scenario, str], None]) -> None:
    """Compose the scenario the words describe and call `job` once per sweep point.

    Args:
      words: e.g. ["scenario=binary_mnist", "defense.dpsgd.noise_multiplier=0.1"], with
        Hydra's own flags (`-m`, `hydra/launcher=...`) and the suite's
        `--config-dir DIR`.
      job: gets the checked scenario and the words that replay it.

    Raises:
      UserError, Refused: naming the word that is wrong, before anything is trained.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    name, rest, config_dir = _parse(words)
    folder, origin = locate(name, config_dir)
    file, elsewhere = folder / f"{name}.yaml", None
    stored = _stored(name, scenario_file.load(file))  # all Hydra may read
    if origin != SUITE:
        code = stores.digest(scenario_file.read(file))
        elsewhere = {"kind": "scenario", "name": name, "origin": origin, "code": code}
    swept = any(word in SWEEP for word in rest)  # whose points commas part
    rest = [w if swept and "," in w else _with_path(w) for w in rest]
    # a word may add a key: what may exist is pydantic's to say, more clearly
    ours = ("-", "+", "~", "hydra.", "hydra/")
    words = [word if word.startswith(ours) else f"++{word}" for word in rest]
    overrides = sorted(words, key=lambda w: w[0] != "-")  # as argparse wants them
    for word in overrides:
        if not word.startswith("-"):
            _check_grammar(word)

    def point(config: Any) -> None:
        try:
            with plugins.blamed():  # or Hydra prints a line of its own first
                scenario = _scenario(name, config)._replace(elsewhere=elsewhere)
                replay = _replay(scenario, config_dir)
                job(scenario, quoted([f"scenario={name}", *replay]))
        except UserError as error:
            raise Refused(str(error)) from None

    main = hydra.main(None, name, version_base="1.3")
    raising = plugins.environment("HYDRA_FULL_ERROR", "1")  # not printing and leaving
    try:
        with _argv([sys.argv[0], *overrides, *QUIET]), raising, stored:
            main(point)()
    except (HydraException, OmegaConfBaseException) as error:
        # without the folders that Hydra looked into
        text = f"{error} {error.__cause__ or ''}".replace("++", "")
        text = " ".join(text.split("Config search path")[0].split())
        raise UserError(text) from None


def composed(words: list[str]) -> tuple[compose.Scenario, str]:
    """Return the one scenario the words describe, and the words that replay it.

    Raises UserError, naming the word that is wrong, or if the words describe a sweep.
    """
    points: list[tuple[compose.Scenario, str]] = []
    try:
        launch(words, lambda *point: points.append(point))
    except Refused as error:  # an exit, which would end more than this call
        raise UserError(str(error)) from None
    if len(points) != 1:
        raise UserError(f"{len(points)} scenarios, not one: a sweep is not for here")
    return points[0]


def _parse(words: list[str]) -> tuple[str, list[str], str | None]:
    name, config_dir, rest = None, None, []
    stream = iter(words)
    for word in stream:
        if word == "--config-dir":
            config_dir = plugins.existing(next(stream, None), "--config-dir")
        elif word.startswith("scenario="):
            if name is not None:
                raise UserError(f"scenario={name} and {word}: which one?")
            name = word.removeprefix("scenario=")
        elif ("=" in word[1:] and word[0] != "-") or word in SWEEP:
            rest.append(word)
        else:
            raise UserError(f"{brief(word)} is not of the form key=value{_meant(word)}")
    if not name:
        names = ", ".join(compose.scenario_names(folders(config_dir)))
        raise UserError(f"which scenario? scenario=NAME, NAME one of {names}")
    return name, rest, config_dir


def _with_path(word: str) -> str:
    """Return the word of a file or folder as Hydra reads it: any letter may be in one.

    A folder that is in quotes already, null, or refers to a setting stays as it is.
    """
    key, _, value = word.partition("=")
    hydras = value.lower() == "null" or "${" in value or IN_QUOTES.fullmatch(value)
    path = word.startswith(FILE) or (key in FOLDERS and not hydras)
    return f"{key}={literal(value)}" if path else word


def literal(text: str) -> str:
    """Return text as Hydra reads it: in quotes, unless it is a plain word or path."""
    if PLAIN.fullmatch(text) and text.lower() not in SPOKEN_FOR:
        return text
    # Hydra takes a backslash as it is, but for those before a quote
    escaped = re.sub(r"(\\*)'", r"\1\1\'", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def _meant(word: str) -> str:
    """Return what a word without "=" may have been, or nothing."""
    names = [f"scenario={n}" for n in compose.scenario_names(folders(None))]
    near = f"scenario={word}" if not word.startswith("-") else word
    others = [w for w in (*names, *FLAGS) if w != word]
    close = difflib.get_close_matches(near, others, n=1, cutoff=0.7)
    if not close and re.match(r"-+\w+=", word):
        close = [word.lstrip("-")]
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_grammar(word: str) -> None:
    """Refuse a word that is too long, cannot be read, or reads the machine."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    typed = word.removeprefix("++")
    if len(word) > MOST_LETTERS:
        raise UserError(
            f"cannot read {brief(typed)}: more than {MOST_LETTERS:,} letters"
        )
    scenario_file.check_word(typed)
    try:
        OverridesParser.create().parse_override(word)
    except (HydraException, ValueError, RecursionError) as error:
        why = str(error).split("\n")[0]
        raise UserError(f"cannot read {brief(typed)}: {why}") from None


def _scenario(name: str, config: Any) -> compose.Scenario:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    scenario_file.check_references(OmegaConf.to_container(config))
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise UserError(str(error).split("\n")[0]) from None
    assert isinstance(plain, dict)
    typed = _typed_wins(plain)
    return compose.validate(name, {str(k): v for k, v in plain.items()}, typed)


def _typed_wins(plain: dict) -> set[str]:
    """Drop what a data set of the file says of a word that is typed.

    Such words are `training.WORD`, `defense.LABEL.WORD` and `attack.LABEL.WORD`. Those
    typed in a line-up also beat what the scenario says of its label. Return the words
    of training.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser

    task = list(HydraConfig.get().overrides.task)
    overrides = OverridesParser.create().parse_overrides(task)
    given = [(o.key_or_group, o.value()) for o in overrides]
    typed = set[str]().union(*(_leaves(*each) for each in given))
    lined_up = set[str]()
    for name, value in given:
        if name in ("defenses", "attacks") and isinstance(value, list):
            lined_up = lined_up.union(*(_leaves(name[:-1], item) for item in value))
    for kind in ("defense", "attack"):
        _drop(plain.get(kind), kind, lined_up - typed)
    sets = plain.get("sets")
    for name, data_set in sets.items() if isinstance(sets, dict) else ():
        lost = {w for w in typed | lined_up if f"sets.{name}.{w}" not in typed}
        for kind in ("training", "defense", "attack"):
            _drop(data_set.get(kind) if isinstance(data_set, dict) else {}, kind, lost)
    return {w.removeprefix("training.") for w in typed if w.startswith("training.")}


def _drop(section: Any, name: str, lost: set[str]) -> None:
    """Drop the words in `lost` from a section called `name`."""
    for word in list(section) if isinstance(section, dict) else ():
        if isinstance(section[word], dict):
            _drop(section[word], f"{name}.{word}", lost)
        elif f"{name}.{word}" in lost:
            del section[word]


def _leaves(key: str, value: Any) -> set[str]:
    """Return the dotted names `key=value` sets: those in it, if it is a dictionary."""
    if not isinstance(value, dict):
        return {key}
    return set().union(*(_leaves(f"{key}.{k}", below) for k, below in value.items()))


def _replay(scenario: compose.Scenario, config_dir: str | None) -> list[str]:
    from hydra.core.hydra_config import HydraConfig

    def plain(word: str) -> str:
        """Return a path's word without the quotes that `_with_path` gives it again."""
        key = word.partition("=")[0]
        value = getattr(scenario.spec, key) if key in ("data", *FOLDERS) else None
        if value is None:
            return word
        short = f"{key}={value}"
        return short if _with_path(short) == f"{key}={literal(value)}" else word

    # in which Hydra has resolved all references
    words = [plain(w.removeprefix("++")) for w in HydraConfig.get().overrides.task]
    words += ["--config-dir", config_dir] if config_dir else []
    return words + [w for f in plugins.named_folders() for w in ("--plugins", f)]


def on_one_machine(replay: str) -> str:
    """Return the words that replay a run on a cluster without one."""
    words = shlex.split(replay)
    kept = [word for word in words if word != "engine=ray"]
    return quoted(kept if kept != words else [*words, "engine=local"])


def quoted(words: list[str]) -> str:
    """Return words as a shell reads them."""
    plain = re.compile(r"[\w@%+=:,./\[\]-]+")  # lists of plain words need no quotes
    return " ".join(w if plain.fullmatch(w) else shlex.quote(w) for w in words)


@contextlib.contextmanager
def _stored(name: str, config: Any) -> Any:
    """Let Hydra find a scenario; it copies all that is stored, whatever it composes."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    before = dict(store.repo)
    store.store(name, config)
    try:
        yield
    finally:
        store.repo = before


@contextlib.contextmanager
def _argv(words: list[str]) -> Any:
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before
