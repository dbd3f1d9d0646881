"""Command line: `python -m audit run scenario=binary_mnist`."""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from audit.cli import process
from audit.cli.words import choice, parse
from audit.errors import UserError, counted, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from audit.cli.reproduce.execute import Outcome
    from audit.cli.reproduce.plan import Plan
    from audit.config.compose import Scenario
    from audit.engine.progress import Progress
    from audit.scorecard.card import Scorecard

HELP = """\
usage: python -m audit COMMAND [key=value ...]
       python -m audit COMMAND --help     its words and three examples

  run      run a scenario: train the defenses, attack them, print the scorecard
  show     print a scenario with every setting resolved, and run nothing
  reproduce SOURCE [budget=full|smoke] [--config-dir DIR]
           a paper's numbers beside ours; SOURCE: a file of scenarios/expected, or all
  leaderboard [results=DIR]
           every scorecard under results/ as tables: LEADERBOARD.md, leaderboard.html
  report RUN [out=FILE] [figures=redraw]
           one run as one page that opens anywhere; RUN: its folder, or its name
  compare A B [--plugins DIR]
           two cards, or folders of cards of several seeds: does the second protect
           less? exit code 1 if so, beyond noise
  verify ROW.json [out=DIR]
           run a scorecard's command again: equal (0), differs (1) or stale (3)
  membership PATH [target=MODEL] [calibration=1] [out=DIR]
           rates of attacks on models trained elsewhere; PATH: an .npz of scores or
           logits, or a folder of models with keep.npy and scores/ or logits/
  new defense|attack|scenario NAME [--plugins DIR]
           a plug-in that works, its test and its page, to start from
  scale RUN RUN ... [out=DIR]
           noises of different laws at equal Renyi divergence: one figure, one table
  frontier RUN RUN ... [out=DIR]
           accuracy against bounds and attacks over many runs: one figure, one table
  list     the scenarios, defenses, attacks, models and data sets there are
  bench [rows=NAME,NAME] [out=DIR]
           models, attacks and draws per second, beside this machine's matrix product
  cache ls|rm|verify [NAME ...] [older=DAYS] [store=DIR]
           what a store of finished models holds: list it, remove, look for damage
  doctor [data=file:PATH.npz]
           what this machine has: Python, JAX, devices, data, LPIPS weights; or what is
           in a file of one's own

words of run and show:
  scenario=NAME                        which; `list` names them
  data=auto|mnist|mnist5k|digits       auto: the first the scenario names and you have
  data=file:PATH.npz                   arrays x and y of your own (scenario=own)
  task.model=NAME                      a model; your own with --plugins
  splits.targets=5                     how many records go where, as `show` prints it
  defenses=[sgd,dpsgd]  attacks=[...]  the line-up
  defense.NAME.SETTING=VALUE           a setting of one defense
  attack.NAME.SETTING=VALUE            a setting of one attack
  features.pca=20  attribute=sex       what is learnt from, what is inferred
  seed=3  runs=8  out=DIR  store=DIR  lanes.tile=256
  engine=ray                           on a Ray cluster (extra `ray`)
  plan=true                            what it will take; nothing is trained
  estimate=ignored                     run what seems to need a day, or more memory
  -m seed=0,1,2                        a sweep; hydra/launcher=joblib on cores
  --config-dir DIR                     scenarios of your own
  --plugins DIR                        defenses, attacks, bounds, games, models, data
                                       and scenarios of your own; also of show, list,
                                       reproduce, report, compare, verify, new

`--version` prints the version. A killed run is finished by the same command. Exit
codes: 0 done, 1 some trial failed, a number claimed as reproduced is not, a row
differs, a second card is weaker protected, a page lacks an odd row, or a store
is damaged,
2 something typed is wrong or there is no room, 3 a row is not reproduced and what made
it has changed, 130 stopped by Ctrl-C, 143 by SIGTERM.
"""
WITH_PLUGINS = (
    "run", "show", "reproduce", "report", "compare", "verify", "list", "new",
)  # fmt: skip
RUNS = Path("results/runs")
REPRODUCTION = Path("results/reproduction")
SCALE = Path("results/scale")
FRONTIER = Path("results/frontier")


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    return process.run(lambda: _command(words))


