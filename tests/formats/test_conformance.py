"""The kit every format must pass: dense algebra in float64 is the truth, gradients included."""

import math
from contextlib import contextmanager

import pytest
import torch
from formats.definitions import KINDS, NAMES, dense, entrywise, example, formats, random_factors
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold import contraction
from rankfold.formats import CP, Tucker, base
from rankfold.shapes import Folding

SEEDS = st.integers(0, 2**20)
BATCHES = st.sampled_from([0, 1, 2, 7, 33])

every_format = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


@contextmanager
def always(*, rebuilding, turned=0):
    """Apply batches only by rebuilding the matrix, its input modes turned, or only through the factors."""

    def turn(rows, *_):
        return rows[turned % len(rows) :] + rows[: turned % len(rows)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "rebuilding_is_cheaper", lambda *args: rebuilding)
        patch.setattr(base, "order_of_rows", turn)
        yield


@contextmanager
def chunks_of(entries):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contraction, "_CHUNK_ENTRIES", entries)
        yield


def assert_rounded(actual, expected, magnitude, dtype, num_factors):
    """Equal up to one rounding per factor, relative to the same sums over absolute values."""
    roundings = num_factors + 3 if dtype is torch.bfloat16 else 8 * (num_factors + 8)
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    assert ((actual.double() - expected).abs() <= roundings * torch.finfo(dtype).eps * magnitude + 1e-30).all()


def exact_and_magnitude(format, factors):
    exact = [factor.double() for factor in factors]
    return dense(format, exact), dense(format, [factor.abs() for factor in exact])


def gradients(outputs, tensors, seed):
    """Gradients of a random weighting of the outputs."""
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(seed), dtype=outputs.dtype)
    return torch.autograd.grad((outputs * weights).sum(), tensors)


def assert_same_gradients(ours, theirs):
    for mine, truth in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9 * (1.0 + float(truth.norm())))


# Rebuilding ---------------------------------------------------------------------------------------


@every_format
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=12)
def test_the_dense_truth_follows_the_definition_entry_by_entry(name, data, seed):
    format = data.draw(formats(name, max_order=8, max_size=8, max_core=32))
    factors = random_factors(format, seed)
    torch.testing.assert_close(dense(format, factors), entrywise(format, factors), rtol=1e-10, atol=1e-10)


@every_dtype
@every_format
@given(data=st.data(), seed=SEEDS)
def test_reconstruct_is_the_dense_matrix(name, dtype, data, seed):
    format = data.draw(formats(name))
    factors = random_factors(format, seed, dtype)
    matrix, magnitude = exact_and_magnitude(format, factors)
    assert_rounded(format.reconstruct(factors), matrix, magnitude, dtype, len(factors))


@every_format
def test_sixteen_modes_are_planned_and_rebuilt(name):
    side = Folding(24, (1, 2, 1, 3, 1, 2, 1, 2))
    ranks = (2, 1) * 8 if name == "Tucker" else (2,) * KINDS[name].num_ranks(side, side)
    format = KINDS[name](side, side, ranks)
    factors = random_factors(format, 0)
    matrix, x = dense(format, factors), torch.randn(3, 24, dtype=torch.float64)
    torch.testing.assert_close(format.reconstruct(factors), matrix)
    torch.testing.assert_close(format.rows(factors, torch.tensor([0, 5, 23])), matrix[[0, 5, 23]])
    torch.testing.assert_close(format.norm(factors), matrix.norm())
    with always(rebuilding=False):
        torch.testing.assert_close(format.apply(factors, x), x @ matrix)


def test_more_modes_than_letters_are_refused():
    side = Folding(512, (2,) * 9)
    with pytest.raises(ValueError, match=r"at most 8 input modes are supported, got \(2, 2, 2, 2, 2, 2, 2, 2, 2\)"):
        CP(side, Folding(2, (2,)), (3,))


# Applying to a batch ------------------------------------------------------------------------------


@pytest.mark.parametrize("rebuilding", [True, False], ids=["rebuild", "contract"])
@every_dtype
@every_format
@given(data=st.data(), seed=SEEDS, batch=BATCHES, transposed=st.booleans(), turned=st.integers(0, 3))
@settings(max_examples=20)
def test_apply_is_a_matrix_product(name, dtype, rebuilding, data, seed, batch, transposed, turned):
    format = data.draw(formats(name))
    factors = random_factors(format, seed, dtype)
    matrix, magnitude = exact_and_magnitude(format, factors)
    if transposed:
        matrix, magnitude = matrix.T, magnitude.T
    x = torch.randn(batch, matrix.shape[0]).to(dtype)
    with always(rebuilding=rebuilding, turned=turned):
        y = format.apply(factors, x, transposed=transposed)
    assert_rounded(y, x.double() @ matrix, x.double().abs() @ magnitude, dtype, len(factors) + 1)


