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
    cli (reproduce)                the commands other than `run`
    testing                        the conformance kit for plug-ins

`defenses/` import `types` and `mechanisms`; `attacks/` may also import `engine`. The
audit finds both by name and never imports them. Start with `docs/architecture.md`.
"""

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
    "cli",
    "cli.reproduce",
    "testing",
)
