"""Command line: `python -m audit run scenario=binary_mnist`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit.cli.reproduce.plan import Plan
    from audit.config.compose import Scenario
    from audit.scorecard.card import Scorecard

HELP = """\
usage: python -m audit COMMAND [key=value ...]

  run      run a scenario: train the defenses, attack them, print the scorecard
  show     print a scenario with every setting resolved, and run nothing
  reproduce SOURCE [budget=full|smoke] [--config-dir DIR]
           a paper's numbers beside ours; SOURCE: a file of scenarios/expected, or all
  leaderboard [results=DIR]
           every scorecard under results/ as tables: LEADERBOARD.md, leaderboard.html
  report RUN [out=FILE]
           one run as one page that opens anywhere; RUN: its folder, or its name
  verify ROW.json [out=DIR]
           run a scorecard's command again: equal (0), differs (1) or stale (3)
  membership PATH [targets=1] [calibration=1]
           rates of attacks on models trained elsewhere; PATH: an .npz of scores or
           logits, or a folder of models with keep.npy and scores/ or logits/
  new defense|attack|scenario NAME [--plugins DIR]
           a plug-in that works, its test and its page, to start from
  scale RUN RUN ... [out=DIR]
           noises of different laws at equal Renyi divergence: one figure, one table
  list     the scenarios, defenses, attacks, models and data sets there are
  bench    shadow models per second, beside this machine's matrix-product rate
  doctor   what this machine has: Python, JAX, devices, data, LPIPS weights

words of run and show:
  scenario=NAME                        which; `list` names them
  data=auto|mnist|mnist5k|digits       auto: the first the scenario names and you have
  defenses=[sgd,dpsgd]  attacks=[...]  the line-up
  defense.NAME.SETTING=VALUE           a setting of one defense
  attack.NAME.SETTING=VALUE            a setting of one attack
  features.pca=20  attribute=sex       what is learnt from, what is inferred
  seed=3  runs=8  out=DIR  store=DIR  lanes.tile=256
  -m seed=0,1,2                        a sweep; hydra/launcher=joblib on cores
  --config-dir DIR                     scenarios of your own
  --plugins DIR                        defenses, attacks, bounds and scenarios of your
                                       own; also of show, reproduce, verify, list, new