@every_format
@given(data=st.data(), seed=SEEDS, batch=BATCHES, transposed=st.booleans(), turned=st.sampled_from([None, 0, 1, 2]))
@settings(max_examples=20)
def test_gradients_of_apply_are_those_of_the_dense_product(name, data, seed, batch, transposed, turned):
    format = data.draw(formats(name, max_order=8))
    factors = [factor.requires_grad_() for factor in random_factors(format, seed)]
    matrix = dense(format, factors)
    matrix = matrix.T if transposed else matrix
    x = torch.randn(batch, matrix.shape[0], dtype=torch.float64, requires_grad=True)
    with always(rebuilding=turned is not None, turned=turned or 0):
        ours = gradients(format.apply(factors, x, transposed=transposed), [x, *factors], seed)
    assert_same_gradients(ours, gradients(x @ matrix, [x, *factors], seed))


@every_format
def test_the_cheaper_way_is_chosen_by_size(name):
    """One row through large modes at rank 2 is contracted; a huge batch at full rank is worth rebuilding for."""

    def rebuilds(mode, rank, batch):
        side = Folding(mode**2, (mode, mode))
        format = KINDS[name](side, side, (rank,) * KINDS[name].num_ranks(side, side))
        equation = f"Bab,{','.join(format.subscripts)}->Bij"
        return contraction.rebuilding_is_cheaper(equation, format.factor_shapes, format.rebuild_equation, batch)

    assert not rebuilds(mode=64, rank=2, batch=1)
    assert rebuilds(mode=4, rank=16, batch=65536)


@every_format
@pytest.mark.parametrize("shape", [(6, 12), (6, 10), (11,), (2, 3, 11)], ids=str)
@pytest.mark.parametrize("rebuilding", [True, False], ids=["rebuild", "contract"])
def test_a_batch_of_the_wrong_shape_is_refused(name, shape, rebuilding):
    format = example(name)
    with always(rebuilding=rebuilding), pytest.raises(ValueError, match=r"expects a batch of shape \(B, 11\), got"):
        format.apply(random_factors(format, 0), torch.zeros(shape, dtype=torch.float64))


# Rows ---------------------------------------------------------------------------------------------


@every_dtype
@every_format
@given(data=st.data(), seed=SEEDS, count=BATCHES, chunk=st.sampled_from([1, 50, 1 << 24]))
@settings(max_examples=20)
def test_rows_are_rows_of_the_dense_matrix(name, dtype, data, seed, count, chunk):
    format = data.draw(formats(name))
    factors = random_factors(format, seed, dtype)
    index = torch.randint(format.inputs.size, (count,))
    matrix, magnitude = exact_and_magnitude(format, factors)
    with chunks_of(chunk):
        rows = format.rows(factors, index)
    assert_rounded(rows, matrix[index], magnitude[index], dtype, len(factors))


@every_format
@given(data=st.data(), seed=SEEDS, count=st.integers(1, 40), chunk=st.sampled_from([1, 50, 1 << 24]))
@settings(max_examples=20)
def test_gradients_of_rows_are_those_of_dense_indexing(name, data, seed, count, chunk):
    format = data.draw(formats(name, max_order=8))
    factors = [factor.requires_grad_() for factor in random_factors(format, seed)]
    index = torch.randint(format.inputs.size, (count,))
    with chunks_of(chunk):
        ours = gradients(format.rows(factors, index), factors, seed)
    assert_same_gradients(ours, gradients(dense(format, factors)[index], factors, seed))


@every_format
def test_chunks_bound_the_intermediates(name, monkeypatch):
    """The pairwise results within a chunk stay within the limit together, and several chunks are made."""
    format, index = example(name), torch.arange(11).repeat(40)
    sizes, run = [], contraction._run

    def recording(chosen, operands, bias):
        batch = operands[0].shape[0]
        sizes.append((batch, chosen.intermediates))
        return run(chosen, operands, bias)

    monkeypatch.setattr(contraction, "_run", recording)
    monkeypatch.setattr(contraction, "_CHUNK_ENTRIES", 2000)
    format.rows(random_factors(format, 0), index)
    assert len(sizes) > 1
    assert sum(batch for batch, _ in sizes) == len(index)
    # plans are made for the next power of four
    assert all(entries <= 4 * 2000 for _, entries in sizes)


# Gradients by finite differences ------------------------------------------------------------------


