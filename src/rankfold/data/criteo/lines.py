"""Lines of the Criteo Kaggle format.

A line has 40 fields with a tab between each two: the label 0 or 1, 13 integers, 26 categories of 8 hexadecimal
digits. An integer or a category may be missing; its field is then empty. Lines without any character are no rows.

:func:`read_line` defines the format, one line at a time. :func:`read_block` does the same for a whole block of
lines at once, about a hundred times faster, and asks :func:`read_line` about every line that is not plain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

NUM_NUMBERS, NUM_CATEGORIES = 13, 26
_NUM_FIELDS = 1 + NUM_NUMBERS + NUM_CATEGORIES
_FIELDS = f"{NUM_NUMBERS} integers and {NUM_CATEGORIES} categories"
MISSING = 0  # the token of a missing category; DLRM reads an empty field as 0, too
_INTEGER = re.compile(rb"-?[0-9]{1,10}")
_CATEGORY = re.compile(rb"[0-9a-fA-F]{8}")
_TAB, _NEWLINE, _RETURN, _MINUS = b"\t\n\r-"
_LONGEST_SHOWN = 20

Words = NDArray[np.uint64]  # eight characters each, the first one in the lowest byte


@final
@dataclass(frozen=True)
class Rows:
    """Rows of the data set: labels (N,), integers (N, 13) with 0 for missing ones, and tokens (N, 26)."""

    labels: NDArray[np.uint8]
    integers: NDArray[np.int64]
    tokens: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.labels)

    def numbers(self) -> NDArray[np.float32]:
        """``log(1 + x)`` of the integers, (N, 13); negative and missing ones count as 0, as in DLRM."""
        return np.log1p(np.maximum(self.integers, 0).astype(np.float32))


class MalformedLine(ValueError):
    """A line that is not of the format, and why."""


def read_line(line: bytes, *, labelled: bool = True) -> tuple[int, list[int], list[int]]:
    """Label, integers and tokens of one line without its end. A label that was put in front of it is not counted.

    >>> read_line(b"1\\t5\\t" + b"\\t" * 12 + b"0000000f" + b"\\t" * 25)[1][:2]
    [5, 0]
    """
    fields = line.split(b"\t")
    if len(fields) != _NUM_FIELDS:
        count, expected = len(fields) - (not labelled), _NUM_FIELDS - (not labelled)
        found = "1 field" if count == 1 else f"{count} fields"
        label = "a label, " if labelled else ""
        raise MalformedLine(f"it has {found}, expected {expected} with tabs between them: {label}{_FIELDS}")
    if fields[0] not in (b"0", b"1"):
        raise MalformedLine(f"its label is {_shown(fields[0])}, expected 0 or 1")
    integers, categories = fields[1 : 1 + NUM_NUMBERS], fields[1 + NUM_NUMBERS :]
    for number, field in enumerate(integers, start=1):
        if field and not _INTEGER.fullmatch(field):
            raise MalformedLine(f"its integer {number} is {_shown(field)}, expected up to 10 digits or nothing")
    for number, field in enumerate(categories, start=1):
        if field and not _CATEGORY.fullmatch(field):
            raise MalformedLine(f"its category {number} is {_shown(field)}, expected 8 hexadecimal digits or nothing")
    return int(fields[0]), [int(f or b"0") for f in integers], [int(f, 16) if f else MISSING for f in categories]


def read_block(block: bytes, *, labelled: bool = True) -> tuple[Rows, NDArray[np.int64], list[tuple[int, str]]]:
    """The rows of a block of whole lines, the numbers of their lines in it, (N,), and of malformed ones, and why.

    Numbers are from 0; empty lines are passed over. Lines without labels have one of 0.
    """
    empty = b"" if labelled else b"0\t"
    if not labelled:
        block = b"0\t" + block[:-1].replace(b"\n", b"\n0\t") + b"\n"
    text = np.frombuffer(block, np.uint8)
    line_starts, line_ends = _lines(text)
    starts, ends, complete = _fields(text, line_starts, line_ends)
    rows, plain = _read_plain(block, text, starts, ends)
    complete[complete] = plain
    order, exact, malformed = [np.flatnonzero(complete)], [rows if plain.all() else _select(rows, plain)], []
    for number in np.flatnonzero(~complete):
        line = block[line_starts[number] : line_ends[number]]
        if line == empty:
            continue
        try:
            exact.append(_single(*read_line(line, labelled=labelled)))
            order.append(np.array([number]))
        except MalformedLine as error:
            malformed.append((int(number), str(error)))
    lines = np.concatenate(order)
    return _in_order(exact, lines), np.sort(lines), malformed


# Where lines and fields are ---------------------------------------------------------------------------


def _lines(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where every line starts and ends; ``\\r\\n`` ends a line as well as ``\\n`` does."""
    newlines = np.flatnonzero(text == _NEWLINE)
    starts = np.concatenate([[0], newlines[:-1] + 1]) if len(newlines) else newlines
    returned = (newlines > starts) & (text[np.maximum(newlines - 1, 0)] == _RETURN)
    return starts, newlines - returned


