"""Kernels against their plain-torch twins in float64: rows, bags, and gradients of the factors."""

import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from kernels.cases import EVERY, KINDS, NAMES, SMALL, SMALL_NAMES, assert_same, factors_of, make

from rankfold import kernels
from rankfold.kernels import chain, dispatch, launch, layouts, product, programs, reference, tiles

small = pytest.mark.parametrize("format", SMALL, ids=SMALL_NAMES)


def random_index(format, device, count=21):
    """Indices with repeats, the first and the last row among them."""
    index = torch.randint(format.inputs.size, (count,))
    if count > 4:
        index[:4] = torch.tensor([0, format.inputs.size - 1, 0, 0])
    return index.to(device)


@pytest.mark.parametrize("format", EVERY, ids=NAMES)
def test_rows_and_gradients(format, way):
    factors, exact = factors_of(format, way)
    index = random_index(format, way)
    assert dispatch.program_for(format, factors[0], len(index)) is not None
    assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 1e-6)


@small
@pytest.mark.parametrize("count", [0, 1, 2, 130])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_batches_of_any_size(format, count, dtype, way):
    factors, exact = factors_of(format, way)
    index = random_index(format, way, count).to(dtype)
    assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 1e-6)


@small
def test_indices_with_gaps_between_them(format, way):
    """Columns of a matrix, as tables of categories have them."""
    factors, exact = factors_of(format, way)
    index = torch.stack([random_index(format, way), random_index(format, way)], 1)[:, 1]
    assert index.stride() == (2,)
    assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 1e-6)


@small
def test_bags_of_indices_and_weights_with_gaps_between_them(format, device):
    factors, exact = factors_of(format, device)
    index = torch.stack([random_index(format, device), random_index(format, device)], 1)[:, 1]
    weights, offsets = torch.randn(21, 2, device=device)[:, 0], torch.tensor([0, 4, 4, 15], device=device)
    options = {"mode": "sum", "include_last_offset": False, "padding_idx": None}
    found = kernels.pooled_rows(format, factors, index, offsets, weights, **options)
    matrix = format.rows(exact, torch.arange(format.inputs.size, device=index.device))
    expected = F.embedding_bag(index, matrix, offsets, mode="sum", per_sample_weights=weights.double())
    assert_same(found, expected, factors, exact, 1e-6)


@small
def test_the_first_bag_starts_at_0_whatever_its_offset_says(format, device):
    """torch's own kernel for CUDA takes it so, too; only on a CPU it can afford to look at the offset."""
    factors, exact = factors_of(format, device)
    index, options = random_index(format, device), {"mode": "mean", "include_last_offset": False, "padding_idx": None}
    found = kernels.pooled_rows(format, factors, index, torch.tensor([3, 7], device=device), None, **options)
    matrix = format.rows(exact, torch.arange(format.inputs.size, device=index.device))
    expected = F.embedding_bag(index, matrix, torch.tensor([0, 7], device=device), mode="mean")
    assert_same(found, expected, factors, exact, 1e-6)


@small
@pytest.mark.parametrize("distinct", [1, 3, 40])
def test_rows_asked_for_again_and_again(format, distinct, way, monkeypatch):
    """Where a table has one gradient alone, those of equal rows are added up before they get there."""
    monkeypatch.setattr(launch, "_ENTRIES_OF_COPIES", 0)
    factors, exact = factors_of(format, way)
    index = random_index(format, "cpu", distinct)[torch.randint(distinct, (40,))].to(way)
    assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 1e-6)


