"""A table from a CSV or Parquet file, cell by cell as text; what a column means is decided elsewhere.

The first row of a CSV file, plain or packed by gzip or xz, names the columns. Commas, semicolons, tabs or bars part
the cells. Rows are counted as a spreadsheet does: the first one below the names is row 2. Parquet needs pyarrow: pip
install 'rankfold[parquet]'.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.lines import decoded
from rankfold.data.packing import without_packing

FIRST_ROW = 2
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
PARQUET = (".parquet", ".pq")
_DELIMITERS = ",;\t|"
# A column with fewer other cells than this share is one of numbers, and those are mistakes.
_FEW = 0.1
_LARGEST = 1e30  # of a cell; networks compute in single precision, which ends at 3e38


class NoNumber(DamagedData):
    """A cell that should hold a number."""


@final
@dataclass(frozen=True)
class Table:
    """The cells of every column, by its name; a missing cell is empty."""

    path: Path
    columns: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, index: int, column: str) -> str:
        """How to find a cell.

        >>> Table(Path("a.csv"), {"age": ["7"]}).place(0, "age")
        "a.csv, row 2, column 'age'"
        """
        return f"{self.path}, row {index + FIRST_ROW}, column {column!r}"

    def column(self, name: str, option: str) -> Sequence[str]:
        """The cells of a column that an option names."""
        if name not in self.columns:
            known = ", ".join(self.columns)
            raise MissingData(f"{self.path} has no column {name!r}, which {option} names; its columns are {known}")
        return self.columns[name]

    def numbers(self, name: str, remedy: str) -> NDArray[np.float64]:
        """The numbers of a column, (N,), NaN where a cell is missing."""
        values = parsed(self.columns[name])
        if isinstance(values, int):
            cell = self.columns[name][values]
            raise NoNumber(f"{self.place(values, name)}: {cell!r} {no_number(cell)}; {remedy}")
        too_large = np.flatnonzero(np.abs(values) > _LARGEST)
        if len(too_large):
            place, cell = self.place(int(too_large[0]), name), self.columns[name][too_large[0]]
            raise DamagedData(
                f"{place}: {cell} is too large to compute with, over {_LARGEST:g}; correct it, or choose another unit"
            )
        return values


def is_called_table(path: Path) -> bool:
    """Whether a file's name is that of a table, plain or packed.

    >>> is_called_table(Path("a.csv.gz")), is_called_table(Path("a.txt"))
    (True, False)
    """
    return without_packing(path).suffix.lower() in (".csv", *PARQUET)


def parsed(cells: Sequence[str]) -> NDArray[np.float64] | int:
    """The numbers in cells, (N,), NaN for missing ones; or the first cell that is neither.

    >>> parsed(["1", " 2.5", ""]).tolist(), parsed(["1", "x"])
    ([1.0, 2.5, nan], 1)
    """
    values = np.full(len(cells), np.nan)
    for n, cell in enumerate(cells):
        if cell:
            value = number(cell)
            if value is None:
                return n
            values[n] = value
    return values


def spelled_otherwise(places: Mapping[str, int]) -> dict[str, int]:
    """Places of cells; those of true and false in other cases, too: Parquet has True where CSV often has true.

    >>> sorted(spelled_otherwise({"true": 0, "Maybe": 1}))
    ['Maybe', 'TRUE', 'True', 'true']
    """
    booleans = [(cell, place) for cell, place in places.items() if cell.lower() in ("true", "false")]
    return {case: place for cell, place in booleans for case in (cell.lower(), cell.upper(), cell.title())} | {**places}


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether nearly all cells that are not missing are numbers.

    >>> is_numeric(["1", "2", ""]), is_numeric(["1", "red"]), is_numeric(["", ""])
    (True, False, False)
    """
    counts = Counter(cells)
    present = sum(times for cell, times in counts.items() if cell)
    others = sum(times for cell, times in counts.items() if cell and number(cell) is None)
    return present > 0 and others < max(1.0, _FEW * present)


def number(cell: str) -> float | None:
    """The finite number in a cell, or none."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def no_number(cell: str) -> str:
    """Why a cell is none, for those that are not.

    >>> no_number("red"), no_number("0,5")
    ('is no finite number', 'is no number for its comma')
    """
    return f"is no {'number for its comma' if number(cell.replace(',', '.')) is not None else 'finite number'}"


# Files ------------------------------------------------------------------------------------------------


def read_table(path: Path) -> Table:
    """All cells of a file; those that stand for nothing, such as NA, are empty."""
    if not path.is_file():
        raise MissingData(f"{path} is no file; give a CSV or Parquet file")
    plain = without_packing(path)
    if plain != path and plain.suffix.lower() in PARQUET:
        raise DamagedData(f"{path} is a packed Parquet file; unpack it first, Parquet packs its columns itself")
    names, columns = _parquet(path) if plain.suffix.lower() in PARQUET else _csv(path)
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise DamagedData(f"{path} has two columns called {repeated[0]!r}; give every column a name of its own")
    if not names:
        raise MissingData(f"{path} is empty; its first row must name the columns, and examples follow")
    if not len(columns[0]):
        raise MissingData(f"{path} has no rows below the names of its columns; add examples")
    return Table(path, dict(zip(names, columns, strict=True)))


def _csv(path: Path) -> tuple[list[str], list[list[str]]]:
    text = _decoded(path)
    rows = _rows(path, text)
    names = [name.strip() for name in next(rows, (0, []))[1]]
    columns: list[list[str]] = [[] for _ in names]
    for n, (line, row) in enumerate(((line, row) for line, row in rows if row), start=FIRST_ROW):
        if len(row) != len(names):
            raise DamagedData(
                f"{path}, row {n} (line {line}) has {len(row)} cells, but there are {len(names)}"
                f" columns; mend it, or remove the row"
            )
        for column, cell in zip(columns, row, strict=True):
            column.append(_cleaned(cell))
    return names, columns


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """All rows, each with its last line; of one that cannot be read, as of an open quote, its first line is named."""
    header = text.partition("\n")[0]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=header.count), strict=True)
    complete = 0  # lines
    try:
        for row in reader:
            complete = reader.line_num
            yield complete, row
    except csv.Error as error:
        hint = ", perhaps a quote is not closed" if reader.line_num > complete + 1 else ""
        raise DamagedData(f"{path}, line {complete + 1} is no CSV ({error}); mend it{hint}") from error


def _decoded(path: Path) -> str:
    text = decoded(path.read_bytes(), path)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DamagedData(f"{path}, line {line} holds a zero byte, so this is no text; save the file as UTF-8")
    return text


def _parquet(path: Path) -> tuple[list[str], list[list[str]]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            table = file.read()
    except (ArrowException, OSError) as error:
        raise DamagedData(f"{path} cannot be read as Parquet ({error}); write it again") from error
    return list(table.column_names), [[_text(value) for value in column.to_pylist()] for column in table.columns]


def _text(value: Any) -> str:
    return "" if value is None else _cleaned(str(value))


def _cleaned(cell: str) -> str:
    cell = cell.strip()
    return "" if cell.lower() in MISSING else cell
