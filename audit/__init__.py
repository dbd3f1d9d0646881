"""Breachmark sets what an attacker rebuilds beside what theory says nobody can.

The code is a house of rooms, packages with one purpose each. A module imports its own
room and earlier ones only (`tests/test_rooms.py`)::

    types rng errors clipping      contracts, and what every room may use
    accounting                     what a mechanism leaks, as formulas on the host
    statistics                     numbers from guesses and scores
    data                           find, verify and split records
    models                         networks and their closed forms
    mechanisms (glm, fim)          Query x Sampler x Noise, and the builders
    engine                         many runs of one defense, stored
    config                         from words to a checked scenario
    scorecard                      the result as plain data, and its flags
    games                          who knows what; one game, one file
    pipeline                       the audit on one page: read this first
    report (figures, html, leaderboard)  scorecards for people
    api                            what people call: `audit.run`, `audit.compare`
    cli (reproduce)                the commands other than `run`
    testing                        the conformance kit for plug-ins

`defenses/` import `types` and `mechanisms`; `attacks/` may also import `engine`. The
audit finds both by name and never imports them. Start with `docs/architecture.md`.

From Python: `audit.run`, `audit.scenario`, `audit.load`, `audit.compare`, and what
makes data, models and defenses of one's own (`docs/own.md`). They are imported when
they are first used: `import audit` loads neither JAX nor NumPy.
"""

import importlib
from typing import Any

# what people call -> where it is
CALLS = {
    "run": "audit.api.calls",
    "scenario": "audit.api.calls",
    "load": "audit.api.calls",
    "compare": "audit.api.calls",
    "Card": "audit.api.card",
    "dataset": "audit.data.local",
    "from_flax": "audit.models.flax_module",
    "from_train": "audit.mechanisms.own_loop",
    "UserError": "audit.errors",
}
__all__ = [*CALLS, "ROOMS"]

# From the ground up. What is hashed, and what may import what, follow from the order.
ROOMS = (
    "accounting",
    "statistics",
    "data",
    "models",
    "mechanisms",
    "mechanisms.glm",
    "mechanisms.fim",
    "engine",
    "config",
    "scorecard",
    "games",
    "pipeline",
    "report",
    "report.figures",
    "report.html",
    "report.leaderboard",
    "api",
    "cli",
    "cli.reproduce",
    "testing",
)


def __getattr__(name: str) -> Any:
    """Import what is called when it is first asked for."""
    if name not in CALLS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(CALLS[name]), name)


def __dir__() -> list[str]:
    """Return the names of what can be called."""
    return sorted({*globals(), *CALLS})