class Form:
    """A compiled kernel, and the arguments it was launched with."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """A kernel that compiles a new form for every launch it is asked for."""

    arg_names = ("table", "count", "size", "BLOCK", "WIDE")

    def __init__(self):
        self.forms = []

    def __getitem__(self, grid):
        def launched(table, count, size, **options):
            self.forms.append(Form())
            self.forms[-1][grid](table, count, size, options["BLOCK"], options["WIDE"])
            return self.forms[-1]

        return launched


def test_launches_of_the_same_kind_take_the_compiled_form_of_the_first(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # that of tensors on a CPU
    kernel, forms, table = Kernel(), {}, torch.zeros(64)
    options = {"WIDE": False, "BLOCK": 16, "num_warps": 4}  # Triton's own options are no arguments

    def run(table, count):
        launch.start(kernel, (count, 1, 1), [table], count, (7,), options, forms)

    run(table, 3)
    run(table[4:], 5)  # 16 bytes further
    assert len(kernel.forms) == 1
    assert [(grid, arguments[1:]) for grid, arguments in kernel.forms[0].launches] == [
        ((3, 1, 1), (3, 7, 16, False)),
        ((5, 1, 1), (5, 7, 16, False)),
    ]
    run(table[1:], 3)  # 4 bytes further
    run(table.bfloat16(), 3)
    assert len(kernel.forms) == 3


@small
def test_every_layout_gives_the_same_rows(format, way):
    """Not only the cheapest: all ways to cut the modes into tables."""
    factors, exact = factors_of(format, way)
    index = random_index(format, way, 12)
    found = list(layouts.layouts(format))
    assert len(found) >= 3
    for layout in found:
        assert_same(
            dispatch._run(programs.program(layout, format), format, factors, index),
            format.rows(exact, index),
            factors,
            exact,
            1e-6,
        )


@pytest.mark.parametrize("format", [format for format in EVERY if format.name != "CP"], ids=NAMES[4:])
def test_tables_are_found_in_the_memory_of_their_factors(format):
    """By its strides every table is what permuting and reshaping its factor gives."""
    factors = format.random_factors(1.0)
    for layout in layouts.layouts(format):
        program = programs.program(layout, format)
        tables = [recipe.source(factors).contiguous() for recipe in program.tables]
        seen = chain._seen(tables, chain.Chain(program.places, program.sizes, program.strides))
        for recipe, table in zip(program.tables, seen, strict=True):
            torch.testing.assert_close(table, recipe.form(factors), rtol=0, atol=0)


@small
def test_factors_with_gaps_between_their_entries(format, way):
    factors, exact = factors_of(format, way)
    spread = [torch.stack([factor.detach()] * 2, -1)[..., 0].requires_grad_() for factor in factors]
    assert not any(factor.is_contiguous() for factor in spread)
    index = random_index(format, way)
    assert_same(kernels.rows(format, spread, index), format.rows(exact, index), spread, exact, 1e-6)


def test_when_rows_are_taken_one_by_one():
    sizes = tiles.Sizes(4, 16, 4, 16, 8)
    assert tiles.takes_single_rows(sizes, tiles.MOST_SINGLE_ROWS)
    assert not tiles.takes_single_rows(sizes, tiles.MOST_SINGLE_ROWS + 1)
    assert not tiles.takes_single_rows(sizes._replace(before=64), 1)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("sizes", [(1, 16, 4, 16, 8), (2, 16, 8, 16, 8), (4, 32, 2, 32, 4), (4, 16, 4, 16, 8)])
def test_a_tile_of_a_single_row_has_no_more_slots_than_a_product_needs(sizes, backward):
    assert tiles.single_row_tiles(tiles.Sizes(*sizes), backward).rows == 16 // sizes[0]


@pytest.mark.parametrize("kind", KINDS, ids=SMALL_NAMES)
@pytest.mark.parametrize(
    ("inputs", "outputs", "ranks"),
    [
        ((4, 5, 6), (2, 3, 2), (1,) * 6),
        ((9, 8), (10, 16), (17, 33, 20, 9)),
        ((3, 2, 4), (1, 150, 1), (17, 5, 3, 2, 4, 1)),
    ],
    ids=["rank 1", "large ranks", "wide"],
)
def test_ranks_and_widths_beyond_one_tile(kind, inputs, outputs, ranks, way):
    format = make(kind, inputs, outputs, ranks)
    factors, exact = factors_of(format, way)
    index = random_index(format, way, 20)
    assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 2e-6)


@small
def test_bfloat16(format, way):
    factors, exact = factors_of(format, way, torch.bfloat16)
    index = random_index(format, way)
    rows = kernels.rows(format, factors, index)
    assert rows.dtype == torch.bfloat16
    assert_same(rows, format.rows(exact, index), factors, exact, 2e-2)


@pytest.mark.parametrize("kind", KINDS, ids=SMALL_NAMES)
def test_more_rows_than_32_bits_count(kind, way):
    format = make(kind, (1300, 1500, 1400), (2, 3, 2))
    factors, exact = factors_of(format, way)
    index = random_index(format, way, 9)
    assert index.max() > 2**31
    assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 1e-6)


@small
def test_after_pruning(format, way):
    factors, _ = factors_of(format, way)
    keep = [torch.arange(0, max(1, group.size - 1)) for group in format.rank_groups]
    cut = [factor.detach().requires_grad_() for factor in format.restrict(factors, keep)]
    pruned = format.with_ranks([len(index) for index in keep])
    exact = [factor.detach().double().requires_grad_() for factor in cut]
    index = random_index(format, way)
    assert_same(kernels.rows(pruned, cut, index), pruned.rows(exact, index), cut, exact, 1e-6)


BAGS = {  # indices, offsets, include_last_offset, mode, weighted, padding_idx
    "2-D": ((4, 3), None, False, "sum", False, None),
    "2-D, mean, padding": ((4, 3), None, False, "mean", False, 4),
    "2-D, weights, padding": ((4, 3), None, False, "sum", True, 4),
    "offsets, weights": ((12,), [0, 3, 3, 7], False, "sum", True, None),
    "offsets, mean": ((12,), [0, 3, 3, 7], False, "mean", False, None),
    "last offset": ((12,), [0, 3, 7, 12], True, "mean", False, 4),
    "empty bags": ((12,), [0, 0, 0, 12, 12], False, "mean", False, 4),
    "no indices": ((0,), [0, 0], False, "mean", False, 4),
}


@small
@pytest.mark.parametrize("bags", BAGS.values(), ids=BAGS)
def test_bags(format, bags, way):
    shape, offsets, include_last_offset, mode, weighted, padding_idx = bags
    index = torch.randint(format.inputs.size, shape, device=way)
    if padding_idx is not None:  # a bag with some padding, and one of nothing else
        index.view(-1)[:4] = padding_idx
    offsets = None if offsets is None else torch.tensor(offsets, device=way)
    scale = torch.randn(shape, device=way) if weighted else None
    options = {"mode": mode, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
    factors, exact = factors_of(format, way)
    ours = kernels.pooled_rows(format, factors, index, offsets, scale, **options)
    weights = None if scale is None else scale.double()
    truth = F.embedding_bag(index, format.reconstruct(exact), offsets, per_sample_weights=weights, **options)
    assert_same(ours, truth, factors, exact, 1e-6)


def test_bags_that_are_left_to_torch(device):
    format, index = SMALL[0], torch.zeros(2, 3, dtype=torch.int64, device=device)
    like, scale = factors_of(format, device)[0][0], torch.ones(2, 3, device=device)
    assert kernels.can_pool(format, like, index, None, None, "mean")
    assert kernels.can_pool(format, like, index, None, scale, "sum")
    assert not kernels.can_pool(format, like, index, None, scale, "mean")
    assert not kernels.can_pool(format, like, index, None, scale[:1], "sum")
    assert not kernels.can_pool(format, like, index.view(-1), None, None, "sum")
    assert not kernels.can_pool(format, like, index, torch.tensor([0]), None, "sum")
    assert not kernels.can_pool(format, like.double(), index, None, None, "sum")
    scale.requires_grad_()
    assert not kernels.can_pool(format, like, index, None, scale, "sum")
    with torch.no_grad():
        assert kernels.can_pool(format, like, index, None, scale, "sum")


# When plain torch must do -------------------------------------------------------------------------


@small
def test_rows_one_by_one_elsewhere(format, device, monkeypatch):
    factors, _ = factors_of(format, device)
    index = random_index(format, device)
    assert dispatch.program_for(format, factors[0], len(index)) is not None
    monkeypatch.setitem(dispatch.LEAST_ROWS[device], format.name, len(index) + 1)
    assert dispatch.program_for(format, factors[0], len(index)) is None
    assert torch.equal(kernels.rows(format, factors, index), format.rows(factors, index))
    monkeypatch.setitem(dispatch.LEAST_ROWS, device, {})
    assert dispatch.program_for(format, factors[0], len(index)) is None


def test_where_triton_runs(monkeypatch):
    tensor = torch.zeros(3)
    monkeypatch.setattr(launch, "DEVICES", ("cpu",))
    assert launch.usable(tensor)
    assert not launch.usable(tensor.double())
    torch.use_deterministic_algorithms(True)
    try:
        assert not launch.usable(tensor)
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(launch, "DEVICES", ("xpu",))
    assert not launch.usable(tensor)


def test_tables_too_large_to_form_are_not():
    """Two modes of 50,000 and a rank of 200: no table of ten million entries, and no tile of 200 by 200."""
    format = make(KINDS[3], (50_000, 50_000), (16, 16), (300,))
    assert programs.best_program("TTM", format.inputs.dims, format.outputs.dims, (16,), 1024) is not None
    assert programs.best_program("TTM", format.inputs.dims, format.outputs.dims, (3000,), 1024) is None


@small
def test_a_kernel_that_fails_warns_once_and_plain_torch_takes_over(format, device, monkeypatch):
    def fail(*args):
        raise RuntimeError("first line\nno compiler was found")

    for module in (chain, product):
        monkeypatch.setattr(module, "launch_forward", fail)
    monkeypatch.setattr(launch, "_failed", False)
    factors, exact = factors_of(format, device)
    index = random_index(format, device)
    message = "Triton kernels cannot run here .RuntimeError: no compiler was found."
    with pytest.warns(RuntimeWarning, match=message) as caught:
        ours = kernels.rows(format, factors, index)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(ours, format.rows(exact, index), factors, exact, 1e-6)
        assert_same(kernels.rows(format, factors, index), format.rows(exact, index), factors, exact, 1e-6)
    assert not launch.usable(factors[0])


# As operators of torch ----------------------------------------------------------------------------


def chain_arguments(right=True, bags=False):
    tables = [torch.randn(5, 2, 3), torch.randn(6, 3, 2, 4 if right else 1), torch.randn(7, 4, 3)][: 2 + right]
    index = torch.randint(210, (11,))
    pooling = (torch.arange(11) // 4, torch.rand(11), 3) if bags else (None, None, 0)
    places = [42, 5, 7, 6, 1, 7][: 4 + 2 * right]
    group, order = (index // 7 % 6).to(torch.int16).sort()
    strides = [stride for table in tables for stride in table.stride()]
    numbers = (places, [2, 3, 2, 4, 3] if right else [2, 3, 2, 1, 1], strides)
    return index, order, group, [table.requires_grad_() for table in tables], numbers, pooling


def detached(x):
    return x.detach() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("bags", [True, False])
def test_the_operators_are_registered_correctly(right, bags, is_sorted):
    """The fake implementation, the schema and the gradient formula hold, by torch's own checks."""
    index, order, group, tables, numbers, pooling = chain_arguments(right, bags)
    rows = (index, order, group) if is_sorted else (index, None, None)
    missing = [None] * (not right)
    arguments = (*rows, *tables, *missing, *numbers, *pooling)
    torch.library.opcheck(torch.ops.rankfold.chain_rows.default, arguments)
    grad = torch.randn(3 if bags else 11, 12 if right else 4)
    arguments = (grad, *rows, *tables, *missing, *numbers, *pooling[:2])
    torch.library.opcheck(torch.ops.rankfold.chain_rows_backward.default, tuple(detached(x) for x in arguments))
    factors = [torch.randn(5, 6).requires_grad_(), torch.randn(7, 6).requires_grad_()]
    weight = torch.randn(6, 4).requires_grad_()
    torch.library.opcheck(
        torch.ops.rankfold.product_rows.default, (index, *factors, None, weight, [7, 5, 1, 7], *pooling)
    )


