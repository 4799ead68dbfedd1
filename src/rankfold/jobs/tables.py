"""Tables: columns of numbers, standardised, and columns of categories, each with its vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.first_lines import are_labelled_texts, first_lines
from rankfold.data.table import FIRST_ROW, Table, is_called_table, number, parsed, read_table
from rankfold.jobs.columns import (
    CategoryColumn,
    NumberColumn,
    advice_about_id,
    check_commas,
    chosen_columns,
    looks_like_id,
)
from rankfold.jobs.preparation import DataOptions, Encoded, Learned, ModelName, Network, Preparation, Rows, divide
from rankfold.jobs.targets import Classes, Quantity
from rankfold.models.mlp import UNKNOWN_ROW, TableClassifier, TableRegressor

# Whole numbers of more values than this, or than this share of the rows, are a quantity, not classes.
MOST_CLASSES, _LARGEST_SHARE = 20, 0.5
# A target of at least so many numbers, and at most this share of other cells, is one of numbers.
_ENOUGH_NUMBERS, _MOST_MISTAKES = 20, 0.05


@final
@dataclass(frozen=True)
class Tabular(Preparation):
    """The columns that the network sees, and the one it predicts.

    Attributes:
        left_out: columns that say nothing.
        ids: columns of numbers that look like ids, with the option that each may need.
    """

    kind: ClassVar[str] = "table"
    described_as: ClassVar[str] = "a table"
    models: ClassVar[tuple[ModelName, ...]] = ("mlp",)
    name_of_examples: ClassVar[str] = "row"
    options: ClassVar[tuple[str, ...]] = ("target", "task", "categorical", "ignored")

    target: Classes | Quantity
    target_column: str
    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    left_out: tuple[str, ...] = ()
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def learn(cls, path: Path, options: DataOptions) -> Learned:
        table = read_table(path)
        if options.target is None:
            raise MissingData(f"name the column to predict with --target; {path} has {', '.join(table.columns)}")
        regression = _is_regression(table, options)
        cells = table.columns[options.target]
        labels = None if regression else np.array(cells)
        train, validation = divide(labels, len(table), options.validation_share, path)
        target = _quantity(table, options.target, train) if regression else Classes.of(cells, path)
        numbers, categories = chosen_columns(table, options, train)
        used = {options.target, *options.ignored, *(n.name for n in numbers), *(c.name for c in categories)}
        left_out = tuple(name for name in table.columns if name not in used)
        ids = {n.name: advice_about_id(table, n.name) for n in numbers if looks_like_id(table, n.name)}
        preparation = cls(target, options.target, numbers, categories, left_out, ids)
        return Learned(preparation, preparation._encode(table), train, validation)

    def read(self, path: Path) -> Encoded:
        names = [column.name for column in self.numbers] + [column.name for column in self.categories]
        _check_no_texts(path, names)
        table = read_table(path)
        missing = [name for name in names if name not in table.columns]
        if missing:
            raise MissingData(
                f"{path} has no column {', '.join(map(repr, missing))}, which training had; "
                f"its columns are {', '.join(table.columns)}"
            )
        return self._encode(table)

    def notes(self, examples: Encoded) -> Iterator[str]:
        for name, count in examples.unknown.items():
            if count:
                yield (
                    f"{name}: {count:,} of {len(examples):,} rows hold a value that training did not see, or saw only "
                    f"once; they count as unknown"
                )

    @property
    def guess(self) -> str | None:
        # names can be nothing but classes
        if isinstance(self.target, Quantity):
            return "guessed from the target's numbers; --task classification changes it"
        if not isinstance(parsed(self.target.names), int):
            return "guessed from the target's numbers; --task regression changes it"
        return None

    @property
    def remark(self) -> str | None:
        if not self.left_out:
            return None
        return f"left out, as all their values are the same or all differ: {', '.join(map(repr, self.left_out))}"

    def columns(self, options: DataOptions) -> dict[str, Any]:
        return {
            "numbers": [column.name for column in self.numbers],
            "categories": {column.name: len(column.values) for column in self.categories},
            "ignored": list(options.ignored),
            "left_out": list(self.left_out),
            "ids": dict(self.ids),
        }

    @property
    def unknown_rows(self) -> tuple[int, ...]:
        return (UNKNOWN_ROW,) * len(self.categories)

    def network(self, model: ModelName) -> Network:
        options = {"num_numbers": len(self.numbers), "sizes": [len(c.values) + 1 for c in self.categories]}
        if isinstance(self.target, Quantity):
            return Network(TableRegressor, {**options, "widens": True})
        return Network(TableClassifier, {**options, "num_outputs": len(self.target.names)})

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        entry = content["target"]
        return cls(
            Quantity(**entry) if "mean" in entry else Classes(tuple(entry["names"])),
            content["target_column"],
            tuple(NumberColumn(**column) for column in content["numbers"]),
            tuple(CategoryColumn(column["name"], tuple(column["values"])) for column in content["categories"]),
            tuple(content.get("left_out", ())),
            content.get("ids", {}),
        )

    def _encode(self, table: Table) -> Encoded:
        inputs, unknown = [], {}
        if self.numbers:
            inputs.append(torch.from_numpy(np.stack([column.encode(table) for column in self.numbers], axis=1)))
        if self.categories:
            rows = np.stack([column.encode(table) for column in self.categories], axis=1)
            counts = (rows == UNKNOWN_ROW).sum(0).tolist()
            unknown = {column.name: count for column, count in zip(self.categories, counts, strict=True)}
            inputs.append(torch.from_numpy(rows))
        names = tuple(str(n) for n in range(FIRST_ROW, len(table) + FIRST_ROW))
        return Encoded(tuple(inputs), self._labels(table), names, unknown)

    def _labels(self, table: Table) -> torch.Tensor | None:
        """Of the target's column, where there is one that is not empty."""
        name = self.target_column
        if not any(table.columns.get(name, ())):
            return None
        if isinstance(self.target, Quantity):
            return self.target.encode(_present_numbers(table, name))
        _check_present(table, name)
        return self.target.encode(table.columns[name], lambda n: table.place(n, name))


