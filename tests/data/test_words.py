"""Words, vocabularies and padded sequences, against plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.data.words import PADDING, UNKNOWN, Corpus, sequences, tokenize, vocabulary

TEXTS = st.lists(st.text(alphabet="abcd !'<é", max_size=30), max_size=6)


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
