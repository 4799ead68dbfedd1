"""From texts to numbers: words, a vocabulary, sequences of one length, and hashed n-grams.

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

# FNV-1a of 64 bits; see ``word_hash``
_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_ALL_BITS = 0xFFFFFFFFFFFFFFFF
# Odd multipliers; see ``ngram_hash``
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
    of_words = np.fromiter((ids.get(word, UNKNOWN) for word in corpus.words), np.int32, count=len(corpus.words))
    return corpus.padded(of_words[corpus.tokens], length, end)


# N-grams ------------------------------------------------------------------------------------------------


def word_hash(word: str) -> int:
    """FNV-1a of the word's UTF-8 bytes: ``h ← (h ⊕ byte) · prime`` modulo 2⁶⁴.

    >>> hex(word_hash("a"))
    '0xaf63dc4c8601ec8c'
    """
    value = _FNV_OFFSET
    for byte in word.encode("utf-8"):
        value = ((value ^ byte) * _FNV_PRIME) & _ALL_BITS
    return value


def ngram_hash(hashes: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """The hash of runs of words, given that of the first word, the second, and so on, (T,) each.

    Modulo 2⁶⁴, ``h ← 0``, then ``h ← (h + x) · m₁`` and ``h ← h ⊕ (h ≫ 32)`` for every word, then ``h · m₂ ≫ 20``.
    """
    first, second = (np.uint64(mixer) for mixer in _MIXERS)
    joined = np.zeros_like(hashes[0])
    for word in hashes:
        joined = (joined + word) * first
        joined ^= joined >> np.uint64(32)
    return joined * second >> np.uint64(20)


def ngram_rows(
    corpus: Corpus, ids: dict[str, int], num_rows: int, *, longest: int, length: int, end: End
) -> NDArray[np.int32]:
    """Rows of a table for the words, pairs and longer runs of the ``first`` or ``last`` words of every text.

    As in fastText, words have their own rows and runs are hashed: the first ``len(ids) + 2`` rows are the
    vocabulary's, and runs of 2, …, ``longest`` words share the rest equally, each in a range of its own. Rows
    of frequent words then lie together, and a folded table can tell single words from runs by its first mode.

    Returns:
        Rows (N, Σₙ (length − n + 1)): those of words, then of pairs, and so on, each padded with 0.
    """
    parts = [sequences(corpus, ids, length, end)]
    of_words = np.fromiter((word_hash(word) for word in corpus.words), np.uint64, count=len(corpus.words))
    hashes = of_words[corpus.tokens]  # (T,)
    start = _FIRST_WORD + len(ids)
    share = (num_rows - start) // max(1, longest - 1)
    for n in range(2, longest + 1):
        runs = ngram_hash([hashes[k : max(0, len(hashes) - n + 1) + k] for k in range(n)])  # (T − n + 1,)
        rows = (runs % np.uint64(share)).astype(np.int32) + np.int32(start + (n - 2) * share)
        parts.append(corpus.padded(rows, length, end, n))
    return np.concatenate(parts, axis=1)
