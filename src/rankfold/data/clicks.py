"""Clicks from a file in the Criteo Kaggle format, as a whole in memory: 210 bytes a row.

The data set itself, with its days and its published sizes, is :mod:`rankfold.data.criteo`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.criteo.files import Block, blocks
from rankfold.data.criteo.lines import NUM_CATEGORIES, NUM_NUMBERS, read_block
from rankfold.data.errors import DamagedData, MissingData

# Tabs in a line with a label, and in one without.
LABELLED, UNLABELLED = NUM_NUMBERS + NUM_CATEGORIES, NUM_NUMBERS + NUM_CATEGORIES - 1


@final
@dataclass(frozen=True)
class Clicks:
    """Rows of a file.

    Attributes:
        numbers: ``log(1 + x)`` of the integers, (N, 13), float32.
        tokens: of the categories, (N, 26), uint32.
        labels: 1 for a click, (N,), uint8; ``None`` if the lines have none.
    """

    path: Path
    numbers: NDArray[np.float32]
    tokens: NDArray[np.uint32]
    labels: NDArray[np.uint8] | None

    def __len__(self) -> int:
        return len(self.numbers)


def read_clicks(path: Path) -> Clicks:
    """All rows of a file, plain or packed; lines have 40 fields, or 39 if there are no labels."""
    if not path.is_file():
        raise MissingData(f"{path} is no file; give one in the Criteo format")
    parts, labelled = [], None
    for block in blocks(path):
        if labelled is None:
            labelled = block.text.partition(b"\n")[0].count(b"\t") != UNLABELLED
        rows, malformed = read_block(block.text if labelled else _with_labels(block))
        if malformed:
            line, why = malformed[0]
            raise DamagedData(f"{path}, line {block.first_line + line}: {why}; mend it, or remove the line")
        parts.append(rows)
    if labelled is None:
        raise MissingData(f"{path} is empty; expected lines of {LABELLED + 1} fields with tabs between them")
    return Clicks(
        path,
        np.concatenate([rows.numbers() for rows in parts]),
        np.concatenate([rows.tokens for rows in parts]),
        np.concatenate([rows.labels for rows in parts]) if labelled else None,
    )


def _with_labels(block: Block) -> bytes:
    """The same lines with a label of 0 in front."""
    return b"0\t" + block.text[:-1].replace(b"\n", b"\n0\t") + b"\n"
