"""How data become tensors: what all kinds of data have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.data.errors import MissingData
from rankfold.jobs.targets import Classes, Quantity

ModelName = Literal["mlp", "cnn", "text", "dlrm"]
TaskName = Literal["classification", "regression"]
Rows = NDArray[np.int64]

FEWEST_EXAMPLES = 10
# Without --epochs there are so many that this number of steps is reached, and batches are at most so large.
STEPS, LARGEST_BATCH = 3000, 128
_MAX_RANKS = {"cp": 50, "tucker": 8, "tt": 20, "ttm": 20}
# Options that are for one kind of data alone, by their names in DataOptions, and what each of them says.
_OPTIONS = {
    "target": ("--target", "names the column of a table that is predicted"),
    "task": ("--task", "says whether the column of a table that is predicted holds classes or a quantity"),
    "categorical": ("--categorical", "names a column of a table whose numbers are names"),
    "ignored": ("--ignore", "names a column of a table to leave out"),
    "image_size": ("--image-size", "is the height and width that images are brought to"),
}
# The division does not depend on a run's seed, so that runs can be compared.
_DIVISION_SEED = 0


@final
@dataclass(frozen=True)
class DataOptions:
    """What a user says about the data.

    Args:
        target: the column of a table to predict.
        task: classification or regression; guessed from the target's cells if left out.
        categorical: columns of numbers that are names of categories.
        ignored: columns to leave out.
        image_size: height and width to bring images to.
        validation_share: of the examples, held back and never trained on.
    """

    target: str | None = None
    task: TaskName | None = None
    categorical: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    image_size: int | None = None
    validation_share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("categorical", "ignored"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        if not 0 < self.validation_share < 1:
            raise ValueError(f"validation_share must lie between 0 and 1, got {self.validation_share!r}")


@final
@dataclass(frozen=True)
class Encoded:
    """Examples as a network takes them, their labels if there are any, and how a user finds them.

    Attributes:
        unknown: how many examples hold something that training did not know, by where it stands.
        left_out: what was found beside the examples, and is none.
    """

    inputs: tuple[Tensor, ...]
    labels: Tensor | None
    names: tuple[str, ...]
    unknown: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)


@final
@dataclass(frozen=True)
class Network:
    """A dense network, and which of its layers become factors.

    Args:
        make: a function at the top level of a module, called with ``options``.
        chosen: says of a layer and its name whether it is tensorized; all that become smaller if left out.
        init_std: of the weights of chosen layers; as the dense layers have it if left out.
        too_large: whether the dense network is never to be in memory.
    """

    make: Callable[..., nn.Module]
    options: Mapping[str, Any]
    chosen: Callable[[nn.Module, str], bool] | None = None
    init_std: float | None = None
    too_large: bool = False


class Preparation(ABC):
    """How one kind of data becomes tensors. It is made of the training part, and stored with the model.

    Attributes:
        kind: its name in files.
        described_as: in messages.
        models: the networks that suit it, the best one first.
        name_of_examples: the heading of the column of predictions that says which example it is.
        options: those of :class:`DataOptions` that say something of such data, besides the validation share.
        most_epochs: that training has unless it is asked for more.
        is_click: whether the network gives one logit, that of the second class.
        target: what is predicted.
    """

    kind: ClassVar[str]
    described_as: ClassVar[str]
    models: ClassVar[tuple[ModelName, ...]]
    name_of_examples: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    most_epochs: ClassVar[int] = 300
    is_click: ClassVar[bool] = False
    target: Classes | Quantity

    @classmethod
    def check_options(cls, path: Path, options: DataOptions) -> None:
        """Refuse an option that says nothing of such data."""
        for name, (option, purpose) in _OPTIONS.items():
            if getattr(options, name) not in (None, ()) and name not in cls.options:
                raise ValueError(f"{option} {purpose}, but {path} is {cls.described_as}; leave {option} out")

    @abstractmethod
    def network(self, model: ModelName) -> Network:
        """The network called ``model`` for these data."""

    @abstractmethod
    def read(self, path: Path) -> Encoded:
        """New data of the same form, with or without labels."""

    @property
    def unknown_rows(self) -> tuple[int, ...]:
        """The row of values that are not known, for each column of categories; these are the last input."""
        return ()

    @property
    def settings(self) -> Mapping[str, Any]:
        """Of training, where they differ from those of other data."""
        return {}

    @property
    def max_ranks(self) -> Mapping[str, int]:
        """Rank to start from in each format."""
        return _MAX_RANKS

    @property
    def guess(self) -> str | None:
        """How the task was chosen where nobody said it, and how to choose the other; nothing if there is but one."""
        return None

    @property
    def remark(self) -> str | None:
        """What of the data is not used, if something is not."""
        return None

    def columns(self, options: DataOptions) -> dict[str, Any] | None:
        """Of a table, what its columns are taken for: plain values, for files."""
        return None

    def about_target(self) -> dict[str, Any]:
        """What is predicted, for files: the names of the classes, or the quantity."""
        if isinstance(self.target, Classes):
            return {"classes": list(self.target.names), "quantity": None}
        return {"classes": None, "quantity": asdict(self.target)}

    def notes(self, examples: Encoded) -> Iterator[str]:
        """What a user should know of new data: a line for everything unknown that was counted."""
        yield from ()

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Plain values, from which :meth:`from_dict` makes it again."""

    @classmethod
    @abstractmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Preparation:
        """What :meth:`as_dict` gave."""


@final
@dataclass(frozen=True)
class Learned:
    """Data that were read to train on: all examples, and which of them are for training and for validation."""

    preparation: Preparation
    examples: Encoded
    train: Rows
    validation: Rows


def divide(labels: NDArray[Any] | None, size: int, share: float, path: Path) -> tuple[Rows, Rows]:
    """Training and validation rows at random; with labels, the same share of every class.

    A class of one example is trained on.
    """
    if size < FEWEST_EXAMPLES:
        raise MissingData(
            f"{path} has {counted(size, 'example')}, too few to learn from; {FEWEST_EXAMPLES} is the least"
        )
    if labels is not None:
        _check_repeated(labels, path)
    random = np.random.default_rng(_DIVISION_SEED)
    order = random.permutation(size)
    groups = [order] if labels is None else [order[labels[order] == label] for label in np.unique(labels)]
    held = np.concatenate([group[: _held_back(len(group), share)] for group in groups])
    if len(held) == 0:  # many small classes
        held = order[:1]
    is_held = np.zeros(size, bool)
    is_held[held] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def divide_in_order(size: int, share: float, path: Path) -> tuple[Rows, Rows]:
    """The last rows are for validation: for rows in the order of time."""
    if size < FEWEST_EXAMPLES:
        raise MissingData(f"{path} has {counted(size, 'row')}, too few to learn from; {FEWEST_EXAMPLES} is the least")
    first = size - min(size - 1, max(1, round(share * size)))
    return np.arange(first), np.arange(first, size)


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "example"), counted(2000, "row")
    ('1 example', '2,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _check_repeated(labels: NDArray[Any], path: Path) -> None:
    """Most classes must have more than one example."""
    times = np.unique(labels, return_counts=True)[1]
    single = int((times == 1).sum())
    if single > len(times) / 2:
        raise MissingData(
            f"{path}: {single} of {len(times)} classes have one example only, so nothing can be learned of them; give "
            f"more examples of each, or, if the target of a table is a number, --task regression"
        )


def _held_back(size: int, share: float) -> int:
    return min(size - 1, round(share * size))
