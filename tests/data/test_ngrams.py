"""Rows of n-grams, against a plain twin that knows runs by their words and hashes nothing but beginnings."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.data.ngrams import Ngrams
from rankfold.data.words import PADDING, UNKNOWN, Corpus, tokenize

TEXTS = st.lists(st.text(alphabet="ab c", max_size=20), min_size=1, max_size=5)
MASK = 2**64 - 1


def kept(text, length, end):
    words = tokenize(text)
    return words[:length] if end == "first" else words[-length:]


def runs_of(words, n):
    return [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]


def plain_line(words, ids, lines):
    """The line of the words before an ending: a single one's id, or the hash of several."""
    numbers = [ids.get(word, UNKNOWN) for word in words]
    if len(numbers) == 1:
        return 1 + numbers[0] % (lines - 1)
    joined = 0
    for number in numbers:
        joined = ((joined + number) * 0x9E3779B97F4A7C15) & MASK
        joined ^= joined >> 32
    joined = (joined * 0xBF58476D1CE4E5B9) & MASK
    return 1 + (joined ^ joined >> 32) % (lines - 1)


def plain_row(run, columns, ids, width, lines):
    if run in columns:
        return columns[run]
    for k in range(1, len(run)):
        if run[k:] in columns:
            return plain_line(run[:k], ids, lines) * width + columns[run[k:]]
    return UNKNOWN if len(run) == 1 else plain_line(run[:-1], ids, lines) * width + UNKNOWN


@settings(max_examples=60)
@given(TEXTS, TEXTS, st.integers(3, 6), st.sampled_from(["first", "last"]), st.sampled_from([3, 5, 9, 100]))
def test_rows_equal_those_of_the_plain_twin(training, others, length, end, width):
    corpus = Corpus.of(training)
    ngrams = Ngrams.of(corpus, 7 * width, width=width, longest=3, length=length, end=end)
    columns, seen = {}, Corpus.of(training + others)
    for n in range(1, 4):  # what has a column is checked below
        for run in {run for text in training for run in runs_of(kept(text, length, end), n)}:
            row = Ngrams.rows(ngrams, Corpus.of([" ".join(run)]))[0, [0, length, 2 * length - 1][n - 1]]
            if UNKNOWN < row < width:
                columns[run] = int(row)
    counts = Counter(run for text in training for n in (1, 2, 3) for run in runs_of(kept(text, length, end), n))
    assert sorted(columns.values()) == list(range(2, 2 + min(width - 2, len(counts))))
    by_column = sorted(columns, key=columns.__getitem__)
    assert [counts[run] for run in by_column] == sorted(counts.values(), reverse=True)[: len(columns)]

    found = ngrams.rows(seen)
    assert found.dtype == np.int32
    assert found.shape == (len(seen), 3 * length - 3)
    for text, rows in zip(training + others, found.tolist(), strict=True):
        expected = []
        for n in (1, 2, 3):
            runs = runs_of(kept(text, length, end), n)
            expected += [plain_row(run, columns, ngrams.ids, width, 7) for run in runs]
            expected += [PADDING] * (length - n + 1 - len(runs))
        assert rows == expected


def test_runs_that_end_alike_share_a_column_and_those_that_begin_alike_a_line():
    # "very good" is frequent; "not good", "very bad" and the triples are not
    corpus = Corpus.of(["very good film"] * 3 + ["bad"] * 3 + ["not"] * 2)
    ngrams = Ngrams.of(corpus, 100, width=10, longest=3, length=3, end="last")
    rows = ngrams.rows(Corpus.of(["not good", "not bad", "very bad", "not very good", "film very good"]))
    not_good, not_bad, very_bad = rows[:3, 3]
    not_very_good, film_very_good = rows[3:, 5]
    assert not_good // 10 == not_bad // 10 == not_very_good // 10 != very_bad // 10
    assert not_bad % 10 == very_bad % 10 == rows[1, 1]
    assert not_very_good % 10 == film_very_good % 10 == rows[3, 4] < 10  # the column of "very good"
    assert not_very_good // 10 != film_very_good // 10


def test_words_alone_need_no_line_for_runs():
    ngrams = Ngrams.of(Corpus.of(["b a b"]), 4, width=4, longest=1, length=3, end="first")
    assert ngrams.rows(Corpus.of(["a b c"])).tolist() == [[3, 2, UNKNOWN]]


def test_texts_without_words():
    ngrams = Ngrams.of(Corpus.of(["", "?"[:0]]), 20, width=5, longest=2, length=2, end="last")
    assert ngrams.rows(Corpus.of(["", "a", "a b"])).tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 11]]


@pytest.mark.parametrize(("num_rows", "width"), [(29, 30), (59, 30), (100, 2)])
def test_a_table_without_room_is_refused(num_rows, width):
    with pytest.raises(ValueError, match=f"room for a line .* got {num_rows} rows in lines of {width}"):
        Ngrams.of(Corpus.of(["a"]), num_rows, width=width, longest=2, length=3, end="first")