def _command(words: list[str]) -> int:
    if not words or {"-h", "--help"} & set(words) or words[0] == "help":
        from audit.cli import help as pages

        verb = next((word for word in words if word in pages.PAGES), None)
        print(HELP if verb is None else pages.page(verb), end="")
        return 0
    if words[0] == "--version":
        from audit.engine.store import installed

        print(f"breachmark {installed('breachmark')['breachmark'] or 'not installed'}")
        return 0
    from audit.config import plugins

    functions = [_run, _show, _reproduce, _scale, _frontier, _leaderboard, _report]
    functions += [_compare, _verify, _membership, _new, _list, _bench, _cache, _doctor]
    commands = {function.__name__.strip("_"): function for function in functions}
    command = words[0]
    if (theirs := plugins.shadow()) is not None:
        note = f"`python -m audit` runs {theirs} of this folder; say breachmark here"
        print(f"note: {note}", file=sys.stderr)
    if command not in commands:
        raise UserError(f"unknown command {command!r}{did_you_mean(command, commands)}")
    rest, folders = plugins.words(words[1:])
    if folders and command not in WITH_PLUGINS:
        raise UserError(f"{command} takes no --plugins")
    for folder in folders if command != "new" else ():  # which makes it
        plugins.existing(folder)
    with plugins.using(folders), plugins.blamed():
        return commands[command](rest)


def _run(words: list[str]) -> int:
    from audit.config import compose
    from audit.config.hydra_app import launch

    failures: list[int] = []
    points: list[tuple[Scenario, str]] = []
    launcher = any(word.startswith("hydra/launcher=") for word in words)
    sweep = bool({"-m", "--multirun"} & set(words)) and not launcher

    # the processes of a launcher do not share a list with this one
    failed_folder = RUNS / f"failed-{uuid.uuid4().hex}"

    def job(scenario: Scenario, replay: str) -> None:
        compose.play(scenario)  # refuses what the game cannot be played with
        if sweep and scenario.spec.engine == "ray" and not scenario.spec.plan:
            points.append((scenario, replay))
            return
        failures.append(_audit(scenario, f"python -m audit run {replay}"))
        if launcher and failures[-1]:
            failed_folder.mkdir(parents=True, exist_ok=True)

    launch(words, job)
    if failed_folder.exists():
        failures.append(1)
        failed_folder.rmdir()
    if points:
        failures.append(_on_a_cluster(points))
    return int(any(failures))


def _on_a_cluster(points: list[tuple[Scenario, str]]) -> int:
    """Make the points of a sweep side by side; return how many were not finished.

    Raises:
      UserError: if two of them have one folder.
    """
    from audit.config import hydra_app, workspace
    from audit.engine import trials
    from audit.report import terminal
    from audit.scorecard import card as cards

    here: dict[str, tuple[trials.RemoteRun, Path]] = {}
    for scenario, replay in points:
        folder, _ = workspace.open_folder(scenario, RUNS)
        if folder in (other for _, other in here.values()):
            raise UserError(f"{folder}: two points of the sweep would write into it")
        command = f"python -m audit run {hydra_app.on_one_machine(replay)}"
        here[command] = trials.remote(command, scenario.lanes), folder
    failed = 0
    say = partial(print, flush=True)
    for ended in trials.announce([run for run, _ in here.values()], None, say):
        failed += ended.code != 0
        if ended.code in (0, 1):  # 1: some trial failed, and the card says which
            card = cards.load(here[ended.command][1])
            print(f"{terminal.page(card, terminal.width())}\n", flush=True)
    return failed


