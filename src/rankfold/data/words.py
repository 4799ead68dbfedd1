"""From texts to numbers: words, a vocabulary, sequences of one length, and n-grams.

A text is lowercased, its ``<br />`` become spaces, and its tokens are the matches of ``TOKEN``: runs of
letters and digits, with what follows an apostrophe (``don't`` is one word), and every ! and ?.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[!?]")
PADDING, UNKNOWN = 0, 1  # ids of no word, and of a word that is not in the vocabulary
_FIRST_WORD = 2
End = Literal["first", "last"]

# Odd multipliers; see ``_joined``
_MIXERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


def tokenize(text: str) -> list[str]:
    """The tokens of a text.

    >>> tokenize("Don't!<br /><br />It's 1 of the WORST_ever...")
    ["don't", '!', "it's", '1', 'of', 'the', 'worst', 'ever']
    """
    return TOKEN.findall(text.replace("<br />", " ").lower())


@dataclass(frozen=True)
class Corpus:
    """Texts as numbers of their words.

    Attributes:
        words: every word that occurs, in order of first occurrence.
        tokens: numbers into ``words`` of all texts one after the other, (T,), int32.
        starts: where each text starts, and the end of the last, (N + 1,), int64.
    """

    words: tuple[str, ...]
    tokens: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Corpus:
        """Tokenise texts.

        >>> Corpus.of(["a b a", "", "b!"]).tokens
        array([0, 1, 0, 1, 2], dtype=int32)
        """
        numbers: dict[str, int] = {}
        parts = [[numbers.setdefault(word, len(numbers)) for word in tokenize(text)] for text in texts]
        starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        tokens = np.fromiter((n for part in parts for n in part), np.int32, count=int(starts[-1]))
        return cls(tuple(numbers), tokens, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def sizes(self, length: int) -> NDArray[np.int64]:
        """How many tokens of every text remain if it is cut to ``length``, (N,)."""
        return np.minimum(np.diff(self.starts), length)

    def padded(self, values: NDArray[np.int32], length: int, end: End, n: int = 1) -> NDArray[np.int32]:
        """One value for every run of ``n`` tokens in the ``first`` or ``last`` ``length`` tokens of every text.

        Args:
            values: those of the runs that start at each token, (T − n + 1,) or more.

        Returns:
            Values (N, length − n + 1), each text's to the left and ``PADDING`` behind.
        """
        sizes = self.sizes(length)
        begins = self.starts[:-1] if end == "first" else self.starts[1:] - sizes
        position = np.arange(length - n + 1)
        inside = position < (sizes - n + 1)[:, None]  # (N, length − n + 1)
        result = np.full(inside.shape, PADDING, dtype=np.int32)
        result[inside] = values[(begins[:, None] + position)[inside]]
        return result


def vocabulary(corpus: Corpus, size: int) -> dict[str, int]:
    """Ids of the ``size − 2`` most frequent words of a corpus; 0 and 1 are padding and unknown.

    Equally frequent words are taken in alphabetical order.

    >>> vocabulary(Corpus.of(["b b a c", "c"]), size=4)
    {'b': 2, 'c': 3}
    """
    if size <= _FIRST_WORD:
        raise ValueError(f"a vocabulary must have more than {_FIRST_WORD} entries, got size {size}")
    counts = np.bincount(corpus.tokens, minlength=len(corpus.words)).tolist()
    ranked = sorted(zip(corpus.words, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return {word: n for n, (word, _) in enumerate(ranked[: size - _FIRST_WORD], _FIRST_WORD)}


def sequences(corpus: Corpus, ids: dict[str, int], length: int, end: End) -> NDArray[np.int32]:
    """The ids of the words of every text, (N, length), padded behind.

    >>> sequences(Corpus.of(["a b c", "c"]), {"b": 2, "c": 3}, 2, "last")
    array([[2, 3],
           [3, 0]], dtype=int32)
    """
    return corpus.padded(_ids_of(corpus, ids)[corpus.tokens], length, end)


def _ids_of(corpus: Corpus, ids: dict[str, int]) -> NDArray[np.int32]:
    """The ids of the words of a corpus, (W,)."""
    return np.fromiter((ids.get(word, UNKNOWN) for word in corpus.words), np.int32, count=len(corpus.words))


# N-grams ------------------------------------------------------------------------------------------------


def ngram_rows(
    corpus: Corpus, ids: dict[str, int], num_rows: int, *, width: int, longest: int, length: int, end: End
) -> NDArray[np.int32]:
    """Rows of a table for the words, pairs and longer runs of the ``first`` or ``last`` words of every text.

    The table has lines of ``width`` rows, one after the other. Words come first, each in the row of its id, and runs of
    2, …, ``longest`` words share the other lines equally. A run stands in the column of its last word and in the line
    of what comes before it. A table that is folded into lines and columns then knows what runs have in common: those
    that end alike share an index of one mode, and those that begin alike share one of the other.

    A last word has column ``id mod width``, and a single word before it line ``id mod lines``: no two of the most
    frequent share one. Several words before the last are hashed.

    Returns:
        Rows (N, Σₙ (length − n + 1)): those of words, then of pairs, and so on, each padded with 0.
    """
    first = -(-(_FIRST_WORD + len(ids)) // width)  # the first line that is no word's
    lines = (num_rows // width - first) // max(1, longest - 1)
    if first * width > num_rows or (longest > 1 and lines < 1):
        raise ValueError(
            f"num_rows must have room for whole lines of {width}, {first} of words and one for runs of each length "
            f"from 2 to {longest}, got {num_rows}"
        )
    numbers = _ids_of(corpus, ids)[corpus.tokens]  # (T,)
    parts = [corpus.padded(numbers, length, end)]
    for n in range(2, longest + 1):
        last = numbers[n - 1 :]  # (T − n + 1,)
        before = _joined([numbers[k : k + len(last)].astype(np.uint64) for k in range(n - 1)])
        line = first + (n - 2) * lines + (before % np.uint64(lines)).astype(np.int32)
        parts.append(corpus.padded(line * np.int32(width) + last % width, length, end, n))
    return np.concatenate(parts, axis=1)


def _joined(numbers: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """One number for those of the first word, the second, and so on, (T,) each: a single one as it is, several hashed.

    Modulo 2⁶⁴, ``h ← 0``, then ``h ← (h + x) · m₁`` and ``h ← h ⊕ (h ≫ 32)`` for every word, then ``h · m₂ ≫ 20``.
    """
    if len(numbers) == 1:
        return numbers[0]
    first, second = (np.uint64(mixer) for mixer in _MIXERS)
    joined = np.zeros_like(numbers[0])
    for number in numbers:
        joined = (joined + number) * first
        joined ^= joined >> np.uint64(32)
    return joined * second >> np.uint64(20)
