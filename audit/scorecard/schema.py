"""What a scorecard holds, typed, and how one from anywhere is checked.

`docs/scorecard.schema.json` says the same for other tools. A game may add fields of its
own, and older cards may lack some. Names that become file names, links or labels are
letters, digits, _ and -; one-line texts hold no control characters. Whatever passes is
still escaped where it is shown.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
from pydantic import StringConstraints

from audit.data import untrusted
from audit.errors import UserError

VERSION = 2
MOST_OF_ARRAYS = 2e9  # bytes
MOST_NAMED = 3  # errors named in one message
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,80}$")]
_PRINTED = StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=2000)
Line = Annotated[str, _PRINTED]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{7,64}$")]
Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]
Number = float | Literal["inf", "-inf", "nan"]  # what JSON has no number for is text


class Record(pydantic.BaseModel):
    """A part of a card: named fields are attributes, those a game adds are items."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    def __getitem__(self, name: str) -> Any:
        """Return a field by name; KeyError if there is none."""
        return dict(self)[name]

    def __contains__(self, name: str) -> bool:
        """Return whether the card holds a field of that name."""
        return name in self.model_fields_set

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by name, or `default`."""
        return dict(self).get(name, default)


class ResolvedScenario(Record):
    """The resolved scenario: everything that can change a number.

    Settings of the game stand beside these, under the game's own names.
    """

    scenario: Name
    title: Line
    source: Line
    game: Name
    seed: Count
    data: Name
    task: dict[str, Any] = {}
    delta: float = 0.0
    defense: dict[Name, dict[str, Any]]
    attack: dict[Name, dict[str, Any]]


class Checkout(Record):
    """The checkout a card was made by."""

    commit: Commit
    dirty: bool


class ChosenBy(Record):
    """Who chose a defense's settings, and what that cost."""

    by: Line
    cost: Line
    tuned_on: Literal["elsewhere", "targets"] | None = None


class PlugInUsed(Record):
    """A plug-in that is not the suite's own."""

    kind: Literal["defense", "attack", "bound", "game", "model", "data", "scenario"]
    name: Name
    origin: Line
    code: Digest


class Provenance(Record):
    """Where a card comes from."""

    command: Line
    scenario_digest: Digest
    code: Digest | None = None  # cards from before it was kept lack it
    seconds: float
    git: Checkout | None
    python: Line
    versions: dict[Line, Line | None]
    device: Line
    cpus: Count | None
    chosen: dict[Name, ChosenBy] = {}
    plugins: list[PlugInUsed] = []
    model: list[Line] = []  # what is known of a model that is not the suite's own


class DataUsed(Record):
    """Which data were used."""

    name: Name
    origin: Line
    note: Line
    digest: Digest
    splits: dict[Name, Count]
    duplicates: Count
    coordinate: Literal["pixel", "feature"] = "pixel"  # a pixel is in [0, 1]


class FloorError(Record):
    """The attacker who ignores the release."""

    mse: Number | None
    mse_se: Number | None


class Utility(Record):
    """How useful releases are on the test part."""

    accuracy: Number | None = None
    accuracy_sd: Number | None = None
    r2: Number | None = None
    r2_sd: Number | None = None
    models: Count
    test: Count
    noiseless: Number | None = None


class BoundSummary(Record):
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
    standard_error: Number | None = None  # of a mean that is estimated
    genie: Number | None = None  # mean error of an attacker who attains it
    genie_se: Number | None = None
    needed: Count | None = None  # targets that tell an error of half of it from it


class EpsilonPair(Record):
    """EpsilonAtDelta of one adjacency, by its two accountants."""

    rdp: Number | None
    tight: Number | None

    @property
    def least(self) -> Number | None:
        """What the accountant says that says less; None where neither can.

        Each is an upper end. `tight` is rounded upwards on a grid, which of tiny losses
        can be more than the conversion of the Renyi curve loses.
        """
        ends = [end for end in (self.rdp, self.tight) if end is not None]
        return min(ends, key=float, default=None)


class EpsilonAtDelta(Record):
    """EpsilonAtDelta at one delta."""

    delta: float
    replace_one: EpsilonPair | None = None
    add_remove: EpsilonPair | None = None


class RaisedFlag(Record):
    """One finding about one row, or about the runs of one defense."""

    name: Name
    level: Literal["note", "warning", "error"]
    text: Line


class SelfChecked(Record):
    """What a defense's runs were seen to do; see `flags.Measured`."""

    noise: Number | None
    noise_se: Number | None
    shared: Number | None
    contribution: Number | None
    sampling: Line | None
    divergence: Number | None


class Claim(Record):
    """What a publication says of a defense, and why it does not hold here, if so."""

    quantity: Line
    value: Number
    source: Line
    void: Line | None = None


class DefenseRow(Record):
    """One defense, before anybody attacks it."""

    use: Name
    passed: dict[str, Any]
    settings: dict[str, Any]
    utility: Utility | None
    dfil: dict[Name, Number] | None
    eta: dict[Name, Any] | None = None
    bounds: list[BoundSummary]
    rdp2: Number | None
    nominal: list[Claim] = []
    epsilon: EpsilonAtDelta | None
    measured: SelfChecked | None = None
    flags: list[RaisedFlag] = []


