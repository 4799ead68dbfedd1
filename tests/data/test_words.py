"""Words, vocabularies, padded sequences and n-grams, against plain Python."""

import math

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


def plain_line(words):
    """The number of the words before the last, one at a time: a single one's own, the hash of several."""
    if len(words) == 1:
        return words[0]
    joined = 0
    for word in words:
        joined = ((joined + word) * 0x9E3779B97F4A7C15) & MASK
        joined ^= joined >> 32
    return ((joined * 0xBF58476D1CE4E5B9) & MASK) >> 20


def plain_rows(text, ids, num_rows, width, longest, length, end):
    words = tokenize(text)
    kept = [ids.get(word, UNKNOWN) for word in (words[:length] if end == "first" else words[-length:])]
    first = math.ceil((2 + len(ids)) / width)
    lines = (num_rows // width - first) // (longest - 1)
    rows = plain_sequence(text, ids, length, end)
    for n in range(2, longest + 1):
        runs = [kept[k : k + n] for k in range(len(kept) - n + 1)]
        at = [(first + (n - 2) * lines + plain_line(run[:-1]) % lines, run[-1] % width) for run in runs]
        rows += [line * width + column for line, column in at] + [PADDING] * (length - n + 1 - len(runs))
    return rows


@settings(max_examples=40)
@given(TEXTS, st.integers(3, 6), st.sampled_from(["first", "last"]), st.sampled_from([(50, 3), (10_131_227, 3183)]))
def test_ngram_rows_equal_their_plain_twin(texts, length, end, table):
    ids, (num_rows, width) = {"a": 2, "bb": 3, "c": 4}, table
    found = ngram_rows(Corpus.of(texts), ids, num_rows, width=width, longest=3, length=length, end=end)
    assert found.shape == (len(texts), 3 * length - 3)
    assert found.dtype == np.int32
    assert found.tolist() == [plain_rows(text, ids, num_rows, width, 3, length, end) for text in texts]


def test_runs_stay_in_the_lines_of_their_length():
    text = " ".join(f"w{n}" for n in range(4000))
    corpus = Corpus.of([text])
    ids = {word: n for n, word in enumerate(corpus.words, 2)}
    rows = ngram_rows(corpus, ids, 10_000, width=100, longest=3, length=4000, end="first")[0]
    pairs, triples = rows[4000:7999] // 100, rows[7999:] // 100  # 4,002 words fill 41 lines, and 59 are left
    assert set(pairs) == set(range(41, 70))
    assert set(triples) == set(range(70, 99))


def test_runs_that_end_alike_share_a_column_and_those_that_begin_alike_a_line():
    corpus = Corpus.of(["very good", "very bad", "not good", "not very good", "not very bad"])
    ids = {word: n for n, word in enumerate(corpus.words, 2)}
    rows = ngram_rows(corpus, ids, 10_131_227, width=3183, longest=3, length=3, end="first")
    lines, columns = rows[:, 3:] // 3183, rows[:, 3:] % 3183
    very_good, very_bad, not_good = range(3)
    assert lines[very_good, 0] == lines[very_bad, 0] != lines[not_good, 0]
    assert columns[very_good, 0] == columns[not_good, 0] == ids["good"] != columns[very_bad, 0]
    assert lines[3, 2] == lines[4, 2] > lines[3, :2].max()  # those of triples, and of pairs
    assert columns[3, 2] == ids["good"]


def test_a_table_without_lines_for_runs_is_refused():
    with pytest.raises(ValueError, match="lines of 10, 1 of words and one for runs of each length from 2 to 3, got 29"):
        ngram_rows(Corpus.of(["a"]), {"a": 2}, 29, width=10, longest=3, length=3, end="first")


def test_words_alone_need_no_lines_for_runs():
    rows = ngram_rows(Corpus.of(["b a"]), {"a": 2, "b": 3}, 4, width=2, longest=1, length=2, end="first")
    assert rows.tolist() == [[3, 2]]