@every_format
def test_gradcheck(name):
    format, index = example(name), torch.tensor([0, 10, 3, 3])
    factors = [factor.requires_grad_() for factor in random_factors(format, 0)]
    x = torch.randn(2, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *f: format.reconstruct(f), factors)
    assert torch.autograd.gradcheck(lambda *f: format.rows(f, index), factors)
    assert torch.autograd.gradcheck(lambda *f: format.inner(f, f), factors)
    for rebuilding in (True, False):
        with always(rebuilding=rebuilding):
            assert torch.autograd.gradcheck(lambda x, *f: format.apply(f, x), [x, *factors])


# Inner products and scale -------------------------------------------------------------------------


def without_padding(format):
    """The same, nothing cut away: inner products and root mean squares count padded entries."""
    full = [Folding(folding.padded_size, folding.dims) for folding in (format.inputs, format.outputs)]
    return type(format)(*full, format.ranks)


@every_format
@given(data=st.data(), seed=SEEDS)
def test_inner_and_norm_are_those_of_the_dense_matrices(name, data, seed):
    format = data.draw(formats(name))
    other = format.with_ranks([data.draw(st.integers(1, 2)) for _ in format.ranks])
    ours, theirs = random_factors(format, seed), random_factors(other, seed + 1)
    a, b = dense(without_padding(format), ours), dense(without_padding(other), theirs)
    torch.testing.assert_close(
        format.inner(ours, theirs), (a * b).sum(), rtol=1e-9, atol=1e-9 * float(a.norm() * b.norm())
    )
    torch.testing.assert_close(format.norm(ours), a.norm())
    half = format.norm([factor.bfloat16() for factor in ours])
    assert half.dtype == torch.float64


@every_format
@given(data=st.data(), std=st.sampled_from([1e-3, 0.02, 1.0, 5.0]), seed=SEEDS)
def test_random_factors_have_the_wanted_root_mean_square(name, data, std, seed):
    format = data.draw(formats(name))
    factors = format.random_factors(std, torch.Generator().manual_seed(seed))
    assert [tuple(factor.shape) for factor in factors] == list(format.factor_shapes)
    assert float(dense(without_padding(format), factors).square().mean().sqrt()) == pytest.approx(std, rel=1e-9)
    again = format.random_factors(std, torch.Generator().manual_seed(seed))
    assert all(torch.equal(a, b) for a, b in zip(factors, again, strict=True))


@every_format
@given(data=st.data(), seed=SEEDS, std=st.floats(1e-3, 10.0))
def test_rows_can_start_equal(name, data, seed, std):
    format = data.draw(formats(name))
    factors = format.random_factors(std, torch.Generator().manual_seed(seed), equal_rows=True)
    rows = dense(format, factors)
    torch.testing.assert_close(rows, rows[:1].expand_as(rows), rtol=1e-9, atol=1e-9 * std)
    assert [factor.shape for factor in factors] == [torch.Size(shape) for shape in format.factor_shapes]
    assert all(factor.is_contiguous() for factor in factors)


# Ranks --------------------------------------------------------------------------------------------


@every_format
@given(data=st.data(), seed=SEEDS)
def test_ranks_are_read_off_shapes(name, data, seed):
    format = data.draw(formats(name))
    factors = random_factors(format, seed)
    assert format.ranks_of(factors) == format.ranks
    assert format.num_entries == sum(factor.numel() for factor in factors)
    smaller = format.with_ranks([max(1, rank - 1) for rank in format.ranks])
    assert smaller.ranks_of(random_factors(smaller, seed)) == smaller.ranks
    assert (smaller.inputs, smaller.outputs, type(smaller)) == (format.inputs, format.outputs, type(format))


@every_format
@given(data=st.data(), seed=SEEDS)
def test_keeping_all_ranks_changes_nothing(name, data, seed):
    format = data.draw(formats(name))
    factors = random_factors(format, seed)
    kept = format.restrict(factors, [torch.arange(rank) for rank in format.ranks])
    assert all(torch.equal(a, b) for a, b in zip(kept, factors, strict=True))


@every_format
@given(data=st.data(), seed=SEEDS)
def test_cutting_zero_slices_keeps_the_matrix(name, data, seed):
    """A rank that is zero on one of its axes, whichever, contributes nothing."""
    format = data.draw(formats(name))
    factors, keep = random_factors(format, seed), []
    for group in format.rank_groups:
        kept = sorted(data.draw(st.sets(st.integers(0, group.size - 1), min_size=1)))
        gone = torch.tensor([k for k in range(group.size) if k not in kept], dtype=torch.long)
        factor, axis = data.draw(st.sampled_from(group.axes))
        factors[factor].index_fill_(axis, gone, 0.0)
        keep.append(torch.tensor(kept))
    smaller = format.with_ranks([len(kept) for kept in keep])
    cut = format.restrict(factors, keep)
    assert [tuple(factor.shape) for factor in cut] == list(smaller.factor_shapes)
    magnitude = dense(format, [factor.abs() for factor in factors])
    assert_rounded(smaller.reconstruct(cut), dense(format, factors), magnitude, torch.float64, len(factors))
    assert all(torch.equal(format.cut(n, factor, keep), cut[n]) for n, factor in enumerate(factors))