class Headline(Record):
    """The number by which an attack is ranked, verified, compared and summarised."""

    metric: Name
    value: Number
    standard_error: Number | None
    better: Literal["higher", "lower"]  # which value is the stronger attack's
    floor: Number | None  # what an attacker gets who ignores the release

    @property
    def strength(self) -> float:
        """The value, signed so that a larger one is a stronger attack."""
        return float(self.value) * (1 if self.better == "higher" else -1)


class AttackResult(Record):
    """What an attack got; which further numbers there are is the game's to say."""

    headline: Headline
    oracle: bool
    targets: Count | None = None
    runs: Count | None = None
    mse: Number | None = None
    mse_se: Number | None = None
    success: Number | None = None
    success_se: Number | None = None
    lpips: Number | None = None
    epsilon_lower: Number | None = None
    # what it is shown beyond what the row is about: ranked in a column of its own
    shown: Literal["transcript"] | None = None


class TrialRow(Record):
    """One planned (defense, attack), whatever came of it."""

    defense: Name
    attack: Name
    use: Name
    threat_model: Line
    status: Literal["ok", "skipped", "failed"]
    reason: str | None
    result: AttackResult | None
    flags: list[RaisedFlag]

    @property
    def blind(self) -> bool:
        """Whether the attack sees nothing of what is released."""
        return self.threat_model.startswith("sees nothing;")


class CardFile(pydantic.BaseModel):
    """One `scorecard.json`: an audit of some defenses by some attacks."""

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, title="Breachmark scorecard"
    )

    version: Literal[2] = pydantic.Field(alias="schema")
    scenario: ResolvedScenario
    provenance: Provenance
    data: DataUsed
    floor: FloorError
    defenses: dict[Name, DefenseRow]
    trials: list[TrialRow]

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> CardFile:
        """Check what a JSON Schema cannot say."""
        name, wanted = self.data.name, self.scenario.data
        if name != wanted:
            raise ValueError(f"data.name {name!r} is not scenario.data {wanted!r}")
        for i, trial in enumerate(self.trials):
            label = trial.defense
            if label not in self.defenses:
                raise ValueError(f"trials.{i}.defense {label!r} is no defense here")
            if trial.status == "ok" and trial.result is None:
                raise ValueError(f"trials.{i} is ok and has no result")
        return self


class Scorecard(NamedTuple):
    """One audit."""

    scenario: ResolvedScenario
    provenance: Provenance
    data: DataUsed
    floor: FloorError
    defenses: dict[str, DefenseRow]  # by label
    trials: list[TrialRow]  # one per (defense, attack)
    arrays: dict[str, np.ndarray]  # per-target values; saved beside the JSON


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a `scorecard.json`."""
    return _closed({"$schema": DIALECT, **CardFile.model_json_schema(by_alias=True)})


def _closed(part: Any) -> Any:
    """Refuse names that break the pattern, as the check does; pydantic only adds it."""
    if isinstance(part, list):
        return [_closed(v) for v in part]
    if not isinstance(part, dict):
        return part
    named = {"additionalProperties": False} if "patternProperties" in part else {}
    return {k: _closed(v) for k, v in part.items()} | named


def load(path: Path) -> Scorecard:
    """Read a scorecard from anywhere, checked; without its arrays.

    Raises:
      UserError: if it cannot be read or is no scorecard.
    """
    try:
        text = untrusted.text(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {why}") from None
    return from_json(text, str(path))


def from_json(
    text: str, where: str = "the card", arrays: dict[str, np.ndarray] | None = None
) -> Scorecard:
    """Return the scorecard a JSON text holds.

    Args:
      text: of the file; "inf" and "nan" stay text where JSON has no number.
      where: what messages call it.
      arrays: per-target values from beside it.

    Raises:
      UserError: naming the fields that are wrong, and their values.
    """
    try:
        fields = json.loads(text, parse_constant=_no_number)
        version = fields.get("schema") if isinstance(fields, dict) else None
        if version not in (VERSION, None):
            why = f"scorecard schema {version!r:.40}, this version reads {VERSION}"
            raise UserError(f"{where}: {why}")
        file = CardFile.model_validate(fields)
    except pydantic.ValidationError as error:
        raise UserError(f"{where}: {_in_words(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}") from None
    parts = {name: getattr(file, name) for name in Scorecard._fields[:-1]}
    return Scorecard(**parts, arrays=arrays or {})


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number; write it as text")


def _in_words(error: pydantic.ValidationError) -> str:
    """Return the first errors on one line: the field, its value, what is wrong."""
    errors, parts = error.errors(include_url=False), []
    for e in errors[:MOST_NAMED]:
        field, message = ".".join(map(str, e["loc"])) or "the card", e["msg"]
        whole = e["type"] in ("missing", "value_error")
        value = "" if whole else f"={e['input']!r:.60}"
        parts.append(f"{field}{value}: {message[0].lower()}{message[1:]}")
    more = len(errors) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")
