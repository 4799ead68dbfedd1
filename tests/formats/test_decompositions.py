"""Decompositions against their error bounds, planted tensors and tensorly."""

import math

import numpy as np
import pytest
import torch
from formats.definitions import KINDS, NAMES, dense
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorly import cp_to_tensor, tt_to_tensor, tucker_to_tensor
from tensorly.decomposition import parafac, tensor_train, tucker

from rankfold.formats.decompositions import cp_als, hooi, tt_svd
from rankfold.shapes import Folding

DIMS = [(6, 7), (4, 5, 6), (3, 4, 3, 4), (2, 3, 2, 3, 2)]
every_format = pytest.mark.parametrize("name", NAMES)


def folded(dims, split=1):
    """Inputs and outputs whose modes, one after the other, are ``dims``."""
    return tuple(Folding(math.prod(part), part) for part in (dims[:split], dims[split:]))


def rebuilt(name, dims, ranks, factors):
    inputs, outputs = folded(dims)
    return dense(KINDS[name](inputs, outputs, tuple(ranks)), factors).reshape(dims)


def discarded(unfolding, rank):
    """The squared singular values that a cut to ``rank`` drops."""
    return float(torch.linalg.svdvals(unfolding)[rank:].square().sum())


def bond_unfoldings(tensor):
    return [tensor.reshape(math.prod(tensor.shape[:n]), -1) for n in range(1, tensor.dim())]


def mode_unfoldings(tensor):
    return [tensor.movedim(n, 0).reshape(tensor.shape[n], -1) for n in range(tensor.dim())]


def planted(dims, rank, seed):
    generator = torch.Generator().manual_seed(seed)
    factors = [torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in dims]
    return rebuilt("CP", dims, (rank,), factors)


# Tensor train -------------------------------------------------------------------------------------


def test_a_default_device_elsewhere_is_no_matter_to_cp():
    matrix = torch.randn(4, 5, 6, dtype=torch.float64)
    with torch.device("meta"):
        factors = cp_als(matrix, 3)
    assert all(not factor.is_meta for factor in factors)


