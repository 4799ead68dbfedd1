"""Rows of a table for words, pairs and longer runs of words: frequent runs have columns of their own.

The table has ``lines`` of ``width`` rows, one after the other. The most frequent runs of the training texts, single
words among them, fill the first line in the order of their frequency, so that each has a column. Every other run stands
in the column of the longest frequent run that it ends with, and in the line of what comes before that: where *very
good* is frequent, *was very good* has its column and the line of *was*. A table that is folded into lines and columns
then knows what runs have in common: those that end alike share an index of one mode, and those that begin alike share
one of the other.

A single word before it has line ``1 + id mod (lines − 1)``, so that no two of the most frequent share one. Several are
hashed. Column 1 is that of endings that are not frequent, and row 1 that of all single words without a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.words import PADDING, UNKNOWN, Corpus, End, ids_of, vocabulary

_FIRST_COLUMN = 2
# Odd multipliers; see ``_hashed``
_MIXERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)

Numbers = NDArray[np.uint64]


@final
@dataclass(frozen=True)
class Ngrams:
    """Numbers the runs of 1, …, ``longest`` words of texts that are cut to ``length`` words at one ``end``.

    Attributes:
        ids: of all words of the training texts, by frequency.
        runs: the hashes of the frequent runs, sorted, (F,).
        columns: theirs, (F,), int32.
        width: how many columns a line has.
        lines: how many lines there are.
    """

    ids: dict[str, int]
    runs: Numbers
    columns: NDArray[np.int32]
    width: int
    lines: int
    longest: int
    length: int
    end: End

    @classmethod
    def of(cls, corpus: Corpus, num_rows: int, *, width: int, longest: int, length: int, end: End) -> Self:
        """Learn from the training texts which runs are frequent.

        >>> Ngrams.of(Corpus.of(["a b", "b"]), 12, width=4, longest=2, length=2, end="last").rows(Corpus.of(["a b"]))
        array([[ 3,  2, 10]], dtype=int32)
        """
        lines = num_rows // width
        if width <= _FIRST_COLUMN or lines < min(2, longest):
            raise ValueError(
                f"num_rows must have room for a line of more than {_FIRST_COLUMN} columns and another for runs that "
                f"are not frequent, got {num_rows} rows in lines of {width}"
            )
        ids = vocabulary(corpus, _FIRST_COLUMN + max(1, len(corpus.words)))
        words = _words(corpus, ids)
        found = [
            np.unique(_hashed(words, n)[corpus.places(length, end, n)], return_counts=True)
            for n in range(1, longest + 1)
        ]
        runs, counts = (np.concatenate(part) for part in zip(*found, strict=True))
        # equally frequent ones in the order of their lengths, then hashes
        frequent = np.argsort(-counts, kind="stable")[: width - _FIRST_COLUMN]
        order = runs[frequent].argsort()
        columns = np.arange(_FIRST_COLUMN, _FIRST_COLUMN + len(frequent), dtype=np.int32)
        return cls(ids, runs[frequent][order], columns[order], width, lines, longest, length, end)

    def rows(self, corpus: Corpus) -> NDArray[np.int32]:
        """Rows (N, Σₙ (length − n + 1)): those of words, then of pairs, and so on, each padded with 0."""
        words = _words(corpus, self.ids)
        own = [self._own_columns(_hashed(words, n)) for n in range(1, self.longest + 1)]
        own[0] = np.where(own[0] == PADDING, UNKNOWN, own[0])
        parts = []
        for n in range(1, self.longest + 1):
            rows = np.where(own[n - 1] == PADDING, self._backed_off(words, own, n), own[n - 1])
            parts.append(corpus.padded(rows, self.length, self.end, n))
        return np.concatenate(parts, axis=1)

    def _own_columns(self, hashes: Numbers) -> NDArray[np.int32]:
        """The columns of runs, (T,); 0 for those that are not frequent."""
        if len(self.runs) == 0:
            return np.full(len(hashes), PADDING, dtype=np.int32)
        place = np.minimum(self.runs.searchsorted(hashes), len(self.runs) - 1)
        return np.where(self.runs[place] == hashes, self.columns[place], PADDING).astype(np.int32)

    def _backed_off(self, words: Numbers, own: list[NDArray[np.int32]], n: int) -> NDArray[np.int32]:
        """Rows of the runs of ``n`` words, (T − n + 1,), by their longest frequent endings."""
        rows = np.full(max(0, len(words) - n + 1), PADDING, dtype=np.int32)
        for k in range(1, n):  # longer endings come later
            column = own[k - 1][n - k :]
            before = _hashed(words, n - k)[: len(rows)] % np.uint64(self.lines - 1)
            rows = np.where(column == PADDING, rows, (1 + before.astype(np.int32)) * np.int32(self.width) + column)
        return rows


def _words(corpus: Corpus, ids: dict[str, int]) -> Numbers:
    """The ids of all tokens of a corpus, (T,)."""
    return ids_of(corpus, ids)[corpus.tokens].astype(np.uint64)


def _hashed(words: Numbers, n: int) -> Numbers:
    """One number for every run of ``n`` words, (T − n + 1,): a single word's id, and the hash of several ids.

    Modulo 2⁶⁴, ``h ← 0``, then ``h ← (h + x) · m₁`` and ``h ← h ⊕ (h ≫ 32)`` for every word, then ``h · m₂`` and once
    more ``h ⊕ (h ≫ 32)``. Some million runs out of 2⁶⁴ do not meet.
    """
    if n == 1:
        return words
    first, second = (np.uint64(mixer) for mixer in _MIXERS)
    hashes = np.zeros(max(0, len(words) - n + 1), dtype=np.uint64)
    for k in range(n):
        hashes = (hashes + words[k : k + len(hashes)]) * first
        hashes ^= hashes >> np.uint64(32)
    hashes *= second
    return hashes ^ (hashes >> np.uint64(32))
