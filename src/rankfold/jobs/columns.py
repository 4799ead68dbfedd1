"""What the columns of a table mean: numbers, categories, or nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.table import Table, is_numeric, no_number, number, spelled_otherwise
from rankfold.jobs.preparation import DataOptions, Rows
from rankfold.models.mlp import UNKNOWN_ROW

# A category seen once says little; it counts as unknown.
_MIN_COUNT = 2
# Ids by their name: id, user_id, userId, item-ID; not paid, nor grid. Codes likewise: postcode, areaCode, zip.
_NAME_OF_ID = re.compile(r"(?:(?:^|[\W_])(?:id|ID|Id|zip|Zip|ZIP)|[a-z](?:Id|ID|Zip|ZIP)|code|Code|CODE)$")
# Ids by their values: large, seen again, and no rounder than chance makes them, as prices and salaries are.
_LEAST_ID, _TIMES_SEEN, _MOST_ROUND = 10_000, 2, 0.3


@final
@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers; a missing one counts as the mean."""

    name: str
    mean: float
    std: float

    def encode(self, table: Table) -> NDArray[np.float32]:
        values = table.numbers(self.name, "in training this column held numbers; correct the cell, or empty it")
        return np.nan_to_num((values - self.mean) / self.std, nan=0.0).astype(np.float32)


@final
@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: their rows are 1, 2, … in this order; 0 is for values that are not known."""

    name: str
    values: tuple[str, ...]

    def encode(self, table: Table) -> NDArray[np.int64]:
        rows = spelled_otherwise({value: n for n, value in enumerate(self.values, start=1)})
        return np.array([rows.get(cell, UNKNOWN_ROW) for cell in table.columns[self.name]], np.int64)


def chosen_columns(
    table: Table, options: DataOptions, train: Rows
) -> tuple[tuple[NumberColumn, ...], tuple[CategoryColumn, ...]]:
    """The columns that say something, as the training rows have them."""
    _check_columns(table, options)
    numbers, categories = [], []
    for name, cells in table.columns.items():
        if name in (options.target, *options.ignored):
            continue
        if name not in options.categorical:
            check_commas(table, name, "--categorical or --ignore with the column's name")
        if name not in options.categorical and is_numeric(cells):
            numbers.append(_number_column(table, name, train))
        else:
            categories.append(CategoryColumn(name, _frequent([cells[n] for n in train])))
    # a column that never changes says nothing
    kept = [column for column in numbers if column.std > 0], [column for column in categories if len(column.values) > 1]
    if not any(kept):
        raise MissingData(_nothing_left(table, options, [*(n.name for n in numbers), *(c.name for c in categories)]))
    return tuple(kept[0]), tuple(kept[1])


def _nothing_left(table: Table, options: DataOptions, useless: Sequence[str]) -> str:
    """That no column can be predicted from, and why each is none."""
    reasons = [f"--ignore leaves out {', '.join(map(repr, options.ignored))}"] if options.ignored else []
    if useless:
        reasons.append(f"all training values of {', '.join(map(repr, useless))} are the same or all differ")
    said = f": {'; '.join(reasons)}. Add a column that tells the rows apart" if reasons else "; add one"
    return f"{table.path} has no column besides {options.target!r} that the prediction could come from{said}"


def check_commas(table: Table, name: str, otherwise: str) -> None:
    """Refuse a column of names that would be numbers if its commas were points."""
    cells = table.columns[name]
    pointed = [cell.replace(",", ".") for cell in cells]
    if not is_numeric(cells) and is_numeric(pointed):
        first = next(n for n, cell in enumerate(cells) if number(cell) is None and number(pointed[n]) is not None)
        raise DamagedData(
            f"{table.place(first, name)}: {cells[first]!r} {no_number(cells[first])}; write decimal points, and "
            f"nothing between thousands, or give {otherwise}"
        )


def _check_columns(table: Table, options: DataOptions) -> None:
    """Columns that options name must be there, and no column can be two things at once."""
    for name in options.categorical:
        table.column(name, "--categorical")
    for name in options.ignored:
        table.column(name, "--ignore")
    if options.target in options.ignored:
        raise ValueError(f"--ignore leaves out {options.target!r}, the column to predict; name it in --target alone")
    if options.target in options.categorical:
        raise ValueError(
            f"--categorical is for columns to predict from, but {options.target!r} is the one to predict; "
            f"--task classification makes classes of its numbers"
        )
    for name in options.categorical:
        if name in options.ignored:
            raise ValueError(f"--ignore leaves out {name!r}, which --categorical names too; choose one of them")


def _number_column(table: Table, name: str, train: Rows) -> NumberColumn:
    remedy = "nearly all others are; correct or empty it, or give --categorical or --ignore with the column's name"
    values = table.numbers(name, remedy)[train]
    present = values[~np.isnan(values)]
    return NumberColumn(name, float(present.mean()), float(present.std())) if len(present) else NumberColumn(name, 0, 0)


def _frequent(cells: Sequence[str]) -> tuple[str, ...]:
    """Values seen more than once, the most frequent first; an empty cell is a value like any other."""
    counts = Counter(cells)
    known = [value for value, times in counts.items() if times >= _MIN_COUNT]
    return tuple(sorted(known, key=lambda value: (-counts[value], value)))


# Numbers that are names ------------------------------------------------------------------------------


def looks_like_id(table: Table, name: str) -> bool:
    """Whether a column of numbers may hold ids: whole numbers that are called so, or large ones that come again.

    >>> from pathlib import Path
    >>> table = Table(Path("a.csv"), {"user_id": ["1", "2", "3"], "town": ["70173", "10115"] * 3, "age": ["7", "8"]})
    >>> [name for name in table.columns if looks_like_id(table, name)]
    ['user_id', 'town']
    """
    values = table.numbers(name, "correct the cell")
    values = values[~np.isnan(values)]
    if (values != np.round(values)).any():
        return False
    if _NAME_OF_ID.search(name):
        return True
    comes_again = len(values) >= _TIMES_SEEN * len(np.unique(values))
    return bool(comes_again and values.min() >= _LEAST_ID and (values % 10 == 0).mean() < _MOST_ROUND)


def advice_about_id(table: Table, name: str) -> str:
    """Of a column that looks like an id, what to do: one that never comes again says nothing."""
    cells = table.columns[name]
    return f"--{'ignore' if len(set(cells)) == len(cells) else 'categorical'} {quote(name)}"
