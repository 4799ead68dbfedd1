"""From a category's token to a row of its table: looked up in a vocabulary, or hashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.criteo.lines import NUM_CATEGORIES
from rankfold.shapes import is_positive_integer

# How many values each category takes in the whole Kaggle file, missing included.
KAGGLE_SIZES = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194),
    *(27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
# Tables from this size on count as large.
_LARGE = 1_000_000
_PENDING = 1 << 20  # tokens to collect before they are counted

Tokens = NDArray[np.uint32]


@final
@dataclass(frozen=True)
class Tables:
    """How categories become rows of tables.

    Args:
        sizes: rows of the 26 tables; if left out, as many as there are values, and one for rare ones.
        min_count: a value seen less often is rare. All rare values of a category share one row. Where values are
            hashed none is rare.
        hashing: ``"never"`` looks every value up in a vocabulary, where the most frequent one has row 0. ``"always"``
            hashes. ``"large"`` hashes into tables of at least 1,000,000 rows that the values would fill by less than
            half, so that a sample of the data uses the whole table, and looks up the others.

    >>> Tables(min_count=2).hashing
    'never'
    """

    sizes: tuple[int, ...] | None = None
    min_count: int = 1
    hashing: Literal["never", "large", "always"] = "never"

    def __post_init__(self) -> None:
        if self.hashing not in ("never", "large", "always"):
            raise ValueError(f"hashing must be 'never', 'large' or 'always', got {self.hashing!r}")
        if self.sizes is None and self.hashing != "never":
            raise ValueError(f"hashing={self.hashing!r} needs sizes to hash into, such as KAGGLE_SIZES")
        if self.sizes is not None and not (
            len(self.sizes) == NUM_CATEGORIES and all(map(is_positive_integer, self.sizes))
        ):
            raise ValueError(f"sizes must be {NUM_CATEGORIES} positive integers, got {self.sizes!r}")
        if not is_positive_integer(self.min_count):
            raise ValueError(f"min_count must be a positive integer, got {self.min_count!r}")
        if self.min_count > 1 and self.hashing == "always":
            raise ValueError(
                f"hashing='always' counts no values, so min_count={self.min_count} has no effect; leave one of them out"
            )
        object.__setattr__(self, "min_count", int(self.min_count))
        if self.sizes is not None:
            object.__setattr__(self, "sizes", tuple(map(int, self.sizes)))

    def encoder(self, column: int, counts: TokenCounts) -> Lookup | Hash:
        """What turns the tokens of a category, the number of its ``column`` counted from 0, into rows."""
        size = self.sizes[column] if self.sizes is not None else None
        if size is not None and self._hashes(size, counts):
            return Hash(size, column)
        return Lookup.of(counts, self.min_count, size)

    def _hashes(self, size: int, counts: TokenCounts) -> bool:
        if self.hashing == "large":
            return size >= _LARGE and 2 * len(counts.table()[0]) < size
        return self.hashing == "always"


@final
@dataclass(frozen=True)
class Hash:
    """Spreads tokens over ``size`` rows; the same token has unrelated rows in different columns."""

    size: int
    column: int

    def rows(self, tokens: Tokens) -> NDArray[np.int32]:
        x = tokens.astype(np.uint64) | np.uint64((self.column + 1) << 32)
        # the finalizer of splitmix64: every bit of the token changes half of the bits of the result
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) % np.uint64(self.size)).astype(np.int32)


@final
@dataclass(frozen=True)
class Lookup:
    """Rows by falling frequency; rare and unknown tokens share the last row.

    Attributes:
        tokens: all that have a row, ascending, (V,).
        places: their rows, (V,).
        size: rows of the table.
        shared: the row of all other tokens.
    """

    tokens: Tokens
    places: NDArray[np.int32]
    size: int
    shared: int

    @classmethod
    def of(cls, counts: TokenCounts, min_count: int = 1, size: int | None = None) -> Lookup:
        """The vocabulary of all tokens seen at least ``min_count`` times, cut to ``size`` rows."""
        tokens, times = counts.table()
        order = np.lexsort((tokens, -times))  # frequent ones first, and a tie has a rule
        known = int((times >= min_count).sum())
        if size is None:
            size = max(1, known + (known < len(tokens)))
        shared = min(known, size - 1)
        # the last row is a token's own only if there is room for all
        owners = np.sort(order if known == len(tokens) <= size else order[:shared])
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        return cls(tokens[owners], ranks[owners], size, shared)

    def rows(self, tokens: Tokens) -> NDArray[np.int32]:
        if len(self.tokens) == 0:
            return np.full(tokens.shape, self.shared, np.int32)
        position = np.minimum(np.searchsorted(self.tokens, tokens), len(self.tokens) - 1)
        return np.where(self.tokens[position] == tokens, self.places[position], np.int32(self.shared))


@final
class TokenCounts:
    """How often each token was seen; new ones are collected and counted many at a time.

    >>> counts = TokenCounts()
    >>> counts.add(np.array([7, 3, 7], np.uint32))
    >>> [column.tolist() for column in counts.table()]
    [[3, 7], [1, 2]]
    """

    def __init__(self) -> None:
        self._tokens = np.empty(0, np.uint32)
        self._times = np.empty(0, np.int64)
        self._pending: list[Tokens] = []
        self._num_pending = 0

    def add(self, tokens: Tokens) -> None:
        self._pending.append(tokens.copy())  # not a view that keeps a whole block alive
        self._num_pending += len(tokens)
        # counting sorts all that is known, so the more is known, the more is collected first
        if self._num_pending >= max(_PENDING, len(self._tokens)):
            self._count()

    def table(self) -> tuple[Tokens, NDArray[np.int64]]:
        """All tokens, ascending, and how often each was seen."""
        if self._num_pending:
            self._count()
        return self._tokens, self._times

    def _count(self) -> None:
        tokens, times = np.unique(np.concatenate(self._pending), return_counts=True)
        self._pending, self._num_pending = [], 0
        together, counts = np.concatenate([self._tokens, tokens]), np.concatenate([self._times, times])
        order = np.argsort(together, kind="stable")
        together = together[order]
        firsts = np.flatnonzero(np.concatenate([[True], together[1:] != together[:-1]]))
        self._tokens, self._times = together[firsts], np.add.reduceat(counts[order], firsts)


def encode(encoders: Sequence[Lookup | Hash], tokens: Tokens) -> NDArray[np.int32]:
    """Rows (N, 26) of tokens (N, 26)."""
    return np.stack([encoder.rows(tokens[:, n]) for n, encoder in enumerate(encoders)], axis=1)
