"""Rows of tables: vocabularies against counting by hand, hashes by what they promise."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.data.criteo import encoding
from rankfold.data.criteo.encoding import KAGGLE_SIZES, Hash, Lookup, Tables, TokenCounts, encode


def count(*parts):
    counts = TokenCounts()
    for part in parts:
        counts.add(np.array(part, np.uint32))
    return counts


def by_hand(tokens, min_count, size):
    """The row of every token, from the definition."""
    times = Counter(tokens)
    order = sorted(times, key=lambda token: (-times[token], token))
    known = [token for token in order if times[token] >= min_count]
    if size is None:
        size = max(1, len(known) + (len(known) < len(order)))
    if len(known) == len(order) <= size:
        return {token: row for row, token in enumerate(known)}, size
    shared = min(len(known), size - 1)
    return {token: row if row < shared else shared for row, token in enumerate(order)}, size


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=30), min_size=1, max_size=4),
    st.integers(1, 3),
    st.none() | st.integers(1, 9),
)
@settings(deadline=None, max_examples=150)
def test_a_vocabulary_is_as_by_hand(parts, min_count, size):
    tokens = [token for part in parts for token in part]
    rows, expected_size = by_hand(tokens, min_count, size)
    lookup = Lookup.of(count(*parts), min_count, size)
    assert lookup.size == expected_size
    assert lookup.rows(np.array(tokens, np.uint32)).tolist() == [rows[token] for token in tokens]
    unknown = lookup.rows(np.array([99], np.uint32))
    assert unknown.tolist() == [lookup.shared]
    assert 0 <= lookup.shared < lookup.size


def test_counts_do_not_depend_on_when_they_are_made(monkeypatch):
    monkeypatch.setattr(encoding, "_PENDING", 3)
    parts = [np.random.default_rng(n).integers(0, 50, 7) for n in range(40)]
    tokens, times = count(*parts).table()
    expected = Counter(int(token) for part in parts for token in part)
    assert dict(zip(tokens.tolist(), times.tolist(), strict=True)) == expected


def test_hashes_fill_the_table_evenly_and_differently_in_each_column():
    tokens = np.arange(60_000, dtype=np.uint32)
    rows = Hash(100, column=2).rows(tokens)
    assert rows.min() >= 0
    assert rows.max() < 100
    share = np.bincount(rows, minlength=100) / 60_000
    assert abs(share - 0.01).max() < 0.002
    same = (rows == Hash(100, column=3).rows(tokens)).mean()
    assert same == pytest.approx(0.01, abs=0.003)
    np.testing.assert_array_equal(rows, Hash(100, column=2).rows(tokens))


def test_large_tables_are_hashed_only_while_they_are_mostly_empty():
    tables = Tables(KAGGLE_SIZES, hashing="large")
    counts = count(range(100))
    kinds = [type(tables.encoder(column, counts)) for column in range(26)]
    assert [column for column, kind in enumerate(kinds) if kind is Hash] == [2, 3, 11, 15, 20]
    full = count(range(KAGGLE_SIZES[3]))
    assert isinstance(tables.encoder(3, full), Lookup)
    assert tables.encoder(3, full).rows(np.array([5, KAGGLE_SIZES[3] - 1], np.uint32)).tolist() == [5, 2_202_607]


def test_all_columns_at_once():
    encoders = [Hash(10 + n, n) for n in range(26)]
    tokens = np.random.default_rng(0).integers(0, 2**32, (5, 26), dtype=np.uint32)
    rows = encode(encoders, tokens)
    assert rows.shape == (5, 26)
    assert rows.dtype == np.int32
    np.testing.assert_array_equal(rows[:, 7], encoders[7].rows(tokens[:, 7]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hashing": "maybe"}, "hashing must be 'never', 'large' or 'always', got 'maybe'"),
        ({"hashing": "always"}, "needs sizes to hash into"),
        ({"sizes": (3, 4)}, "sizes must be 26 positive integers"),
        ({"min_count": 0}, "min_count must be a positive integer, got 0"),
        (
            {"sizes": KAGGLE_SIZES, "hashing": "always", "min_count": 3},
            "hashing='always' counts no values, so min_count=3 has no effect",
        ),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Tables(**options)
