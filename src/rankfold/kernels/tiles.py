"""How the rows of a chain of tables are cut into tiles, so that all matrices of a tile fit into registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rankfold.compiled import constant
from rankfold.kernels.launch import padded

# The largest matrix of a tile should have this many entries, in forward and in backward, and may never have
# more than the last: 128 threads hold them in registers.
_FORWARD_ENTRIES, _BACKWARD_ENTRIES, _MAX_ENTRIES = 8192, 4096, 16384
_MAX_ROWS, _MAX_OUTPUTS = 64, 128
# Without a right table there is room to add up gradients of equal rows, but not of so many rows: for 65,536 rows of
# TT, forward and backward take 0.26 ms on an H200 with 32 rows, 0.31 with 64.
_MAX_ROWS_WITHOUT_RIGHT = 32
_WARPS = 4
# Rows are taken one by one if a batch has so few, and matrices of the middle table so few entries. In a graph on an
# H200, forward and backward in ms without sorting and with it, for 2,048, 4,096 and 8,192 rows: TTM 0.048, 0.062;
# 0.074, 0.075; 0.13, 0.10. TT 0.070, 0.093; 0.083, 0.108; 0.11, 0.12. Tucker, with 8,000 entries, 0.35, 0.18; 0.62,
# 0.32; 1.17, 0.29.
MOST_SINGLE_ROWS, _MOST_ENTRIES_OF_SINGLE_ROWS = 4096, 2048


class Tiles(NamedTuple):
    """How a launch is cut: rows and middle outputs of a tile, and warps per program."""

    rows: int
    outputs: int
    warps: int


class Sizes(NamedTuple):
    """JL, R1, JM, R2, JR of a chain ``(JL, R1) · (R1, JM, R2) · (R2, JR)``; without a right table R2 = JR = 1."""

    left: int
    before: int
    outputs: int
    after: int
    right: int

    @classmethod
    def of(cls, shapes: Sequence[Sequence[int]]) -> Sizes:
        (_, left, before), (_, _, outputs, after), *rest = shapes
        return cls(left, before, outputs, after, rest[0][2] if rest else 1)

    @property
    def entries(self) -> int:
        """How many numbers a row has."""
        return self.left * self.outputs * self.right

    def padded(self) -> Sizes:
        """Powers of two, at least 16 where a matrix product sums over them."""
        after = 1 if self.after == self.right == 1 else padded(self.after, 16)
        right = 1 if self.right == 1 else padded(self.right, 16)
        return Sizes(padded(self.left), padded(self.before, 16), padded(self.outputs), after, right)

    def tiles(self, room: int, backward: bool = False, most_rows: int = _MAX_ROWS) -> Tiles | None:
        """The largest tile all of whose matrices have at most ``room`` entries."""
        left, before, outputs, after, right = self.padded()
        least = max(1, 16 // after, 16 // left if right > 1 else 1)
        # products of single rows go through shared memory, in two halves of their digits, and so do their gradients
        copies = 1 if right == 1 else 4 if backward else 2
        choices = [
            (rows * piece, rows, piece)
            for rows in _powers(max(1, 16 // left), most_rows)
            for piece in _powers(least, max(least, min(outputs, _MAX_OUTPUTS)))
            if max(copies * rows * left * piece * max(after, right), before * piece * after) <= room
            and rows * max(left * before, after * right * min(2, right)) <= room  # matrices have a gradient beside them
        ]
        warps = _WARPS // 2 if copies == 4 else _WARPS
        return Tiles(*max(choices)[1:], warps) if choices else None


def _powers(first: int, last: int) -> list[int]:
    return [1 << n for n in range(first.bit_length() - 1, last.bit_length())]


def fits(sizes: Sizes) -> bool:
    """Whether some tile of such a chain fits the registers."""
    return sizes.tiles(_MAX_ENTRIES) is not None


def takes_single_rows(sizes: Sizes, count: int) -> bool:
    """Whether a program of the kernel should take one row, so that rows need not be sorted.

    Every row then reads a matrix of the middle table, and adds a gradient to it.
    """
    return count <= MOST_SINGLE_ROWS and sizes.before * sizes.outputs * sizes.after <= _MOST_ENTRIES_OF_SINGLE_ROWS


def single_row_tiles(sizes: Sizes, backward: bool) -> Tiles:
    """The tiles of a launch whose programs take one row each."""
    tiles = _tiles_for(sizes, backward, max(1, 16 // sizes.padded().left))
    return tiles._replace(warps=1 if sizes.after == sizes.right == 1 else 2)


def tiles_for(sizes: Sizes, backward: bool, rows_per_group: int) -> Tiles:
    """The tiles of a launch. A tile has rows of one group, so it should not be much larger than a group is."""
    most = _MAX_ROWS_WITHOUT_RIGHT if backward and sizes.after == sizes.right == 1 else _MAX_ROWS
    return _tiles_for(sizes, backward, min(most, rows_per_group))


@constant
def _tiles_for(sizes: Sizes, backward: bool, most_rows: int) -> Tiles:
    room = _BACKWARD_ENTRIES if backward else _FORWARD_ENTRIES
    chosen = sizes.tiles(room, backward, most_rows) or sizes.tiles(_MAX_ENTRIES, most_rows=most_rows)
    if chosen is None:
        raise ValueError(f"no tile of a chain of sizes {tuple(sizes)} fits the registers; use plain torch")
    return chosen
