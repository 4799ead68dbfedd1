"""What is predicted: one of several classes, or a quantity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.errors import DamagedData
from rankfold.data.table import spelled_otherwise

_SHOWN = 12


@final
@dataclass(frozen=True)
class Classes:
    """Names of classes; a label is the place of its name.

    >>> Classes(("cat", "dog")).encode(["dog", "cat"], str)
    tensor([1, 0])
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Sequence[str], path: Path) -> Classes:
        """All names that occur, sorted: as numbers if all of them are."""
        names = sorted(set(labels), key=_order)
        if len(names) < 2:
            raise DamagedData(f"{path} has one class only, {names[0]!r}; a classifier needs examples of two or more")
        return cls(tuple(names))

    def encode(self, labels: Sequence[str], place: Callable[[int], str]) -> Tensor:
        """Labels (N,), int64; ``place`` says where the label of an example stands."""
        known = spelled_otherwise({name: n for n, name in enumerate(self.names)})
        for n, label in enumerate(labels):
            if label not in known:
                more = f", … ({len(self.names)} in all)" if len(self.names) > _SHOWN else ""
                raise DamagedData(
                    f"{place(n)}: the class {label!r} was not there in training; the classes are "
                    f"{', '.join(self.names[:_SHOWN])}{more}. Correct it, or leave the labels away"
                )
        return torch.tensor([known[label] for label in labels], dtype=torch.int64)


@final
@dataclass(frozen=True)
class Quantity:
    """A number to predict, with its mean and standard deviation in the training part."""

    name: str
    mean: float
    std: float

    @classmethod
    def of(cls, name: str, values: NDArray[np.float64], path: Path) -> Quantity:
        std = float(values.std())
        if not std > 0:
            raise DamagedData(f"{path}: all numbers in column {name!r} are {values[0]:g}, so there is nothing to learn")
        return cls(name, float(values.mean()), std)

    def encode(self, values: NDArray[np.float64]) -> Tensor:
        """Standardised, (N,), float32."""
        return torch.from_numpy(((values - self.mean) / self.std).astype(np.float32))


def _order(name: str) -> tuple[int, float, str]:
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name