def _fields(
    text: NDArray[np.uint8], line_starts: NDArray[np.int64], line_ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Starts and ends (G, 40) of the fields of the lines that have 40, and which lines (N,) those are."""
    tabs = np.flatnonzero(text == _TAB)
    first = np.searchsorted(tabs, line_starts)
    complete = np.searchsorted(tabs, line_ends) - first == _NUM_FIELDS - 1
    inner = tabs[first[complete, None] + np.arange(_NUM_FIELDS - 1)]  # (G, 39)
    starts = np.concatenate([line_starts[complete, None], inner + 1], axis=1)
    ends = np.concatenate([inner, line_ends[complete, None]], axis=1)
    return starts, ends, complete


# Eight characters at a time ---------------------------------------------------------------------------


def _read_plain(
    block: bytes, text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[Rows, NDArray[np.bool_]]:
    """What the fields (G, 40) hold, and which lines (G,) are right and have integers of at most 8 digits."""
    lengths = ends - starts
    # every position as the start of a word; eight characters in front, so that words may end at the first field
    words = np.ndarray((len(block) + 1,), "<u8", b"0" * 8 + block, strides=(1,))
    number, category = slice(1, 1 + NUM_NUMBERS), slice(1 + NUM_NUMBERS, None)
    labels = text[starts[:, 0]] - ord("0")
    integers, plain = _integers(words[ends[:, number]], lengths[:, number], text[starts[:, number]] == _MINUS)
    is_long = lengths[:, category] == 8
    tokens, right = _tokens(words[np.where(is_long, starts[:, category] + 8, 0)])
    right &= is_long
    right |= lengths[:, category] == 0
    good = plain.all(1) & right.all(1) & (lengths[:, 0] == 1) & (labels <= 1)
    return Rows(labels, integers, np.where(is_long, tokens, np.uint32(MISSING))), good


def _integers(
    words: Words, lengths: NDArray[np.int64], negative: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Integers that end where ``words`` end, and which of them are at most 8 digits and nothing else."""
    negative = negative & (lengths > 1)
    count = lengths - negative
    # all but the last `count` characters become '0'
    kept = ~np.uint64(0) << (8 * (8 - np.clip(count, 1, 8))).astype(np.uint64)
    kept[count == 0] = 0
    digits = (words ^ np.uint64(0x3030303030303030)) & kept
    # a byte above 9 reaches its highest bit, by itself or after adding 118
    high = (digits | (digits + np.uint64(0x7676767676767676))) & np.uint64(0x8080808080808080)
    pairs = digits * np.uint64(10) + (digits >> np.uint64(8))  # two digits in every other byte
    even, odd = pairs & np.uint64(0x000000FF000000FF), (pairs >> np.uint64(16)) & np.uint64(0x000000FF000000FF)
    value = (even * np.uint64(0x000F424000000064) + odd * np.uint64(0x0000271000000001)) >> np.uint64(32)
    return np.where(negative, -1, 1) * value.astype(np.int64), (high == 0) & (count <= 8)


def _tokens(words: Words) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """The values of words of hexadecimal digits, and which are nothing else."""
    ones = np.uint64(0x0101010101010101)
    letter = (words >> np.uint64(6)) & ones
    lowered = words | (letter << np.uint64(5))
    nibbles = (words & (ones * np.uint64(0x0F))) + np.uint64(9) * letter
    above_nine = ((nibbles + ones * np.uint64(6)) >> np.uint64(4)) & ones
    spelled = nibbles + ones * np.uint64(0x30) + np.uint64(0x27) * above_nine  # written again: '0' + n, or 'a' + n − 10
    packed = nibbles
    for bits, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        packed = ((packed << np.uint64(bits)) | (packed >> np.uint64(2 * bits))) & np.uint64(mask)
    return packed.astype(np.uint32), (spelled == lowered) & (nibbles & (ones * np.uint64(0xF0)) == 0)


# Putting rows together --------------------------------------------------------------------------------


def _select(rows: Rows, which: NDArray[Any]) -> Rows:
    return Rows(rows.labels[which], rows.integers[which], rows.tokens[which])


def _single(label: int, integers: list[int], tokens: list[int]) -> Rows:
    return Rows(np.array([label], np.uint8), np.array([integers], np.int64), np.array([tokens], np.uint32))


def _in_order(parts: list[Rows], lines: NDArray[np.int64]) -> Rows:
    """All parts as one, in the order of their lines."""
    if len(parts) == 1:
        return parts[0]
    labels, integers, tokens = ([getattr(part, name) for part in parts] for name in ("labels", "integers", "tokens"))
    rows = Rows(np.concatenate(labels), np.concatenate(integers), np.concatenate(tokens))
    return _select(rows, np.argsort(lines, kind="stable"))


def _shown(field: bytes) -> str:
    text = field.decode("utf-8", errors="backslashreplace")
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…")
