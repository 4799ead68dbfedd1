"""What the first lines of a text file tell of it: how many tabs they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from rankfold.data.criteo.files import blocks


def first_lines(path: Path) -> list[bytes]:
    """Lines from the start of a file, plain or packed by gzip or xz, without those that are empty."""
    found = ([line for line in block.text.splitlines() if line.strip()] for block in blocks(path))
    return next((lines for lines in found if lines), [])


def usual_tabs(lines: Sequence[bytes]) -> int | None:
    """How many tabs more than half of the lines have, if so many are alike.

    >>> usual_tabs([b"a b", b"c d", b"e"]), usual_tabs([b"a", b"b" + bytes([9])])
    (0, None)
    """
    tabs, count = max(Counter(line.count(b"\t") for line in lines).items(), key=lambda found: found[1], default=(0, 0))
    return tabs if 2 * count > len(lines) else None


def are_labelled_texts(lines: Sequence[bytes], columns: Collection[str]) -> bool:
    """Whether lines are a label, a tab and a text, rather than a table of two columns with one of those names."""
    if usual_tabs(lines) != 1:
        return False
    cells = {cell.strip(' "\r') for cell in lines[0].decode("utf-8-sig", errors="replace").split("\t")}
    return cells.isdisjoint(columns)
