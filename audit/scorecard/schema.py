"""What a `scorecard.json` from anywhere must look like, checked before it is shown.

The models below are the JSON Schema of rows: `docs/scorecard.schema.json` is what they
say, for other tools. Fields a game adds stay allowed, as do fields a card from before
them lacks; what is named here has its type wherever it stands. Names that become
file names, links or labels are letters, digits, _ and -; one-line texts hold no control
characters. Whatever passes is still escaped where it is shown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from audit.errors import UserError
from audit.scorecard import card
from audit.scorecard.card import Scorecard

MOST_BYTES = 20_000_000
MOST_SAID = 3  # errors named in one message
SCHEMA = Path("docs/scorecard.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,80}$")]
Line = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=2000)
]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")]
Number = float | Literal["inf", "-inf", "nan"]  # what JSON has no number for is text


class _Open(BaseModel):
    """A part that may hold more than is named."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class ScenarioPart(_Open):
    """The resolved scenario: everything that can change a number."""

    scenario: Name
    title: Line
    source: Line
    game: Name
    seed: int
    data: Name
    defense: dict[Name, dict[str, Any]]
    attack: dict[Name, dict[str, Any]]


class Git(_Open):
    """The checkout a card was made by."""

    commit: Commit
    dirty: bool


class Chosen(_Open):
    """Who chose a defense's settings, and what that cost."""

    by: Line
    cost: Line
    tuned_on: Literal["elsewhere", "targets"] | None = None


class Elsewhere(_Open):
    """A plug-in that is not the suite's own."""

    kind: Literal["defense", "attack", "bound", "scenario"]
    name: Name
    origin: Line
    code: Digest


class Provenance(_Open):
    """Where a card comes from."""

    command: Line
    scenario_digest: Digest
    code: Digest | None = None  # cards from before it was kept lack it
    seconds: float
    git: Git | None
    python: Line
    versions: dict[Line, Line | None]
    device: Line
    cpus: int | None
    chosen: dict[Name, Chosen] = {}
    plugins: list[Elsewhere] = []


class Data(_Open):
    """Which data were used."""

    name: Name
    origin: Line
    note: Line
    digest: Digest
    splits: dict[Name, int]
    duplicates: int


class Floor(_Open):
    """The attacker who ignores the release."""

    mse: Number | None
    mse_se: Number | None


class Utility(_Open):
    """How useful releases are on the test part."""

    accuracy: Number | None = None
    accuracy_sd: Number | None = None
    r2: Number | None = None
    r2_sd: Number | None = None
    models: int
    test: int
    noiseless: Number | None = None


class BoundPart(_Open):
    """One bound, per-target values summarised."""

    name: Name
    holds_for: Line
    theorem: Line
    ranked: bool
    mean: Number
    median: Number
    min: Number
    max: Number
    log10: Number | None


class Pair(_Open):
    """Epsilon of one adjacency, by its two accountants."""

    rdp: Number | None
    tight: Number | None


class Epsilon(_Open):
    """Epsilon at one delta."""

    delta: float
    replace_one: Pair | None = None
    add_remove: Pair | None = None


class FlagPart(_Open):
    """One finding about one row, or about the runs of one defense."""

    name: Name
    level: Literal["note", "warning", "error"]
    text: Line


class MeasuredPart(_Open):
    """What a defense's runs were seen to do; see `flags.Measured`."""

    noise: Number | None
    noise_se: Number | None
    shared: Number | None
    contribution: Number | None
    sampling: Line | None
    divergence: Number | None


class DefensePart(_Open):
    """One defense, before anybody attacks it."""

    use: Name
    passed: dict[str, Any]
    settings: dict[str, Any]
    utility: Utility | None
    dfil: dict[Name, Number] | None
    eta: dict[Name, Any] | None = None
    steps: list[dict[Name, Number | None]] | None = None
    bounds: list[BoundPart]
    rdp2: Number | None
    epsilon: Epsilon | None
    measured: MeasuredPart | None = None  # cards from before it was looked lack it
    flags: list[FlagPart] = []


