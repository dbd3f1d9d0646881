"""`python -m audit VERB --help`: what one command does, its words, three examples."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

WIDTH = 80
PLUGINS = (
    "--plugins DIR",
    "defenses, attacks, bounds, games, models, data and scenarios of your own",
)
SETTINGS = (
    ("scenario=NAME", "which; `python -m audit list` names them"),
    ("data=NAME", "auto: the first the scenario names and you have; file:PATH.npz: "
     "arrays x and y of your own, with scenario=own"),
    ("defenses=[A,B]", "the line-up of defenses; attacks=[A,B]: that of attacks"),
    ("defense.NAME.SETTING=VALUE", "a setting of one defense"),
    ("attack.NAME.SETTING=VALUE", "a setting of one attack"),
    ("training.SETTING=VALUE", "a setting of all defenses: steps, learning_rate"),
    ("splits.SETTING=VALUE", "how many records go where: fixed, targets, pool"),
    ("task.model=NAME", "a model; your own with --plugins"),
    ("seed=0", "of everything that is drawn; -m seed=0,1,2 is a sweep"),
    ("runs=8", "releases per target"),
    ("--config-dir DIR", "scenarios of your own"),
    PLUGINS,
)  # fmt: skip


class HelpPage(NamedTuple):
    """The help of one command."""

    usage: str  # the words behind the command
    about: str
    words: tuple[tuple[str, str], ...]  # how a word is typed, and what it does
    examples: tuple[str, str, str]  # the words behind the command
    docs: str  # where more stands


PAGES = {
    "run": HelpPage(
        "scenario=NAME [key=value ...]",
        "Train the defenses of a scenario thousands of times, attack what they "
        "release, and print the scorecard. A killed run is finished by the same "
        "command. Exit code 1: some trial failed.",
        (
            *SETTINGS,
            ("out=DIR", "where the scorecard goes; else a folder of results/runs"),
            ("store=DIR", "where finished models are kept"),
            ("lanes.tile=256", "models trained side by side"),
            (
                "engine=ray",
                "on a Ray cluster: that of RAY_ADDRESS, or this machine's "
                "cores (extra `ray`)",
            ),
            (
                "plan=true",
                "print models, operations, memory, disk and minutes; train nothing",
            ),
            ("estimate=ignored", "run what seems to need a day, or more memory"),
            ("hydra/launcher=joblib", "a sweep on all cores (extra `launch`)"),
        ),
        (
            "scenario=binary_mnist",
            "scenario=binary_mnist seed=3 runs=2 out=my_run",
            "scenario=own data=file:mine.npz task.model=mlp",
        ),
        "docs/tutorial.md, docs/own.md",
    ),
    "show": HelpPage(
        "scenario=NAME [key=value ...]",
        "Print a scenario with every setting resolved, and run nothing: what can be "
        "typed behind `run` is what is printed here.",
        SETTINGS,
        (
            "scenario=binary_mnist",
            "scenario=binary_mnist defenses=[dpsgd] training.steps=10",
            "scenario=mine --config-dir scenarios_of_mine",
        ),
        "docs/plugins.md",
    ),
    "reproduce": HelpPage(
        "SOURCE [key=value ...]",
        "Set a paper's numbers beside ours, each with a verdict and its reason. Exit "
        "code 1: a number claimed as reproduced is not.",
        (
            ("SOURCE", "thesis, hannun, guo, balle, dirdp, rero, annamalai, or all"),
            ("budget=full|smoke", "smoke only proves that the path works"),
            ("hours=H", "stop after so long; first what gives most numbers per hour"),
            ("engine=ray", "runs side by side, on a Ray cluster (extra `ray`)"),
            ("--config-dir DIR", "sources of your own, in its folder expected/"),
            PLUGINS,
        ),
        ("guo", "thesis budget=smoke", "all hours=2"),
        "docs/reproduction.md",
    ),
    "leaderboard": HelpPage(
        "[results=DIR]",
        "Write every scorecard of a folder as tables: LEADERBOARD.md and "
        "leaderboard.html, one file that opens anywhere. Exit code 1: a row had to be "
        "left out.",
        (("results=DIR", "a folder with a folder per card; default: results"),),
        ("", "results=results/runs", "results=/path/of/others"),
        "docs/submitting.md",
    ),
    "report": HelpPage(
        "RUN [key=value ...]",
        "Write one run as one HTML page: pictures, verdicts, the table, plain words.",
        (
            ("RUN", "its folder, or its name under results"),
            ("out=FILE", "the page; default: report.html in the run's folder"),
            ("figures=redraw", "first draw the figures for which the card has numbers"),
            PLUGINS,
        ),
        ("binary_mnist-mnist5k", "my_run out=/tmp/page.html", "my_run figures=redraw"),
        "docs/scorecards.md",
    ),
    "compare": HelpPage(
        "A B",
        "Say whether the second of two cards protects less, beyond noise. Exit code 1: "
        "it does.",
        (("A, B", "runs, or folders of runs of several seeds"), PLUGINS),
        ("before after", "results/binary_mnist-mnist5k my_run", "seeds_old seeds_new"),
        "docs/own.md",
    ),
    "verify": HelpPage(
        "ROW.json [out=DIR]",
        "Run a scorecard's command again and say whether it holds: equal (exit code "
        "0), differs (1), or stale (3), as what made it has changed.",
        (
            ("ROW.json", "a scorecard.json, or the folder it is in"),
            ("out=DIR", "where the new run goes"),
            PLUGINS,
        ),
        (
            "results/calibration-mnist5k",
            "results/calibration-mnist5k out=again",
            "/path/of/anothers/scorecard.json",
        ),
        "docs/submitting.md",
    ),
    "membership": HelpPage(
        "PATH [key=value ...]",
        "Rate attacks on models that were trained elsewhere, from their scores.",
        (
            (
                "PATH",
                "an .npz of scores or logits, or a folder of models with keep.npy "
                "and scores/ or logits/",
            ),
            (
                "target=MODEL",
                "the only model that is attacked: its folder's name, or its row of "
                "keep, from 0; default: every model in turn",
            ),
            ("calibration=N", "how many other models choose thresholds; default: 1"),
            ("out=DIR", "write a card and its page"),
        ),
        (
            "scores.npz",
            "models/ target=experiment-3_16 calibration=8",
            "scores.npz out=rated",
        ),
        "docs/score_files.md",
    ),
    "new": HelpPage(
        "defense|attack|scenario NAME",
        "Write a plug-in that works, its test and its page, to start from.",
        (("NAME", "a word of lower-case letters, digits and _"), PLUGINS),
        (
            "defense mine",
            "attack mine --plugins my_folder",
            "scenario mine --plugins my_folder",
        ),
        "docs/plugins.md",
    ),
    "scale": HelpPage(
        "RUN RUN ... [out=DIR]",
        "Compare noises of different laws at equal Renyi divergence: one figure, one "
        "table, over the seeds of all runs.",
        (
            ("RUN", "folders of runs of gradient inversion or of membership"),
            ("out=DIR", "where scale.md and scale.png go; default: results/scale"),
        ),
        (
            "results/dirdp_scale-digits",
            "results/dirdp_scale-digits*",
            "run_a run_b run_c out=mine",
        ),
        "docs/vmf.md",
    ),
    "frontier": HelpPage(
        "RUN RUN ... [out=DIR]",
        "Set the accuracy of many configurations against the bounds on their attackers "
        "and the error of the strongest attack: one figure, one table.",
        (
            ("RUN", "runs of one scenario, or folders of such runs"),
            (
                "out=DIR",
                "where frontier.md and frontier.png go; default: results/frontier",
            ),
        ),
        (
            "results/runs",
            "results/private_cnn_mnist5k-mnist5k",
            "results/runs out=mine",
        ),
        "docs/private_networks.md",
    ),
    "list": HelpPage(
        "[--plugins DIR]",
        "Name the scenarios, defenses, attacks, bounds, models and data sets here.",
        (PLUGINS,),
        ("", "--plugins my_folder", "| grep membership"),
        "docs/plugins.md",
    ),
    "bench": HelpPage(
        "[rows=NAME,NAME] [out=DIR]",
        "Measure shadow models per second of every defense and model, accounting, the "
        "training of attacks, inversion, scoring and draws, beside this machine's "
        "matrix product and beside rivals that must give the same weights (exit code "
        "1: they do not).",
        (
            (
                "rows=NAME,NAME",
                "linear, mlp, cnn, lenet, pytorch, accounting, training, inversion, "
                "scoring, draws; default: all",
            ),
            ("out=DIR", "where bench.txt, bench.json and roofline.png go"),
        ),
        ("", "rows=linear,pytorch", "out=results/benchmarks/mine"),
        "docs/engine.md",
    ),
    "cache": HelpPage(
        "ls|rm|verify [NAME ...] [key=value ...]",
        "List what a store of finished models and attacks holds, remove some of it, or "
        "read all of it and look for damage (exit code 1: there is some; the next run "
        "makes those shards again; 2: nothing is kept there). What is removed is "
        "computed again when it is needed.",
        (
            ("NAME", "the first letters of a key, four or more, or a defense's name"),
            ("older=DAYS", "only what has not changed for so long"),
            ("store=DIR", "the store; default: results/runs/store"),
        ),
        ("ls", "rm dpsgd older=30", "verify store=my_run/store"),
        "docs/engine.md, docs/commands.md",
    ),
    "doctor": HelpPage(
        "[data=file:PATH.npz]",
        "Say what this machine has: Python, JAX, devices, data, LPIPS weights; or what "
        "is in a file of your own. Exit code 1: something is missing or wrong.",
        (("data=file:PATH.npz", "examine this file instead"),),
        ("", "data=file:mine.npz", "| grep problem"),
        "docs/own.md, docs/data.md",
    ),
}


def page(verb: str) -> str:
    """Return the help of one command, at most 80 characters wide."""
    shown, wide = PAGES[verb], max((len(w) for w, _ in PAGES[verb].words), default=0)
    call = f"python -m audit {verb}"
    parts = [f"usage: {call} {shown.usage}".rstrip(), "", *_filled(shown.about)]
    if shown.words:
        parts += ["", "words"]
    for word, about in shown.words:
        parts += _filled(f"  {word:<{wide}}  {about}", " " * (wide + 4))
    parts += ["", "examples"]
    parts += [f"  {call} {example}".rstrip() for example in shown.examples]
    return "\n".join([*parts, "", f"more: {shown.docs}", ""])


def listing(heading: str, entries: list[tuple[str, str]]) -> str:
    """Return names and what they are, aligned, at most 80 characters wide."""
    wide = max((len(name) for name, _ in entries), default=0)
    lines = [heading if entries else f"{heading}: none"]
    for name, about in entries:
        lines += _filled(f"  {name:<{wide}}  {about}", " " * (wide + 4))
    return "\n".join(lines)


def _filled(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False, drop_whitespace=True,
    )  # fmt: skip
