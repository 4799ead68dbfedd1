"""Clicks in the Criteo format: numbers, and rows of tables looked up in a vocabulary of the training part.

Rows are in the order of time: the last ones are for validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from numpy.typing import NDArray

from rankfold.data.clicks import Clicks, read_clicks
from rankfold.data.criteo.encoding import Lookup, TokenCounts, encode
from rankfold.data.criteo.lines import NUM_CATEGORIES
from rankfold.data.errors import DamagedData
from rankfold.jobs.hiding import is_unknown
from rankfold.jobs.preparation import (
    LARGEST_BATCH,
    STEPS,
    DataOptions,
    Encoded,
    Learned,
    ModelName,
    Network,
    Preparation,
    divide_in_order,
)
from rankfold.jobs.targets import Classes
from rankfold.models.dlrm import DLRM, tables_from

# A category seen once shares a row with all that are not known.
_MIN_COUNT = 2
# From so many rows on one pass over them is enough, as in the DLRM experiments: tables of at least LARGE_TABLE rows
# become factors, and the rest stays dense.
_ONE_PASS = STEPS * LARGEST_BATCH
LARGE_TABLE = 1000
_TABLE_STD = 0.01
# Fewer rows are seen several times. What stays dense then learns them by heart, and the prior leaves nothing of what
# is factors. So the rank to start from is low enough for small tables to become factors too, and the network is
# smaller. Where one category of 26, each of 20 values, tells 80 % of clicks from 10 %, the AUC after training on 1,350
# rows is 0.88; it is 0.50 if small tables stay dense, as they do from rank 20.
_MAX_RANKS_OF_SMALL_TABLES = {"cp": 20, "tucker": 4, "tt": 8, "ttm": 8}
# the learning rate falls from the first step on
_SETTINGS: Mapping[str, Any] = {"lr": 1e-3, "log_std_lr": 5.0, "warmup": 0.3, "decay": 1.0}
_CLICKED = Classes(("0", "1"))
_SIZES: Mapping[str, Any] = {"dim": 64, "bottom": [256, 128], "top": [256, 128]}
_SIZES_FOR_FEW: Mapping[str, Any] = {"dim": 16, "bottom": [64], "top": [64]}


@final
@dataclass(frozen=True)
class Impressions(Preparation):
    """What was shown, and whether it was clicked: 13 numbers and 26 categories, each with its vocabulary.

    Attributes:
        num_rows: of the training part; older runs do not say.
        left_out: which lines are malformed.
    """

    kind: ClassVar[str] = "criteo"
    described_as: ClassVar[str] = "a file in the Criteo format"
    models: ClassVar[tuple[ModelName, ...]] = ("dlrm",)
    name_of_examples: ClassVar[str] = "line"
    # tables of a few rows stay dense whatever the rank, and begin to learn rows by heart
    most_epochs: ClassVar[int] = 100
    is_click: ClassVar[bool] = True

    lookups: tuple[Lookup, ...]
    num_rows: int | None = None
    target: Classes = _CLICKED
    left_out: str | None = None

    @classmethod
    def learn(cls, path: Path, options: DataOptions) -> Learned:
        clicks = read_clicks(path)
        if clicks.labels is None:
            raise DamagedData(f"{path}: its lines have 39 fields, so the labels are missing; the first must be 0 or 1")
        train, validation = divide_in_order(len(clicks), options.validation_share, path)
        for name, rows in (("first", train), ("last", validation)):
            if len(np.unique(clicks.labels[rows])) < 2:
                raise DamagedData(
                    f"{path}: the {name} {len(rows):,} rows all have the label {clicks.labels[rows[0]]}; "
                    f"give more rows, or another --validation-share"
                )
        lookups = tuple(_lookup(clicks.tokens[train, n]) for n in range(NUM_CATEGORIES))
        preparation = cls(lookups, len(train), left_out=clicks.left_out)
        return Learned(preparation, preparation._encode(clicks), train, validation)

    @property
    def sizes(self) -> list[int]:
        """Rows of the tables."""
        return [lookup.size for lookup in self.lookups]

    def read(self, path: Path) -> Encoded:
        return self._encode(read_clicks(path))

    @property
    def unknown_rows(self) -> tuple[int, ...]:
        return tuple(lookup.shared for lookup in self.lookups)

    @property
    def remark(self) -> str | None:
        return self.left_out

    @property
    def is_small(self) -> bool:
        """Whether rows are seen more than once."""
        return self.num_rows is not None and self.num_rows < _ONE_PASS

    @property
    def is_all_factors(self) -> bool:
        """Whether more than large tables become factors."""
        return self.is_small or max(self.sizes) < LARGE_TABLE

    @property
    def settings(self) -> Mapping[str, Any]:
        return _SETTINGS if self.is_small else {**_SETTINGS, "epochs": 1}

    @property
    def max_ranks(self) -> Mapping[str, int]:
        return _MAX_RANKS_OF_SMALL_TABLES if self.is_all_factors else super().max_ranks

    def notes(self, examples: Encoded) -> Iterator[str]:
        yield from examples.left_out
        counts = {name: count for name, count in examples.unknown.items() if count}
        if counts:
            most = max(counts, key=counts.__getitem__)
            yield (
                f"{len(counts)} of {NUM_CATEGORIES} categories hold values that training did not see, or saw only "
                f"once; they count as unknown. {most} has the most, in {counts[most]:,} of {len(examples):,} lines"
            )

    def network(self, model: ModelName) -> Network:
        options = {"sizes": self.sizes, **(_SIZES_FOR_FEW if self.is_small else _SIZES)}
        if self.is_all_factors:
            return Network(DLRM, options)
        return Network(DLRM, options, tables_from(LARGE_TABLE), _TABLE_STD, too_large=True)

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "num_rows": self.num_rows,
            "left_out": self.left_out,
            "sizes": self.sizes,
            "shared": [lookup.shared for lookup in self.lookups],
            "tokens": [lookup.tokens.tolist() for lookup in self.lookups],
            "rows": [lookup.places.tolist() for lookup in self.lookups],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        columns = zip(*(content[key] for key in ("tokens", "rows", "sizes", "shared")), strict=True)
        lookups = tuple(Lookup(np.array(t, np.uint32), np.array(r, np.int32), *rest) for t, r, *rest in columns)
        return cls(lookups, content.get("num_rows"), left_out=content.get("left_out"))

    def _encode(self, clicks: Clicks) -> Encoded:
        inputs = torch.from_numpy(clicks.numbers), torch.from_numpy(encode(self.lookups, clicks.tokens))
        labels = None if clicks.labels is None else torch.from_numpy(clicks.labels)
        counts = is_unknown(inputs, self.unknown_rows).sum(0).tolist()
        unknown = {f"category {n}": count for n, count in enumerate(counts, start=1)}
        left_out = () if clicks.left_out is None else (clicks.left_out,)
        return Encoded(inputs, labels, tuple(map(str, clicks.lines.tolist())), unknown, left_out)


def _lookup(tokens: NDArray[np.uint32]) -> Lookup:
    counts = TokenCounts()
    counts.add(tokens)
    # a row for what is not known, where every category was seen often enough, too
    known = int((counts.table()[1] >= _MIN_COUNT).sum())
    return Lookup.of(counts, _MIN_COUNT, known + 1)