@pytest.mark.parametrize("entries", [0, 10**9], ids=["by groups", "row by row"])
@pytest.mark.parametrize("right", [True, False])
def test_gradients_of_the_twins_by_finite_differences(monkeypatch, right, entries):
    monkeypatch.setattr(reference, "_ENTRIES_OF_A_CALL", entries)
    index, order, group, tables, numbers, (bag, scale, total) = chain_arguments(right, bags=True)
    doubled = [table.detach().double().requires_grad_() for table in tables]
    pooling = (bag, scale.double(), total)
    for rows in ((index, order, group), (index, None, None)):
        assert torch.autograd.gradcheck(
            lambda *t, rows=rows: chain.chain_rows(*rows, *t, *[None] * (not right), *numbers, *pooling), doubled
        )
    factors = [torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 6, 7)]
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda w, *f: product.product_rows(index, *f, w, [42, 5, 7, 6, 1, 7], *pooling), [weight, *factors]
    )


@small
def test_compiled_without_graph_breaks(format, way):
    torch.compiler.reset()
    factors, exact = factors_of(format, way)
    compiled = torch.compile(lambda index, *f: kernels.rows(format, f, index), fullgraph=True, backend="aot_eager")
    for count in (7, 9):
        index = random_index(format, way, count)
        assert_same(compiled(index, *factors), format.rows(exact, index), factors, exact, 1e-6)


@pytest.mark.parametrize("entries", [0, 10**9], ids=["by groups", "row by row"])
def test_chunks_of_the_twins(monkeypatch, entries):
    index, order, _, tables, (places, *_), pooling = chain_arguments()
    grad = torch.randn(11, 12)
    whole = reference.chain_rows(index, order, tables, places, *pooling)
    gradients = reference.chain_rows_backward(grad, index, order, tables, places, *pooling[:2])
    monkeypatch.setattr(reference, "_CHUNK_ROWS", 4)
    monkeypatch.setattr(reference, "_ENTRIES_OF_A_CALL", entries)
    torch.testing.assert_close(reference.chain_rows(index, order, tables, places, *pooling), whole)
    for ours, truth in zip(
        reference.chain_rows_backward(grad, index, order, tables, places, *pooling[:2]), gradients, strict=True
    ):
        torch.testing.assert_close(ours, truth)


def test_rankfold_needs_no_triton():
    """Importing the package, and using an embedding on the CPU, leaves Triton alone."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, rankfold as rf\n"
        "rf.Embedding(100, 8, config=rf.TTM(2))(torch.tensor([3])).sum().backward()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
