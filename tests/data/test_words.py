"""Words, vocabularies, padded sequences and hashed n-grams, against plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.data.words import PADDING, UNKNOWN, Corpus, ngram_rows, sequences, tokenize, vocabulary

TEXTS = st.lists(st.text(alphabet="abcd !'<é", max_size=30), max_size=6)
MASK = 2**64 - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("<br /><br />", []),
        ("A<br />B", ["a", "b"]),
        ("Don't stop!! It's 10/10?", ["don't", "stop", "!", "!", "it's", "10", "10", "?"]),
        ("'quoted' -- rock'n'roll, snake_case", ["quoted", "rock'n", "roll", "snake", "case"]),
        ("Café ÉTÉ", ["café", "été"]),
    ],
)
def test_tokens(text, expected):
    assert tokenize(text) == expected


@settings(max_examples=30)
@given(TEXTS)
def test_a_corpus_holds_every_token_in_order(texts):
    corpus = Corpus.of(texts)
    assert len(corpus) == len(texts)
    for n, text in enumerate(texts):
        found = corpus.tokens[corpus.starts[n] : corpus.starts[n + 1]]
        assert [corpus.words[k] for k in found] == tokenize(text)


def test_a_vocabulary_takes_the_most_frequent_and_breaks_ties_by_the_alphabet():
    corpus = Corpus.of(["d c b a", "c c d"])
    assert vocabulary(corpus, 5) == {"c": 2, "d": 3, "a": 4}
    assert vocabulary(corpus, 100) == {"c": 2, "d": 3, "a": 4, "b": 5}
    with pytest.raises(ValueError, match="more than 2 entries, got size 2"):
        vocabulary(corpus, 2)


def plain_sequence(text, ids, length, end):
    words = tokenize(text)
    kept = words[:length] if end == "first" else words[-length:]
    return [ids.get(word, UNKNOWN) for word in kept] + [PADDING] * (length - len(kept))


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 6), st.sampled_from(["first", "last"]))
def test_sequences(texts, length, end):
    ids = {"a": 2, "bb": 3}
    corpus = Corpus.of(texts)
    found = sequences(corpus, ids, length, end)
    assert found.shape == (len(texts), length)
    assert found.dtype == np.int32
    assert found.tolist() == [plain_sequence(text, ids, length, end) for text in texts]
    assert corpus.sizes(length).tolist() == [min(length, len(tokenize(text))) for text in texts]


def plain_hash(words):
    """The hash of a run of words, one number at a time."""
    joined = 0
    for word in words:
        value = 0xCBF29CE484222325
        for byte in word.encode():
            value = ((value ^ byte) * 0x100000001B3) & MASK
        joined = ((joined + value) * 0x9E3779B97F4A7C15) & MASK
        joined ^= joined >> 32
    return ((joined * 0xBF58476D1CE4E5B9) & MASK) >> 20


def plain_rows(text, ids, num_rows, longest, length, end):
    words = tokenize(text)
    kept = words[:length] if end == "first" else words[-length:]
    start = 2 + len(ids)
    share = (num_rows - start) // (longest - 1)
    rows = plain_sequence(text, ids, length, end)
    for n in range(2, longest + 1):
        runs = [kept[k : k + n] for k in range(len(kept) - n + 1)]
        found = [start + (n - 2) * share + plain_hash(run) % share for run in runs]
        rows += found + [PADDING] * (length - n + 1 - len(found))
    return rows


@settings(max_examples=40)
@given(TEXTS, st.integers(3, 6), st.sampled_from(["first", "last"]), st.sampled_from([50, 10_131_227]))
def test_ngram_rows_equal_their_plain_twin(texts, length, end, num_rows):
    ids = {"a": 2, "bb": 3}
    found = ngram_rows(Corpus.of(texts), ids, num_rows, longest=3, length=length, end=end)
    assert found.shape == (len(texts), 3 * length - 3)
    assert found.tolist() == [plain_rows(text, ids, num_rows, 3, length, end) for text in texts]


def test_runs_spread_over_their_range_and_never_leave_it():
    words = [f"w{n}" for n in range(4000)]
    corpus = Corpus.of([" ".join(words)])
    rows = ngram_rows(corpus, {}, 10_002, longest=3, length=4000, end="first")[0]
    pairs, triples = rows[4000:7999], rows[7999:]
    for part, start in ((pairs, 2), (triples, 5002)):
        assert part.min() >= start
        assert part.max() < start + 5000
        # 4,000 balls into 5,000 urns leave e^(−0.8) of them empty: 2,754 ± 30 are hit
        assert abs(len(np.unique(part)) - 2754) < 150


def test_the_order_of_words_matters():
    rows = ngram_rows(Corpus.of(["a b", "b a"]), {}, 10_131_227, longest=2, length=2, end="first")
    assert rows[0, 2] != rows[1, 2]
