"""Decomposing block by block against decomposing at once."""

import pytest
import torch

from rankfold.formats import TensorTrain, TensorTrainMatrix, base
from rankfold.formats.blockwise import blockwise_tt_svd
from rankfold.shapes import Folding

ROWS, COLUMNS = 110, 14  # folded as 5·4·6 and 2·2·4: both sides are padded
INPUTS = Folding(ROWS, (5, 4, 6))
TRAIN = [(5, 1), (4, 1), (6, 1), (1, 16)]
MATRIX_TRAIN = [(5, 2), (4, 2), (6, 4)]


def formats(ranks):
    train = TensorTrain(INPUTS, Folding(COLUMNS, (16,)), ranks[:3])
    matrix_train = TensorTrainMatrix(INPUTS, Folding(COLUMNS, (2, 2, 4)), ranks[:2])
    return [(train, TRAIN), (matrix_train, MATRIX_TRAIN)]


def decompose(format, pairs, matrix, **options):
    cores = blockwise_tt_svd(matrix, format.inputs, pairs, format.ranks, **options)
    return [core.reshape(shape) for core, shape in zip(cores, format.factor_shapes, strict=True)]


@pytest.mark.parametrize("block_entries", [1, 700, 1 << 25])
@pytest.mark.parametrize("ranks", [(3, 4, 5), (5, 7, 6), (9, 50, 20)])
def test_the_result_is_that_of_the_whole_matrix(ranks, block_entries):
    matrix = torch.randn(ROWS, COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for format, pairs in formats(ranks):
        found = decompose(format, pairs, matrix, block_entries=block_entries)
        torch.testing.assert_close(format.reconstruct(found), format.reconstruct(format.decompose(matrix)))


def test_a_matrix_of_low_rank_comes_back():
    for format, pairs in formats((3, 4, 5)):
        matrix = format.reconstruct(format.random_factors(1.0, torch.Generator().manual_seed(1))).float()
        found = decompose(format, pairs, matrix)
        assert found[0].dtype == torch.float64
        # padded rows and columns are cut off, so the rank of what is left is the same or smaller
        larger = format.with_ranks(tuple(4 * r for r in format.ranks))
        exact = decompose(larger, pairs, matrix)
        torch.testing.assert_close(larger.reconstruct(exact).float(), matrix, atol=1e-5, rtol=1e-4)


def test_rows_that_are_zero_need_no_rank():
    matrix = torch.zeros(ROWS, COLUMNS)
    for format, pairs in formats((2, 2, 2)):
        assert not format.reconstruct(decompose(format, pairs, matrix)).any()
    matrix[17] = torch.randn(COLUMNS)
    for format, pairs in formats((1, 1, 1)):
        if isinstance(format, TensorTrain):
            torch.testing.assert_close(format.reconstruct(decompose(format, pairs, matrix)).float(), matrix)


def test_memory_stays_near_the_size_of_a_block():
    rows = Folding(60_000, (40, 50, 30))
    matrix = torch.randn(60_000, 16, generator=torch.Generator().manual_seed(0))
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result is not matrix:
                largest = max(largest, result.numel())
            return result

    with Watch():
        blockwise_tt_svd(matrix, rows, [(40, 1), (50, 1), (30, 1), (1, 16)], (3, 3, 3), block_entries=40 * 16 * 100)
    assert largest <= max(3 * 50 * 30 * 16, 40 * 16 * 100)
    assert largest < matrix.numel() / 10


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="pairs must fold 120 rows and have one rank between each two"):
        blockwise_tt_svd(torch.zeros(ROWS, COLUMNS), INPUTS, TRAIN, (3, 3))


def test_large_matrices_take_this_way(monkeypatch):
    matrix = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(2))
    for format, pairs in formats((3, 4, 5)):
        assert list(format.train_pairs) == pairs
        at_once = format.decompose(matrix)
        with monkeypatch.context() as patch:
            patch.setattr(base, "LARGEST_COPY", 10)
            in_blocks = format.decompose(matrix)
        torch.testing.assert_close(format.reconstruct(in_blocks), format.reconstruct(at_once))
        sizes = [float(core.square().mean()) for core in in_blocks]
        assert max(sizes) == pytest.approx(min(sizes), rel=1e-3)
