"""The prepared data set: three memory-mapped arrays, and how its days are used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from rankfold.data.criteo.lines import NUM_CATEGORIES, NUM_NUMBERS
from rankfold.data.errors import DamagedData

ABOUT_FILE = "about.json"
NUM_DAYS = 7
# Name, type and columns of every array; a file holds the rows one after the other and nothing else.
ARRAYS = {
    "labels": (torch.uint8, 1),
    "numbers": (torch.float32, NUM_NUMBERS),
    "categories": (torch.int32, NUM_CATEGORIES),
}


@final
@dataclass(frozen=True)
class Criteo:
    """Clicks with what is known about them; the arrays lie in files and are read when they are used.

    Attributes:
        labels: 1 for a click, (N,), uint8.
        numbers: ``log(1 + x)`` of the integers, (N, 13), float32.
        categories: rows of the 26 tables, (N, 26), int32.
        sizes: rows of every table.
        file_rows: how many rows came from each file.
        malformed: how many lines were left out.
        examples: the first of them, each as ``file:line: why``.
    """

    labels: Tensor
    numbers: Tensor
    categories: Tensor
    sizes: tuple[int, ...]
    file_rows: tuple[int, ...]
    malformed: int
    examples: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def open(cls, folder: Path) -> Criteo:
        """The arrays in ``folder``, as :func:`~rankfold.data.criteo.prepare` left them."""
        try:
            about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
            rows = sum(about["file_rows"])
            arrays = {name: _mapped(folder / name, rows, *layout) for name, layout in ARRAYS.items()}
        except (OSError, ValueError, KeyError) as error:
            raise DamagedData(f"{folder} is no prepared data set ({error}); remove it, and it is made again") from error
        return cls(
            arrays["labels"].squeeze(1),
            arrays["numbers"],
            arrays["categories"],
            tuple(about["sizes"]),
            tuple(about["file_rows"]),
            about["malformed"],
            tuple(about["examples"]),
        )


def _mapped(file: Path, rows: int, dtype: torch.dtype, columns: int) -> Tensor:
    expected = rows * columns * dtype.itemsize
    if file.stat().st_size != expected:
        raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes instead of {expected:,}")
    if rows == 0:
        return torch.empty(0, columns, dtype=dtype)
    # private pages: the file stays as it is, whatever is done to the tensor
    return torch.from_file(str(file), shared=False, size=rows * columns, dtype=dtype).view(rows, columns)


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write what :meth:`Criteo.open` reads besides the arrays."""
    (folder / ABOUT_FILE).write_text(json.dumps(about, indent=1), encoding="utf-8")


@final
@dataclass(frozen=True)
class TimeSplit:
    """Rows in time order: six days to train, the last day's first half to validate, its second half to test."""

    train: slice
    validation: slice
    test: slice


def time_split(num_rows: int) -> TimeSplit:
    """The split of DLRM, for rows in time order that are spread evenly over seven days.

    >>> time_split(70)
    TimeSplit(train=slice(0, 60, None), validation=slice(60, 65, None), test=slice(65, 70, None))
    """
    if num_rows <= NUM_DAYS:
        raise ValueError(f"num_rows must be more than {NUM_DAYS}, so that no part is empty, got {num_rows!r}")
    last = seventh(num_rows, NUM_DAYS)
    middle = (last.start + last.stop) // 2
    return TimeSplit(slice(0, last.start), slice(last.start, middle), slice(middle, last.stop))


def seventh(num_rows: int, day: int) -> slice:
    """The rows of one day, 1 to 7.

    >>> seventh(70, 6)
    slice(50, 60, None)
    """
    return slice(num_rows * (day - 1) // NUM_DAYS, num_rows * day // NUM_DAYS)