A killed run is finished by the same command. Exit codes: 0 done, 1 some trial failed
or a number claimed as reproduced is not, or a row differs, 2 something typed is wrong,
3 a row is not reproduced and what made it has changed.
"""
WITH_PLUGINS = ("run", "show", "reproduce", "report", "verify", "list", "new")
RUNS = Path("results/runs")
REPRODUCTION = Path("results/reproduction")


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if not words or {"-h", "--help"} & set(words) or words[0] == "help":
        print(HELP, end="")
        return 0
    commands = {
        "run": _run,
        "show": _show,
        "reproduce": _reproduce,
        "scale": _scale,
        "leaderboard": _leaderboard,
        "report": _report,
        "verify": _verify,
        "membership": _membership,
        "new": _new,
        "list": _list,
        "bench": _bench,
        "doctor": _doctor,
    }
    from audit.config import plugins
    from audit.config.hydra_app import Refused
    from audit.errors import UserError, did_you_mean

    try:
        if words[0] not in commands:
            hint = did_you_mean(words[0], commands)
            raise UserError(f"unknown command {words[0]!r}{hint}")
        rest, folders = plugins.words(words[1:])
        if folders and words[0] not in WITH_PLUGINS:
            raise UserError(f"{words[0]} takes no --plugins")
        for folder in folders:
            if words[0] != "new":  # which makes it
                plugins.existing(folder)
        with plugins.using(folders):
            return commands[words[0]](rest)
    except (UserError, Refused) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command finishes it", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    from audit.config.hydra_app import launch

    failed: list[int] = []

    def job(scenario: Scenario, replay: str) -> None:
        failed.append(_audit(scenario, f"python -m audit run {replay}"))

    launch(words, job)
    return int(any(failed))


def _audit(scenario: Scenario, command: str) -> int:
    """Run one scenario into its folder; return how many trials failed."""
    from audit.cli import files
    from audit.config.workspace import (
        code_version,
        engine,
        from_elsewhere,
        open_folder,
        prepare_jax,
    )
    from audit.engine.progress import Progress
    from audit.pipeline import audit
    from audit.report import terminal
    from audit.scorecard.card import provenance

    began = time.perf_counter()
    folder, digest = open_folder(scenario, RUNS)
    by = code_version(scenario)
    prepare_jax()
    print(terminal.banner(scenario))
    with Progress() as progress:
        card = audit(scenario, engine(scenario, folder, RUNS, progress))
    seconds = time.perf_counter() - began
    others = from_elsewhere(scenario)
    chosen = {k: v.model_dump() for k, v in scenario.spec.chosen.items()}
    where = provenance(command, seconds, digest, by) | {"chosen": chosen}
    where |= {"plugins": others} if others else {}
    card = card._replace(provenance=where)
    written = files.write(card, folder)
    print(terminal.table(card))
    print(f"\n{terminal.notes(card)}\n")
    for file in written:
        print(f"  {file}")
    return _failures(card)


def _failures(card: Scorecard) -> int:
    failed = [t for t in card.trials if t["status"] == "failed"]
    for t in failed:
        where = f"{t['attack']} on {t['defense']}"
        print(f"failed: {where}: {t['reason']}", file=sys.stderr)
    return len(failed)


def _show(words: list[str]) -> int:
    from audit.config.hydra_app import launch

    def job(scenario: Scenario, replay: str) -> None:
        from omegaconf import OmegaConf

        print(f"# python -m audit run {replay}")
        print(OmegaConf.to_yaml(scenario.resolved()), end="")

    launch(words, job)
    return 0


def _reproduce(words: list[str]) -> int:
    from audit.cli.reproduce.plan import parse, plan

    asked = parse(words)
    plans = [
        plan(name, file, asked.budget, asked.config_dir)
        for name, file in asked.sources.items()
    ]
    return max([_compared(p) for p in plans])


def _compared(plan: Plan) -> int:
    """Carry out one source and show its verdicts; return its exit code."""
    from audit.cli.reproduce import execute, verdicts

    print(f"{plan.expected.title}: {len(plan.numbers)} published numbers")
    outcomes = execute.carry_out(plan, _audit, RUNS, print)
    held = execute.verdicts(plan, outcomes)
    print(f"\n{verdicts.table(held)}\n")
    for line in verdicts.notes(held):
        print(line, file=sys.stderr)
    if plan.budget == "smoke":
        print(verdicts.SMOKE)
    else:
        print(verdicts.headline(held))
        for file in execute.write(plan, held, outcomes, REPRODUCTION):
            print(f"  {file}")
    return int(any(v.broken for v in held))


def _leaderboard(words: list[str]) -> int:
    from audit.report.leaderboard import markdown

    for file in markdown.write(markdown.words(words)):
        print(file)
    return 0


def _scale(words: list[str]) -> int:
    from audit.cli.reproduce import figures

    for file in figures.write(figures.words(words)):
        print(file)
    return 0


def _report(words: list[str]) -> int:
    from audit.report import html

    print(html.write(html.words(words)))
    return 0


def _verify(words: list[str]) -> int:
    from audit.cli import verify

    verdict = verify.verify(verify.words(words), _again)
    print(verify.render(verdict))
    return verify.CODES[verdict.word]


def _again(scenario: Scenario) -> Scorecard:
    """Run one scenario into its folder; return its card and leave no other trace."""
    from audit.config.workspace import engine, open_folder, prepare_jax
    from audit.engine.progress import Progress
    from audit.pipeline import audit

    folder, _ = open_folder(scenario, RUNS)
    prepare_jax()
    with Progress() as progress:
        return audit(scenario, engine(scenario, folder, RUNS, progress))


def _membership(words: list[str]) -> int:
    from audit.cli import rate_scores

    print(rate_scores.render(rate_scores.rate(rate_scores.parse(words))))
    return 0


def _list(words: list[str]) -> int:
    from audit import data
    from audit.config import registry
    from audit.config.compose import scenario_names, title
    from audit.config.hydra_app import folders, locate

    _no_words("list", words)
    print("scenarios")
    for name in scenario_names(folders(None)):
        folder, origin = locate(name)
        print(f"  {name:<20} {title(folder / name)}{_from(origin)}")
    for kind, heading in (
        ("defense", "defenses"),
        ("attack", "attacks"),
        ("bound", "bounds, beside those that are always computed"),
        ("model", "models"),
    ):
        known = registry.names(kind)
        print(heading if known else f"{heading}: none")
        for name in known:
            where = _from(registry.place(kind, name).origin)
            print(f"  {name:<20} {registry.summary(kind, name)}{where}")
    print("data sets")
    for name in data.names():
        print(f"  {name:<20} {data.where(name) or 'not on this machine'}")
    return 0


def _from(origin: str) -> str:
    from audit.config.registry import OWN

    return "" if origin == OWN else f" [{origin}]"


def _new(words: list[str]) -> int:
    from audit.cli import scaffold

    made = scaffold.write(scaffold.words(words))
    for file in made.files:
        print(file)
    print(f"\n{made.next}")
    return 0


def _bench(words: list[str]) -> int:
    from audit.cli import bench
    from audit.config.workspace import prepare_jax

    _no_words("bench", words)
    prepare_jax()
    print(bench.render(bench.measure()))
    return 0


def _doctor(words: list[str]) -> int:
    from audit.cli import doctor

    _no_words("doctor", words)
    findings = doctor.diagnose()
    print(doctor.render(findings))
    return int(any(f.status == "problem" for f in findings))


def _no_words(command: str, words: list[str]) -> None:
    from audit.errors import UserError

    if words:
        raise UserError(f"{command} takes no words, got {words[0]!r}")


if __name__ == "__main__":
    sys.exit(main())