def _check_no_texts(path: Path, names: Sequence[str]) -> None:
    """Refuse labelled texts, before one of them is taken for the names of columns."""
    if path.is_file() and not is_called_table(path) and are_labelled_texts(first_lines(path), names):
        raise DamagedData(
            f"{path} holds labelled texts, a label, a tab and a text in each line, and texts have no columns; give a "
            f"table with the columns that training had: {', '.join(names)}"
        )


# What the target means --------------------------------------------------------------------------------


def _is_regression(table: Table, options: DataOptions) -> bool:
    """As asked for; otherwise if the target holds many different numbers, or fractions."""
    assert options.target is not None
    cells = table.column(options.target, "--target")
    _check_present(table, options.target)
    if options.task != "classification":
        check_commas(table, options.target, "--task classification if they are classes")
    if options.task is not None:
        return options.task == "regression"
    values = parsed(cells)
    if isinstance(values, int):
        _check_mistakes(table, options.target)
        return False
    return _is_quantity(values)


def _is_quantity(values: NDArray[np.float64]) -> bool:
    """Whether numbers are many different ones, or fractions."""
    distinct = len(set(values.tolist()))
    return distinct > min(MOST_CLASSES, _LARGEST_SHARE * len(values)) or bool((values != np.round(values)).any())


def _check_mistakes(table: Table, name: str) -> None:
    """Refuse a cell that is no number where nearly all others are; names seen again among few numbers are classes."""
    cells = table.columns[name]
    others = Counter(cell for cell in cells if number(cell) is None)
    values = parsed([cell for cell in cells if cell not in others])
    assert not isinstance(values, int)
    if len(values) < _ENOUGH_NUMBERS or others.total() > _MOST_MISTAKES * len(cells):
        return
    if _is_quantity(values) or max(others.values()) == 1:
        table.numbers(name, "nearly all others are; correct it, or give --task classification if it is a class")


def _quantity(table: Table, name: str, train: Rows) -> Quantity:
    return Quantity.of(name, _present_numbers(table, name)[train], table.path)


def _present_numbers(table: Table, name: str) -> NDArray[np.float64]:
    _check_present(table, name)
    return table.numbers(name, "regression needs numbers; correct the cell, or ask for --task classification")


def _check_present(table: Table, name: str) -> None:
    for n, cell in enumerate(table.columns[name]):
        if not cell:
            raise DamagedData(
                f"{table.place(n, name)} is empty or nan; fill in what is to be predicted, or remove the row"
            )
