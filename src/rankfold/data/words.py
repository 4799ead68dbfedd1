"""From texts to numbers: words, a vocabulary, and sequences of one length.

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
        position = np.arange(length - n + 1)
        inside = position < (self.sizes(length) - n + 1)[:, None]  # (N, length − n + 1)
        result = np.full(inside.shape, PADDING, dtype=np.int32)
        result[inside] = values[self.places(length, end, n)]
        return result

    def places(self, length: int, end: End, n: int = 1) -> NDArray[np.int64]:
        """Where the runs of ``n`` tokens start that lie in the ``first`` or ``last`` ``length`` tokens of a text."""
        sizes = self.sizes(length)
        begins = self.starts[:-1] if end == "first" else self.starts[1:] - sizes
        counts = np.maximum(sizes - n + 1, 0)
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)  # 0, 1, 2, … of every text
        places: NDArray[np.int64] = np.repeat(begins, counts) + within
        return places


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
    return corpus.padded(ids_of(corpus, ids)[corpus.tokens], length, end)


def ids_of(corpus: Corpus, ids: dict[str, int]) -> NDArray[np.int32]:
    """The ids of the words of a corpus, (W,)."""
    return np.fromiter((ids.get(word, UNKNOWN) for word in corpus.words), np.int32, count=len(corpus.words))
