"""Folding against brute force and NumPy's own index arithmetic."""

import json
import math
from dataclasses import asdict
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankfold import Conv1d, Embedding, Pruning, predict
from rankfold.config import CP
from rankfold.data.criteo import Tables
from rankfold.schedule import Schedule
from rankfold.shapes import Folding, fold, is_positive_integer
from rankfold.uncertainty import predictive_statistics

HARD_SIZES = [10_131_227, 8_351_593, 30_522, 50_257, 99_999_989, 65_537, 97, 13, 7, 2, 1]


def is_prime(n):
    return n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))


def all_folds(size, order, max_padding):
    """Every ascending fold within the limit, by brute force."""
    modes = range(1, size + 1)
    for dims in combinations_with_replacement(modes, order):
        padded = math.prod(dims)
        if size <= padded <= size * (1 + max_padding) + 1e-9:
            yield dims


@given(size=st.integers(1, 10**8), order=st.integers(1, 8), max_padding=st.sampled_from([0.0, 0.001, 0.05, 0.5]))
@example(size=99_999_989, order=8, max_padding=0.0)
@example(size=99_999_787, order=7, max_padding=0.0)
@settings(max_examples=300)
def test_a_fold_holds_the_size_within_the_padding_limit(size, order, max_padding):
    folding = fold(size, order, max_padding)
    assert len(folding.dims) == order
    assert folding.dims == tuple(sorted(folding.dims))
    assert size <= math.prod(folding.dims) == folding.padded_size <= size * (1 + max_padding)
    assert 0 <= folding.padding <= max_padding + 1e-12
    assert folding.padding == pytest.approx((folding.padded_size - size) / size)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("max_padding", [0.0, 0.05, 0.3])
def test_no_fold_is_both_better_balanced_and_less_padded(order, max_padding):
    for size in range(1, 40 if order == 4 else 60):
        ours = fold(size, order, max_padding)
        total, padded = sum(ours.dims), ours.padded_size
        for dims in all_folds(size, order, max_padding):
            other_total, other_padded = sum(dims), math.prod(dims)
            better = other_total <= total and other_padded <= padded
            assert not better or (other_total, other_padded) == (total, padded), (ours, dims)


@pytest.mark.parametrize(
    ("size", "order", "dims"),
    [
        (784, 2, (28, 28)),
        (512, 3, (8, 8, 8)),
        (4096, 4, (8, 8, 8, 8)),
        (10**8, 8, (10,) * 8),
        (1000, 3, (10, 10, 10)),
        (3**7, 7, (3,) * 7),
        (768, 2, (24, 32)),
        (1, 4, (1, 1, 1, 1)),
    ],
)
def test_balanced_sizes_fold_exactly(size, order, dims):
    assert fold(size, order).dims == dims


@given(modes=st.lists(st.integers(4, 30), min_size=2, max_size=4))
def test_products_of_similar_modes_fold_without_padding_or_nearly(modes):
    size, order = math.prod(modes), len(modes)
    folding = fold(size, order, 0.0)
    assert folding.padding == 0
    assert sum(folding.dims) <= sum(modes)


@pytest.mark.parametrize("order", range(1, 9))
@pytest.mark.parametrize("size", HARD_SIZES)
def test_awkward_sizes_fold_into_balanced_modes_with_little_padding(size, order):
    folding = fold(size, order)
    assert folding.padding <= 0.05
    if size > 1000 and order <= 4:
        assert folding.padding < 0.01
        assert folding.dims[-1] <= 1.5 * size ** (1 / order)


def test_a_prime_cannot_fold_without_padding():
    assert is_prime(50_261)
    assert fold(50_261, 3, 0.0).dims == (1, 1, 50_261)
    assert fold(50_261, 3).dims[0] > 30


@given(
    data=st.data(), dims=st.lists(st.integers(1, 9), min_size=1, max_size=8), shape=st.sampled_from([(5,), (2, 3), ()])
)
def test_unravel_is_numpys(data, dims, shape):
    padded = math.prod(dims)
    folding = Folding(padded, tuple(dims))
    index = torch.randint(padded, shape)
    expected = np.unravel_index(index.numpy(), dims)
    for part, theirs in zip(folding.unravel(index), expected, strict=True):
        assert part.shape == index.shape
        assert np.array_equal(part.numpy(), theirs)