def _audit(scenario: Scenario, command: str, until: float | None = None) -> int:
    """Run one scenario into its folder; return how many trials failed.

    Raises:
      OutOfTime: if it is not finished `until` then, on a monotonic clock.
    """
    from audit.config import compose, workspace
    from audit.engine.progress import Progress
    from audit.report import terminal

    workspace.prepare_jax()
    workspace.connected(scenario)  # before JAX has threads: Ray forks
    from audit.cli import forecast  # which imports JAX

    if scenario.spec.plan:
        print(forecast.render(forecast.forecast(scenario, forecast.history())))
        return 0
    folder, _ = workspace.open_folder(scenario, RUNS)
    print(terminal.banner(scenario, compose.play(scenario)), flush=True)
    with Progress() as planning, planning.activity("estimating time and memory"):
        plan = forecast.forecast(scenario, forecast.history())
    if until is None:
        forecast.ask(plan)
    forecast.forget_peak()
    progress, began = Progress(until=until), time.perf_counter()
    card = _again(scenario, command, progress)
    seconds, peak = time.perf_counter() - began, forecast.peak()
    resumed = progress.stored > 0
    if not resumed:
        forecast.keep(forecast.took(plan, scenario, card, peak))
    written, problem = _kept(card, folder)
    print(f"{terminal.page(card, terminal.width())}\n")
    _print_files(written, "  ")
    print(f"\n{forecast.compared(plan, seconds, peak, resumed)}")
    if problem is not None:
        raise UserError(problem)
    failed = [t for t in card.trials if t.status == "failed"]
    for t in failed:
        print(f"failed: {t.attack} on {t.defense}: {t.reason}", file=sys.stderr)
    return len(failed)


def _kept(card: Scorecard, folder: Path) -> tuple[list[Path], str | None]:
    """Write a run's files, elsewhere if there is no room; return them, and what failed.

    What took hours is not lost, and is printed in any case.
    """
    from audit.api import files

    try:
        return files.write(card, folder), None
    except UserError as error:
        problem = str(error)
    try:
        spare = Path(tempfile.mkdtemp(prefix="breachmark-"))
        return files.write(card, spare), f"{problem}; the results are in {spare}"
    except (UserError, OSError):
        return [], problem


def _show(words: list[str]) -> int:
    from audit.config.hydra_app import launch

    def job(scenario: Scenario, replay: str) -> None:
        from omegaconf import OmegaConf

        from audit.config import compose

        compose.play(scenario)  # refuses what the game cannot be played with
        print(f"# python -m audit run {replay}")
        print(OmegaConf.to_yaml(scenario.resolved()), end="")

    launch(words, job)
    return 0


def _reproduce(given: list[str]) -> int:
    from audit.cli.reproduce import allowance, execute, verdicts
    from audit.cli.reproduce.plan import plan, sources
    from audit.cli.reproduce.published import BUDGETS
    from audit.config.plugins import existing

    usage = {
        "budget=": choice("budget", *BUDGETS),
        "hours=": allowance.hours,
        "engine=": choice("engine", "local", "ray"),
        "--config-dir DIR": lambda typed: existing(typed, "--config-dir"),
    }
    names, options = parse("reproduce", given, "SOURCE", usage)
    config_dir = options.get("config_dir")
    plans = [
        plan(name, file, options.get("budget", "full"), config_dir)
        for name, file in sources(names, config_dir).items()
    ]
    for p in plans:
        numbers = counted(len(p.numbers), "published number")
        print(f"{p.expected.title}: {numbers}")
    order, until = [(p, run) for p in plans for run in p.jobs], None
    pages = verdicts.read_pages(REPRODUCTION)
    if hours := options.get("hours"):
        kept = {(p.name, r): execute.kept(p, r, pages.get(p.name)) for p, r in order}
        costs = allowance.costs(plans, RUNS, kept)
        print(f"\n{allowance.table(costs)}\n")
        order, until = [(c.plan, c.run) for c in costs], time.monotonic() + 3600 * hours
    if options.get("engine") == "ray":
        execute.on_a_cluster(order, RUNS, print, until, pages)
    outcomes: dict[str, dict[str, Outcome]] = {p.name: {} for p in plans}
    for p, run in order:
        more = until, pages.get(p.name)
        outcome = execute.carry_out(p, run, _audit, RUNS, print, *more)
        outcomes[p.name][run] = outcome
    return max([_compared(p, outcomes[p.name]) for p in plans])


def _compared(plan: Plan, outcomes: dict[str, Outcome]) -> int:
    """Show the verdicts on one source, and write its page; return its exit code."""
    from audit.cli.reproduce import execute, verdicts

    outcomes = {run: outcomes[run] for run in plan.jobs}  # in the order of the file
    judged = [execute.verdict(n, plan.budget, outcomes) for n in plan.numbers]
    print(f"\n{verdicts.table(judged)}\n")
    for line in verdicts.notes(judged):
        print(line, file=sys.stderr)
    if plan.budget == "smoke":
        print(verdicts.SMOKE)
    else:
        print(verdicts.headline(judged))
        _print_files(execute.write(plan, judged, outcomes, REPRODUCTION), "  ")
    return int(any(v.broken for v in judged))