@every_format
def test_a_kept_index_may_reorder_ranks(name):
    format = example(name)
    factors = random_factors(format, 0)
    flipped = format.restrict(factors, [torch.arange(rank).flip(0) for rank in format.ranks])
    torch.testing.assert_close(format.reconstruct(flipped), dense(format, factors))


@every_format
@given(data=st.data())
def test_rank_groups_cover_their_axes_and_govern_every_entry_at_most_once(name, data):
    format = data.draw(formats(name))
    shapes = format.factor_shapes
    assert tuple(group.size for group in format.rank_groups) == format.ranks
    for group in format.rank_groups:
        assert all(shapes[factor][axis] == group.size for factor, axis in group.axes)
        assert set(group.governed) <= set(group.axes)
    axes = [axis for group in format.rank_groups for axis in group.axes]
    assert len(axes) == len(set(axes))
    governed = [factor for group in format.rank_groups for factor, _ in group.governed]
    free = [len(shapes) - 1] if name == "Tucker" else []
    assert sorted(governed + free) == list(range(len(shapes)))


@every_format
@given(data=st.data())
def test_each_variance_governs_as_many_entries_as_the_method_says(name, data):
    format = data.draw(formats(name))
    dims, bonds = format.inputs.dims + format.outputs.dims, (1, *format.ranks, 1)
    if name == "TTM":
        dims = tuple(i * j for i, j in zip(format.inputs.dims, format.outputs.dims, strict=True))
    if isinstance(format, CP):
        expected = [sum(dims)]
    elif isinstance(format, Tucker):
        expected = list(dims)
    else:  # the right slice of core n; for the last rank also the left slice of the last core
        expected = [bonds[n] * dims[n] for n in range(len(dims) - 1)]
        expected[-1] += dims[-1]
    counts = [
        sum(math.prod(format.factor_shapes[factor]) // group.size for factor, _ in group.governed)
        for group in format.rank_groups
    ]
    assert counts == expected


@every_format
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=25)
def test_useful_ranks_suffice_for_any_matrix(name, data, seed):
    """Also for padded ones, whose last rows and columns are zero."""
    torch.manual_seed(seed)
    format = data.draw(formats(name, max_order=4, max_size=12))
    useful = format.with_ranks(format.useful_ranks)
    matrix = torch.randn(format.inputs.size, format.outputs.size, dtype=torch.float64)
    error = (useful.reconstruct(useful.decompose(matrix)) - matrix).norm() / matrix.norm()
    assert error < (1e-3 if name == "CP" else 1e-10)


@pytest.mark.parametrize(
    ("name", "useful"),
    [("CP", (18,)), ("Tucker", (3, 4, 2, 3)), ("TT", (3, 6, 3)), ("TTM", (6,))],
)
def test_useful_ranks_are_the_largest_that_add_something(name, useful):
    """For modes (3, 4) x (2, 3): all but the largest mode; a mode; the smaller side of a cut."""
    assert example(name).useful_ranks == useful


def test_a_tucker_rank_is_useful_up_to_the_product_of_the_other_modes():
    assert Tucker(Folding(30, (30,)), Folding(6, (2, 3)), (1, 1, 1)).useful_ranks == (6, 2, 3)


@every_format
@pytest.mark.parametrize("bad", [0, -3, 2.0, True, "2", None])
def test_a_bad_rank_is_named(name, bad):
    format = example(name)
    with pytest.raises(ValueError, match="max_rank must be a positive integer, got"):
        format.with_ranks([bad, *format.ranks[1:]])


@every_format
def test_the_wrong_number_of_ranks_is_named(name):
    format = example(name)
    with pytest.raises(ValueError, match=rf"{name} with input modes \(3, 4\) and output modes .* ranks, got"):
        format.with_ranks([*format.ranks, 2])


def test_ttm_needs_pairs_of_modes():
    with pytest.raises(ValueError, match=r"got 2 input modes .* and 1 output modes"):
        KINDS["TTM"](Folding(4, (2, 2)), Folding(3, (3,)), (2,))
    with pytest.raises(ValueError, match="needs at least 2 modes on each side"):
        KINDS["TTM"](Folding(4, (4,)), Folding(3, (3,)), ())