@given(dims=st.sampled_from(DIMS), data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_tt_svd_stays_within_its_bound_and_equals_tensorly(dims, data, seed):
    tensor = torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    limits = [min(unfolding.shape) for unfolding in bond_unfoldings(tensor)]
    ranks = [data.draw(st.integers(1, limit)) for limit in limits]
    error = float((rebuilt("TT", dims, ranks, tt_svd(tensor, ranks)) - tensor).norm())
    losses = [discarded(unfolding, rank) for unfolding, rank in zip(bond_unfoldings(tensor), ranks, strict=True)]
    # max_n σ-loss_n <= error² <= Σ_n σ-loss_n
    assert math.sqrt(max(losses)) - 1e-9 <= error <= math.sqrt(sum(losses)) + 1e-9
    theirs = tt_to_tensor(tensor_train(tensor.numpy(), rank=[1, *ranks, 1]))
    assert error == pytest.approx(float(np.linalg.norm(theirs - tensor.numpy())), abs=1e-6)


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_tt_svd_at_full_rank_is_exact_and_left_orthogonal(dims):
    tensor = torch.randn(dims, dtype=torch.float64)
    ranks = [min(unfolding.shape) for unfolding in bond_unfoldings(tensor)]
    cores = tt_svd(tensor, ranks)
    torch.testing.assert_close(rebuilt("TT", dims, ranks, cores), tensor)
    for core in cores[:-1]:
        matrix = core.reshape(-1, core.shape[2])
        torch.testing.assert_close(matrix.T @ matrix, torch.eye(core.shape[2], dtype=torch.float64))


# Tucker -------------------------------------------------------------------------------------------


def together_useful(ranks):
    """No Tucker rank above the product of the others; tensorly would fill it with random columns."""
    for _ in ranks:
        ranks = [min(rank, math.prod(ranks) // rank) for rank in ranks]
    return ranks


@given(dims=st.sampled_from(DIMS), data=st.data(), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_hooi_stays_within_the_hosvd_bound_and_is_not_worse_than_tensorly(dims, data, seed):
    tensor = torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ranks = together_useful([data.draw(st.integers(1, n)) for n in dims])
    error = float((rebuilt("Tucker", dims, ranks, hooi(tensor, ranks)) - tensor).norm())
    losses = [discarded(unfolding, rank) for unfolding, rank in zip(mode_unfoldings(tensor), ranks, strict=True)]
    assert math.sqrt(max(losses)) - 1e-9 <= error <= math.sqrt(sum(losses)) + 1e-9
    theirs = tucker_to_tensor(tucker(tensor.numpy(), rank=ranks))
    assert error <= float(np.linalg.norm(theirs - tensor.numpy())) * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_hooi_at_full_rank_is_exact(dims):
    tensor = torch.randn(dims, dtype=torch.float64)
    torch.testing.assert_close(rebuilt("Tucker", dims, dims, hooi(tensor, dims)), tensor)


# CP -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dims", "rank"), [((6, 7), 3), ((6, 7, 8), 4), ((4, 5, 4, 5), 4), ((3, 4, 3, 4, 3), 3)])
def test_cp_als_recovers_planted_tensors(dims, rank, seed):
    tensor = planted(dims, rank, seed)
    error = (rebuilt("CP", dims, (rank,), cp_als(tensor, rank)) - tensor).norm() / tensor.norm()
    assert error < 1e-5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "sides", [((5, (2, 4)), (1, (2,))), ((11, (3, 4)), (5, (2, 3))), ((7, (2, 4)), (5, (6,)))], ids=str
)
def test_cp_als_is_exact_at_full_rank_on_padded_matrices(sides, seed):
    """No term of the start is lost for pointing into the padding."""
    format = sized("CP", *sides)
    matrix = torch.randn(
        format.inputs.size, format.outputs.size, generator=torch.Generator().manual_seed(seed)
    ).double()
    assert (dense(format, format.decompose(matrix)) - matrix).norm() / matrix.norm() < 1e-4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("dims", "rank"), [((6, 7, 8), 3), ((4, 5, 4, 5), 4), ((8, 6), 3)])
def test_cp_als_is_as_good_as_tensorly_on_low_rank_plus_noise(dims, rank, seed):
    tensor = planted(dims, rank, seed)
    tensor = tensor + 0.1 * tensor.square().mean().sqrt() * torch.randn(dims, dtype=torch.float64)
    error = float((rebuilt("CP", dims, (rank,), cp_als(tensor, rank)) - tensor).norm())
    theirs = cp_to_tensor(parafac(tensor.numpy(), rank=rank, n_iter_max=500, tol=1e-10, init="svd", random_state=0))
    assert error <= 1.03 * float(np.linalg.norm(theirs - tensor.numpy()))


# Through the formats ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [(1, 1), (3, 4), (5, 2), (12, 6)], ids=str)
def test_ttm_decomposes_the_interleaved_tensor(ranks):
    inputs, outputs = Folding(24, (4, 3, 2)), Folding(18, (3, 2, 3))
    matrix = torch.randn(24, 18, dtype=torch.float64)
    format = KINDS["TTM"](inputs, outputs, ranks)
    error = float((dense(format, format.decompose(matrix)) - matrix).norm())
    pairs = matrix.reshape(4, 3, 2, 3, 2, 3).permute(0, 3, 1, 4, 2, 5).reshape(12, 6, 6)
    losses = [discarded(unfolding, rank) for unfolding, rank in zip(bond_unfoldings(pairs), ranks, strict=True)]
    assert math.sqrt(max(losses)) - 1e-9 <= error <= math.sqrt(sum(losses)) + 1e-9
    theirs = tt_to_tensor(tensor_train(pairs.numpy(), rank=[1, *ranks, 1]))
    assert error == pytest.approx(float(np.linalg.norm(theirs - pairs.numpy())), abs=1e-6)


def sized(name, inputs=(11, (3, 4)), outputs=(5, (2, 3)), rank=None):
    inputs, outputs = Folding(*inputs), Folding(*outputs)
    kind = KINDS[name]
    ones = kind(inputs, outputs, (1,) * kind.num_ranks(inputs, outputs))
    return ones.with_ranks(ones.useful_ranks if rank is None else (rank,) * len(ones.ranks))


@every_format
@given(std=st.sampled_from([1e-6, 1.0, 1e6]), rank=st.integers(1, 6), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_factors_are_balanced_and_a_matrix_of_the_format_is_found_again(name, std, rank, seed):
    format = sized(name, inputs=(12, (3, 4)), outputs=(6, (2, 3)), rank=rank)
    torch.manual_seed(seed)
    matrix = std * torch.randn(12, 6, dtype=torch.float64)
    factors = format.decompose(matrix)
    sizes = [float(factor.square().mean().sqrt()) for factor in factors]
    assert max(sizes) == pytest.approx(min(sizes), rel=1e-9)
    again = format.decompose(dense(format, factors))
    error = (dense(format, again) - dense(format, factors)).norm() / matrix.norm()
    assert error < (0.2 if name == "CP" else 1e-9)


@every_format
def test_ranks_above_the_useful_ones_are_zero(name):
    useful = sized(name)
    format = useful.with_ranks([rank + 3 for rank in useful.ranks])
    matrix = torch.randn(11, 5, dtype=torch.float64)
    factors = format.decompose(matrix)
    kept = format.restrict(factors, [torch.arange(rank) for rank in useful.ranks])
    extra = [torch.arange(rank, rank + 3) for rank in useful.ranks]
    assert (dense(format, factors) - matrix).norm() / matrix.norm() < (1e-3 if name == "CP" else 1e-10)
    torch.testing.assert_close(dense(useful, kept), dense(format, factors))
    for group, index in zip(format.rank_groups, extra, strict=True):
        assert any(not factors[factor].index_select(axis, index).any() for factor, axis in group.axes)


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_dtype_of_the_matrix_is_kept(name, dtype):
    format, matrix = sized(name), (1000 * torch.randn(11, 5)).to(dtype)
    factors = format.decompose(matrix)
    assert {factor.dtype for factor in factors} == {dtype}
    error = (dense(format, [factor.double() for factor in factors]) - matrix.double()).norm() / matrix.double().norm()
    assert error < max(1e-3 if name == "CP" else 0.0, 20 * torch.finfo(dtype).eps)


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rank", [1, 4, 40])
def test_a_zero_matrix_gives_finite_factors(name, dtype, rank):
    format = sized(name, rank=rank if name != "Tucker" else min(rank, 4))
    factors = format.decompose(torch.zeros(11, 5, dtype=dtype))
    assert all(factor.isfinite().all() for factor in factors)
    assert not format.reconstruct(factors).any()


@every_format
def test_a_matrix_of_the_wrong_shape_is_refused(name):
    with pytest.raises(ValueError, match=r"the matrix to decompose must have shape \(11, 5\), got \(5, 11\)"):
        sized(name).decompose(torch.zeros(5, 11))


@every_format
def test_decomposing_is_repeatable_and_leaves_the_matrix_alone(name):
    format, matrix = sized(name, rank=2), torch.randn(11, 5, requires_grad=True)
    before = matrix.detach().clone()
    first = format.decompose(matrix)
    torch.manual_seed(1)
    second = format.decompose(matrix)
    assert all(torch.equal(a, b) and not a.requires_grad for a, b in zip(first, second, strict=True))
    assert torch.equal(matrix, before)