class Result(_Open):
    """What an attack got; which numbers there are is the game's to say."""

    oracle: bool | None = None
    targets: int | None = None
    runs: int | None = None
    mse: Number | None = None
    mse_se: Number | None = None
    success: Number | None = None
    success_se: Number | None = None
    lpips: Number | None = None
    epsilon_lower: Number | None = None


class TrialPart(_Open):
    """One planned (defense, attack), whatever came of it."""

    defense: Name
    attack: Name
    use: Name
    threat_model: Line
    status: Literal["ok", "skipped", "failed"]
    reason: str | None
    result: Result | None
    flags: list[FlagPart]


class Row(BaseModel):
    """One `scorecard.json`: an audit of some defenses by some attacks."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, title="Breachmark scorecard"
    )

    version: Literal[1] = Field(alias="schema")
    scenario: ScenarioPart
    provenance: Provenance
    data: Data
    floor: Floor
    defenses: dict[Name, DefensePart]
    trials: list[TrialPart]

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        """Check what a JSON Schema cannot say."""
        if self.data.name != self.scenario.data:
            raise ValueError(
                f"data.name {self.data.name!r} is not scenario.data "
                f"{self.scenario.data!r}"
            )
        for i, t in enumerate(self.trials):
            if t.defense not in self.defenses:
                raise ValueError(f"trials.{i}.defense {t.defense!r} is no defense here")
            if t.status == "ok" and (t.result is None or t.result.oracle is None):
                raise ValueError(f"trials.{i} is ok and says not what came of it")
        return self


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a `scorecard.json`."""
    return _closed({"$schema": DIALECT, **Row.model_json_schema(by_alias=True)})


def _closed(part: Any) -> Any:
    """Refuse names that break the pattern, as the check does; pydantic only adds it."""
    if isinstance(part, dict):
        held = {k: _closed(v) for k, v in part.items()}
        closed = {"additionalProperties": False} if "patternProperties" in held else {}
        return held | closed
    return [_closed(v) for v in part] if isinstance(part, list) else part


def write(path: Path = SCHEMA) -> None:
    """Write the JSON Schema where the docs hold it."""
    path.write_text(json.dumps(schema(), indent=1) + "\n")


def load(path: Path) -> Scorecard:
    """Read a scorecard from elsewhere, checked; without its arrays.

    Raises:
      UserError: if it cannot be read or is no scorecard.
    """
    try:
        return card.from_json(check(path.read_text(), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {why}") from None


def check(text: str, where: str) -> str:
    """Return `text` if it is a scorecard.

    Args:
      text: of the file.
      where: how messages call it.

    Raises:
      UserError: naming the fields that are wrong, and what was found there.
    """
    if len(text.encode()) > MOST_BYTES:
        raise UserError(f"{where}: larger than {MOST_BYTES // 10**6} MB: no scorecard")
    try:
        held = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    if isinstance(held, dict) and held.get("schema") not in (1, None):
        raise UserError(
            f"{where}: scorecard schema {held['schema']!r:.40}, this version reads 1"
        )
    try:
        Row.model_validate(held)
    except ValidationError as error:
        raise UserError(f"{where}: {_said(error)}") from None
    return text


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number; write it as text")


def _said(error: ValidationError) -> str:
    """Return the first errors as one line: place, what is wrong, what was found."""
    errors = error.errors(include_url=False)
    parts = []
    for e in errors[:MOST_SAID]:
        place = ".".join(map(str, e["loc"])) or "the card"
        found = (
            "" if e["type"] in ("missing", "value_error") else f"={e['input']!r:.60}"
        )
        parts.append(f"{place}{found}: {e['msg'][0].lower()}{e['msg'][1:]}")
    more = len(errors) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")