def _leaderboard(given: list[str]) -> int:
    from audit.report.leaderboard import markdown

    _, options = parse("leaderboard", given, options={"results=DIR": Path})
    folder = options.get("results", Path("results"))
    if not folder.is_dir():
        raise UserError(f"results={folder}: no such folder")
    files, left_out = markdown.write(folder)
    _print_files(files)
    return _print_left_out(left_out)


def _scale(given: list[str]) -> int:
    from audit.cli.reproduce import figures

    runs, options = parse("scale", given, "folders of runs", {"out=DIR": Path})
    cards = figures.read_cards([Path(run) for run in runs])
    _print_files(figures.write(cards, options.get("out", SCALE)))
    return 0


def _frontier(given: list[str]) -> int:
    from audit.api import comparison
    from audit.cli import frontier

    runs, options = parse("frontier", given, "folders of runs", {"out=DIR": Path})
    if not runs:
        raise UserError("frontier of what? runs, or folders of runs")
    cards = [card for run in runs for card in comparison.read(run)]
    _print_files(frontier.write(cards, options.get("out", FRONTIER)))
    return 0


def _report(given: list[str]) -> int:
    from audit.report import html

    which = f"report which run? one of {', '.join(html.run_names()) or 'none here'}"
    usage = {"out=FILE": Path, "figures=redraw": choice("figures", "redraw")}
    [run], options = parse("report", given, "RUN", usage, which)
    folder = html.locate(run)
    page = options.get("out", folder / html.PAGE)
    if "figures" in options:
        from audit.api import files

        _print_files(files.redraw(html.load(folder), folder))
    left_out = html.write(folder, page)
    _print_files([page])
    return _print_left_out(left_out)


def _compare(given: list[str]) -> int:
    from audit.api import comparison

    which = "compare which two? runs, or folders of runs"
    runs, _ = parse("compare", given, "A and B", {})
    if len(runs) != 2:
        raise UserError(f"{which}; got {len(runs)}")
    compared = comparison.compare(*map(comparison.read, runs))
    print(compared)
    return int(compared.weaker)


def _verify(given: list[str]) -> int:
    from audit.cli import verify

    which = "verify which row? the scorecard.json of a run, or its folder"
    [row], options = parse("verify", given, "ROW.json", {"out=DIR": Path}, which)
    verdict = verify.verify(Path(row), options.get("out"), _again)
    print(verify.render(verdict))
    return verify.CODES[verdict.word]


def _again(
    scenario: Scenario, command: str = "", progress: Progress | None = None
) -> Scorecard:
    """Run one scenario into its folder; return its card and leave no other trace."""
    from audit.config.workspace import engine, open_folder, prepare_jax
    from audit.engine.progress import Progress
    from audit.pipeline import audit

    folder, _ = open_folder(scenario, RUNS)
    prepare_jax()
    with progress or Progress() as progress:
        return audit(scenario, engine(scenario, folder, RUNS, progress), command)


def _membership(given: list[str]) -> int:
    from audit.api import files
    from audit.cli import rate_scores, score_formats
    from audit.engine.store import make_writable

    usage = {
        "target=MODEL": lambda typed: typed,
        "calibration=N": rate_scores.calibration_models,
        "out=DIR": Path,
    }
    holds = f"a file holds {score_formats.LAYOUTS}"
    which = f"membership of what? one .npz file or folder: {holds}"
    [path], options = parse("membership", given, "PATH", usage, which)
    out, began = options.pop("out", None), time.perf_counter()
    if out is not None:
        make_writable(out, "out")
    rating = rate_scores.rate(Path(path), **options)
    print(rate_scores.render(rating))
    if out is not None:
        from audit.cli import rated_card
        from audit.report import html

        command = f"python -m audit membership {' '.join(given)}"
        card = rated_card.card(rating, Path(path), command, began)
        print()
        _print_files(files.write(card, out), "  ")
        html.write(out, out / html.PAGE)
        _print_files([out / html.PAGE], "  ")
    return 0


