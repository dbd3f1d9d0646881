"""The schema of a scenario file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Interval, Len
from pydantic import BaseModel, ConfigDict

from audit.types import Count, NonNegative, NonNegativeInt, Positive, Seed, Share


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SplitSizes(_Model):
    """How many records go where; arguments of `data.split`."""

    public: NonNegativeInt | Share = 0  # a number, or a share of the training part
    fixed: Count | None = None  # None = all that the others leave
    pool: NonNegativeInt = 0
    targets: NonNegativeInt = 0  # none where every fixed record is the target in turn
    test: Count | None = None  # None = the official test part
    pool_from: Literal["train", "test"] = "train"
    order: Literal["file", "shuffled"] = "file"
    augment: NonNegativeInt = 0  # size of the pool after augmentation; 0 = none
    seed: Seed = 0  # of the shuffle and the augmentation; independent of the run's seed


class Features(_Model):
    """What is done to the records first; arguments of `data.prepare_features`."""

    channels: bool | Literal["cifar10"] = False
    unit_ball: bool = False
    pca: NonNegativeInt = 0
    standardise: bool = False


class Pretrain(_Model):
    """Training on the public records before anything private; see `pretrain.start`."""

    epochs: NonNegativeInt = 0
    batch_size: Count = 512
    learning_rate: Positive = 0.01
    weight_decay: NonNegative = 1e-4


class Membership(_Model):
    """What is made for the attackers of a membership game; see `membership`."""

    shadows: Count = 64  # reference models; each candidate is in half of them
    calibration: Count = 16  # more of them, on which thresholds are chosen
    queries: Annotated[int, Interval(ge=1, le=9)] = (
        1  # an image and its moves by a pixel
    )


class DataSet(_Model):
    """What a scenario does on one data set."""

    splits: SplitSizes
    features: Features | None = None  # where they are prepared otherwise than elsewhere
    attribute: str | None = None  # where the column has another name than elsewhere
    training: dict[str, Any] = {}
    defense: dict[str, dict[str, Any]] = {}
    attack: dict[str, dict[str, Any]] = {}


class Canaries(_Model):
    """What is planted to audit a claimed epsilon; see `canaries.plant`."""

    kind: Literal["gradient", "input"] = "gradient"
    count: Count = 1  # of them in one run
    norm: Positive = 1000.0  # of a gradient canary's gradient, before the clip
    audits: Count = 1  # independent repetitions; the first is the row


class TaskSpec(_Model):
    """What is learnt: a model of `models.networks` on some classes of the data."""

    model: str
    classes: list[NonNegativeInt] = []  # none where labels are numbers
    label_private: bool = False  # count the label among what an attacker wants
    settings: dict[str, Any] = {}


class Chosen(_Model):
    """Who chose a defense's settings, and what that cost; shown, never used."""

    by: str
    cost: str
    tuned_on: Literal["elsewhere", "targets"] | None = None  # None = not said


class ScenarioSpec(_Model):
    """The schema of a scenario file plus the words of the command line."""

    name: str
    title: str
    source: str
    game: Literal[
        "reconstruction",
        "leave_one_out",
        "anatomy",
        "attribute",
        "exposed",
        "canary",
        "one_run",
        "membership",
        "membership_replace_one",
    ]
    exposed: Literal["trained", "start"] = "trained"  # where the exposed step is taken
    seed: Seed = 0
    task: TaskSpec
    features: Features = Features()
    attribute: str | None = None  # the column an attribute game is about
    canaries: Canaries | None = None  # in the games canary and one_run
    data: str = "auto"
    sets: Annotated[dict[str, DataSet], Len(1)]
    runs: Count = 1
    accounting_runs: Count = 1
    delta: Share = 1e-9
    pretrain: Pretrain = Pretrain()
    membership: Membership | None = None  # in membership games; None = the defaults
    training: dict[str, Any] = {}
    defenses: Annotated[list[str | dict[str, dict[str, Any]]], Len(1)]
    defense: dict[str, dict[str, Any]] = {}
    chosen: dict[str, Chosen] = {}  # of a label of the line-up
    attacks: list[str | dict[str, dict[str, Any]]] = []  # none: bounds alone
    attack: dict[str, dict[str, Any]] = {}
    bounds: list[str | dict[str, dict[str, Any]]] = []  # plug-ins, beside the suite's
    bound: dict[str, dict[str, Any]] = {}
    lanes: dict[str, Any] = {}
    out: str | None = None
    store: str | None = None
