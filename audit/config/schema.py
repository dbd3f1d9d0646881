"""The schema of a scenario file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import BaseModel, ConfigDict

from audit.types import Count, NonNegative, NonNegativeInt, Positive, Seed, Share


class Section(BaseModel):
    """A part of a scenario: every word of it is named, every value has its type.

    A game names its own settings by a subclass in its file.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SplitSizes(Section):
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


class Features(Section):
    """What is done to the records first; arguments of `data.prepare_features`."""

    channels: bool | Literal["cifar10"] = False
    unit_ball: bool = False
    pca: NonNegativeInt = 0
    standardise: bool = False


class Pretrain(Section):
    """Training on the public records before anything private; see `pretrain.start`."""

    epochs: NonNegativeInt = 0
    batch_size: Count = 512
    learning_rate: Positive = 0.01
    weight_decay: NonNegative = 1e-4


class DataSet(Section):
    """What a scenario does on one data set.

    Further words are settings of the game that differ here.
    """

    model_config = ConfigDict(extra="allow")

    splits: SplitSizes
    features: Features | None = None  # where they are prepared otherwise than elsewhere
    training: dict[str, Any] = {}
    defense: dict[str, dict[str, Any]] = {}
    attack: dict[str, dict[str, Any]] = {}


class TaskSpec(Section):
    """What is learnt: a model of `models.networks` on some classes of the data."""

    model: str
    classes: list[NonNegativeInt] = []  # none where labels are numbers
    label_private: bool = False  # count the label among what an attacker wants
    settings: dict[str, Any] = {}


class Chosen(Section):
    """Who chose a defense's settings, and what that cost; shown, never used."""

    by: str
    cost: str
    tuned_on: Literal["elsewhere", "targets"] | None = None  # None = not said


class ScenarioSpec(Section):
    """The schema of a scenario file plus the words of the command line.

    Settings of the game stand beside these words, see `compose.validate`.
    """

    name: str
    title: str
    source: str
    game: str
    seed: Seed = 0
    task: TaskSpec
    features: Features = Features()
    data: str = "auto"
    sets: Annotated[dict[str, DataSet], Len(1)]
    runs: Count = 1
    accounting_runs: Count = 1
    delta: Share = 1e-9
    pretrain: Pretrain = Pretrain()
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