def _list(given: list[str]) -> int:
    from audit import data
    from audit.cli.help import listing
    from audit.config import registry
    from audit.config.compose import scenario_names, title
    from audit.config.hydra_app import folders, locate
    from audit.config.registry import SUITE

    parse("list", given)

    def from_where(text: str, origin: str) -> str:
        return text if origin == SUITE else f"{text} [{origin}]"

    def plug_ins(kind: str) -> list[tuple[str, str]]:
        summaries = ((n, registry.summary(kind, n)) for n in registry.names(kind))
        return [
            (n, from_where(s, registry.place(kind, n).origin)) for n, s in summaries
        ]

    places = {name: locate(name) for name in scenario_names(folders(None))}
    titles = [
        (n, from_where(title(f / n), origin)) for n, (f, origin) in places.items()
    ]
    print(listing("scenarios", titles))
    for kind, heading in (
        ("defense", "defenses"),
        ("attack", "attacks"),
        ("bound", "bounds, beside those that are always computed"),
        ("model", "models"),
    ):
        print(listing(heading, plug_ins(kind)))
    here = [(name, data.where(name) or "not on this machine") for name in data.names()]
    print(listing("data sets", [*here, *plug_ins("data")]))
    return 0


def _new(given: list[str]) -> int:
    from audit.cli import scaffold

    copy = scaffold.plan(parse("new", given, "KIND and NAME")[0])
    _print_files(scaffold.write(copy))
    print(f"\n{scaffold.next_steps(copy)}")
    return 0


def _bench(given: list[str]) -> int:
    from audit.config.workspace import prepare_jax
    from audit.engine.progress import Progress

    prepare_jax()
    from audit.cli.bench import measure, written  # which import JAX
    from audit.engine.store import make_writable

    usage: dict[str, Callable] = {"rows=NAME,NAME": measure.groups, "out=DIR": Path}
    _, options = parse("bench", given, options=usage)
    if "out" in options:
        make_writable(options["out"], "out")  # before minutes of measuring
    chosen = options.get("rows", list(measure.GROUPS))
    with Progress() as progress:
        benchmark = measure.measure(chosen, progress.activity)
    print(written.text(benchmark))
    if "out" in options:
        _print_files(written.write(benchmark, options["out"]))
    for row in benchmark.unequal:
        print(f"{row.group}, {row.name}: its weights are not the rival's")
    return int(bool(benchmark.unequal))


def _cache(given: list[str]) -> int:
    from audit.cli import cache
    from audit.config import workspace

    words, options = parse(
        "cache",
        given,
        "ls, rm or verify",
        {"older=DAYS": cache.days, "store=DIR": workspace.folder_of},
    )
    if not words:
        raise UserError(f"cache does what? one of {', '.join(cache.ACTIONS)}")
    action, names = choice("action of cache", *cache.ACTIONS)(words[0]), words[1:]
    folder, age = options.get("store", RUNS / "store"), options.get("older")
    if action == "rm" and not names and age is None:
        raise UserError(
            "cache rm removes what? a key, a defense, or older=DAYS (0: all)"
        )
    # by default, a store is not there before the first run
    entries = cache.kept(folder) if "store" in options or folder.exists() else []
    if action == "verify" and not entries:  # a wrong path is no store without damage
        raise UserError(f"no store in {folder}: nothing is kept there")
    every = cache.chosen(entries, names, age)
    if action == "rm":
        free = cache.size(cache.remove(every))
        print(f"removed {counted(len(every), 'key')} of {folder}, {free}")
        return 0
    if action == "ls":
        print(cache.table(folder, every))
        return 0
    lines = cache.problems(every)
    shards = counted(sum(each.shards for each in every), "shard")
    print("\n".join([*lines, f"{shards} of {counted(len(every), 'key')} read"]))
    return int(bool(lines))


def _doctor(given: list[str]) -> int:
    from audit.cli import doctor

    _, options = parse("doctor", given, options={"data=file:PATH.npz": str})
    if "data" in options:
        findings = doctor.examine(options["data"])
    else:
        findings = doctor.diagnose()
    print(doctor.render(findings))
    return int(any(f.status == "problem" for f in findings))


def _print_left_out(left_out: dict[str, str]) -> int:
    """Print what a page lacks, and why; return the exit code."""
    for name, why in left_out.items():
        print(f"left out: {name}: {why}", file=sys.stderr)
    return int(bool(left_out))


def _print_files(files: Iterable[Path], indent: str = "") -> None:
    for file in files:
        print(f"{indent}{file}")


if __name__ == "__main__":
    sys.exit(main())
