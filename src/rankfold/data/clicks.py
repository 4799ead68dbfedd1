"""Clicks from a file in the Criteo Kaggle format, as a whole in memory: 210 bytes a row.

The data set itself, with its days and its published sizes, is :mod:`rankfold.data.criteo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.criteo.files import Block, blocks
from rankfold.data.criteo.lines import NUM_CATEGORIES, NUM_NUMBERS, read_block
from rankfold.data.criteo.malformed import MOST_MALFORMED, Tally
from rankfold.data.errors import DamagedData, MissingData

# Tabs in a line with a label, and in one without.
LABELLED, UNLABELLED = NUM_NUMBERS + NUM_CATEGORIES, NUM_NUMBERS + NUM_CATEGORIES - 1
# Of malformed lines, those that are named.
_MOST_LINES, _MOST_FAULTS = 5, 3


@final
@dataclass(frozen=True)
class Clicks:
    """Rows of a file.

    Attributes:
        numbers: ``log(1 + x)`` of the integers, (N, 13), float32.
        tokens: of the categories, (N, 26), uint32.
        labels: 1 for a click, (N,), uint8; ``None`` if the lines have none.
        lines: where each row stands in the file, from 1, (N,), int64.
        left_out: how many lines are malformed, where, and why; ``None`` if none is.
    """

    path: Path
    numbers: NDArray[np.float32]
    tokens: NDArray[np.uint32]
    labels: NDArray[np.uint8] | None
    lines: NDArray[np.int64]
    left_out: str | None

    def __len__(self) -> int:
        return len(self.numbers)


def read_clicks(path: Path) -> Clicks:
    """All rows of a file, plain or packed; lines have 40 fields, or 39 if there are no labels.

    Empty lines are passed over, and a few malformed ones left out, as :func:`~rankfold.data.criteo.prepare` does.
    """
    if not path.is_file():
        raise MissingData(f"{path} is no file; give one in the Criteo format")
    parts, lines, malformed, labelled, tally = [], [], [], None, Tally(MOST_MALFORMED)
    for block in blocks(path):
        if labelled is None:
            labelled = _has_labels(block)
        rows, numbers, found = read_block(block.text, labelled=labelled)
        for line, why in found:
            tally.note(path, block.first_line + line, why)
        malformed += [block.first_line + line for line, _ in found]
        lines.append(block.first_line + numbers)
        parts.append(rows)
    if not any(map(len, parts)):
        if not malformed:
            raise MissingData(f"{path} is empty; expected lines of {LABELLED + 1} fields with tabs between them")
        raise DamagedData(f"{path} has no line in the Criteo format: {tally.examples[0]}; give such a file")
    return Clicks(
        path,
        np.concatenate([rows.numbers() for rows in parts]),
        np.concatenate([rows.tokens for rows in parts]),
        np.concatenate([rows.labels for rows in parts]) if labelled else None,
        np.concatenate(lines),
        _left_out(malformed, [example.removeprefix(f"{path}:") for example in tally.examples]),
    )


def _left_out(lines: Sequence[int], examples: Sequence[str]) -> str | None:
    """Which lines are left out, and the first with each fault.

    >>> _left_out([4, 9], ["4: it has 3 fields; 1 more of the kind"])
    'left out, as they are malformed: 2 lines, 4, 9 (line 4: it has 3 fields; 1 more of the kind)'
    """
    if not lines:
        return None
    numbers = ", ".join(map(str, lines[:_MOST_LINES])) + (", …" if len(lines) > _MOST_LINES else "")
    faults = "; ".join(f"line {example}" for example in examples[:_MOST_FAULTS])
    if len(lines) == 1:
        return f"left out, as it is malformed: line {numbers} ({faults})"
    return f"left out, as they are malformed: {len(lines)} lines, {numbers} ({faults})"


def _has_labels(block: Block) -> bool:
    """By the fields that most lines have, as any of them may be malformed."""
    tabs = [line.count(b"\t") for line in block.text.splitlines()]
    return tabs.count(UNLABELLED) <= tabs.count(LABELLED)