@pytest.mark.parametrize("size", [10_131_227, 10**12])
def test_unravel_reaches_the_last_row_of_large_tables(size):
    folding = fold(size, 3)
    last = torch.tensor([size - 1])
    assert [int(part) for part in folding.unravel(last)] == [int(k) for k in np.unravel_index(size - 1, folding.dims)]


def test_given_dims_are_taken_as_they_are():
    assert fold(25_000, 6, dims=[5, 5, 5, 5, 6, 8]).dims == (5, 5, 5, 5, 6, 8)
    assert fold(10, 2, max_padding=0.0, dims=(4, 3)).padding == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("size", "dims", "message"),
    [
        (784, (28, 27), r"dims \(28, 27\) hold 756 entries, but 784 are needed; make their product at least 784"),
        (784, (40, 40), r"dims \(40, 40\) hold 1600 entries, more than twice the 784 needed; use smaller dims"),
        (784, (), r"dims must be positive integers, got \(\)"),
        (784, (28, 0), r"dims must be positive integers, got \(28, 0\)"),
        (784, (28, -28), r"dims must be positive integers, got \(28, -28\)"),
        (784, (28.0, 28), r"dims must be positive integers, got \(28.0, 28\)"),
        (784, (True, 784), r"dims must be positive integers, got \(True, 784\)"),
        (0, (1,), "a size to fold must be a positive integer, got 0"),
        (2.5, (3,), "a size to fold must be a positive integer, got 2.5"),
    ],
)
def test_wrong_dims_are_named(size, dims, message):
    with pytest.raises(ValueError, match=message):
        fold(size, 2, dims=dims)
    with pytest.raises(ValueError, match=message):
        Folding(size, dims)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "a size to fold must be a positive integer, got 0"),
        ((-4, 2), "a size to fold must be a positive integer, got -4"),
        ((7.0, 2), "a size to fold must be a positive integer, got 7.0"),
        ((True, 2), "a size to fold must be a positive integer, got True"),
        ((7, 0), "order must be a positive integer, got 0"),
        ((7, 1.5), "order must be a positive integer, got 1.5"),
        ((7, 2, -0.1), "max_padding must lie between 0 and 1 .* got -0.1"),
        ((7, 2, 1.5), "max_padding must lie between 0 and 1 .* got 1.5"),
        ((7, 2, math.nan), "max_padding must lie between 0 and 1 .* got nan"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        fold(*arguments)


@pytest.mark.parametrize(("value", "expected"), [(1, True), (10**9, True), (0, False), (True, False), (2.0, False)])
def test_positive_integers(value, expected):
    assert is_positive_integer(value) is expected


def test_integers_of_numpy_are_kept_as_pythons():
    schedule = Schedule(np.uint16(200), np.uint16(60), Pruning(checks=np.uint8(20), patience=np.int8(2)))
    kept = [schedule.total_steps, schedule.warmup_steps, schedule.pruning.checks, schedule.pruning.patience]
    assert {type(n) for n in kept} == {int}
    assert [step for step in range(75) if schedule.checks_at(step)] == [60, 67, 74]
    tables = Tables(sizes=tuple(np.full(26, 5)), min_count=np.int64(2))
    assert json.loads(json.dumps(asdict(tables)))["min_count"] == 2


def test_integers_of_numpy_are_taken_by_layers_and_predictions():
    table = Embedding(10, 8, padding_idx=np.int64(-1), config=CP(2))
    assert table.padding_idx == 9
    assert Conv1d(3, 4, kernel_size=np.int64(3), config=CP(2))(torch.randn(2, 3, 5)).shape == (2, 4, 3)
    mean, _ = predict(table, torch.arange(4), samples=np.int64(3), seed=np.int64(0))
    assert torch.equal(mean, predict(table, torch.arange(4), samples=3, seed=0)[0])
    predicted = predictive_statistics(table, torch.arange(4), samples=np.int64(2), batch_size=np.int64(3))
    assert predicted.probabilities.shape == (4, 8)


def test_integers_of_numpy_are_integers():
    folding = Folding(np.int64(12), (np.int32(3), np.int64(4)))
    assert folding == Folding(12, (3, 4))
    assert {type(n) for n in (folding.size, *folding.dims)} == {int}
    format = CP(np.int64(2)).build(np.int64(12), 6)
    assert type(format.ranks[0]) is int
    assert not is_positive_integer(np.bool_(True))
