"""Planned contractions against ``torch.einsum``, and the plans themselves."""

import math
import time

import opt_einsum
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rankfold import contraction, contraction_order
from rankfold.contraction import contract, contract_rows, order_of_rows, plan, rebuilding_is_cheaper
from rankfold.contraction_order import left_to_right, steps_of


@st.composite
def networks(draw):
    """A random connected network: an equation without repeated letters in a term, and its operands' shapes."""
    letters = "acdefgh"[: draw(st.integers(2, 7))]
    size = {c: draw(st.integers(1, 4)) for c in letters}
    terms = ["".join(draw(st.permutations(sorted(draw(st.sets(st.sampled_from(letters), min_size=1, max_size=4))))))]
    for _ in range(draw(st.integers(0, 6))):
        chosen = draw(st.sets(st.sampled_from(letters), min_size=1, max_size=4))
        terms.append("".join(draw(st.permutations(sorted(chosen)))))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(sorted(draw(st.sets(st.sampled_from(used), max_size=3))))))
    return f"{','.join(terms)}->{output}", [tuple(size[c] for c in term) for term in terms]


@given(network=networks(), seed=st.integers(0, 999))
def test_contract_is_einsum(network, seed):
    equation, shapes = network
    torch.manual_seed(seed)
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    actual, expected = contract(equation, *operands), torch.einsum(equation, *operands)
    assert actual.shape == expected.shape
    torch.testing.assert_close(
        actual, expected, rtol=1e-9, atol=1e-9 * math.prod(max(1.0, float(x.norm())) for x in operands)
    )


@given(network=networks().filter(lambda network: not network[0].endswith("->")), seed=st.integers(0, 999))
def test_a_bias_goes_to_every_entry_of_the_first_axis(network, seed):
    equation, shapes = network
    torch.manual_seed(seed)
    operands = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    without = contract(equation, *operands)
    bias = torch.randn(math.prod(without.shape[1:]), dtype=torch.float64, requires_grad=True)
    found, truth = contract(equation, *operands, bias=bias), without + bias.view(without.shape[1:])
    torch.testing.assert_close(found, truth)
    upstream = torch.randn_like(truth)
    torch.testing.assert_close(*(torch.autograd.grad(y, bias, upstream) for y in (found, truth)))


@pytest.mark.parametrize(
    ("equation", "products"),
    [
        ("Bab,ar,br,cr,dr->Bcd", ["aten.addmm.default", "aten.mm.default"]),  # CP
        ("Bab,ar,rbs,scq,qd->Bcd", ["aten.addmm.default", *["aten.mm.default"] * 3]),  # TT
    ],
)
def test_a_bias_goes_into_the_last_product_and_nothing_is_copied_before_it(equation, products):
    size = dict.fromkeys("abcd", 8) | dict.fromkeys("rsqijkl", 3) | {"B": 64}
    operands = [torch.randn([size[c] for c in term]) for term in equation.split("->")[0].split(",")]
    with Operations() as operations:
        contract(equation, *operands, bias=torch.randn(64))
    names = [name for name, _ in operations.calls]
    assert sorted(name for name in names if "mm" in name) == products
    assert "aten.clone.default" not in names


class Operations(TorchDispatchMode):
    """The operations that run, and how many entries their results have."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.calls.append((str(function), result.numel()))
        return result


@pytest.mark.parametrize("equation", ["ab->ba", "ab->b", "ab->", "abc->ca"])
def test_one_operand_is_summed_and_transposed(equation):
    x = torch.randn([2, 3, 4][: len(equation.split("->")[0])], dtype=torch.float64)
    torch.testing.assert_close(contract(equation, x), torch.einsum(equation, x))


@given(batch=st.sampled_from([1, 2, 5, 64, 65]), limit=st.sampled_from([1, 7, 100, 10_000]))
def test_batches_in_chunks_are_einsum_with_the_same_gradients(batch, limit):
    equation = "Bqr,Brs,sit->Bqi"
    shapes = [(batch, 2, 3), (batch, 3, 4), (4, 5, 1)]
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    weights, rows = torch.randn(batch, 2, 5, dtype=torch.float64), torch.randint(batch, (batch,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contraction, "_CHUNK_ENTRIES", limit)
        actual = contract_rows(equation, operands[:2], [rows, rows.flip(0)], operands[2:])
        ours = torch.autograd.grad((actual * weights).sum(), operands)
    expected = torch.einsum(equation, operands[0][rows], operands[1][rows.flip(0)], operands[2])
    torch.testing.assert_close(actual, expected)
    for mine, truth in zip(ours, torch.autograd.grad((expected * weights).sum(), operands), strict=True):
        torch.testing.assert_close(mine, truth)


def test_chunks_recompute_instead_of_keeping(monkeypatch):
    """Between forward and backward, chunks keep the tables and indices, but no rows and no intermediate."""
    shapes = [(64, 8), (64, 9), (8, 9, 50)]
    operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
    kept = {}
    for limit in (1 << 24, 500):
        monkeypatch.setattr(contraction, "_CHUNK_ENTRIES", limit)
        storages = {}

        def pack(x, storages=storages):
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            output = contract_rows("Bq,Br,qri->Bi", operands[:2], [torch.arange(64)] * 2, operands[2:])
        kept[limit] = sum(storages.values())
    assert output.requires_grad
    assert kept[1 << 24] > sum(4 * math.prod(shape) for shape in shapes)
    assert kept[500] <= sum(4 * math.prod(shape) for shape in shapes) + 8 * 64


@given(network=networks())
def test_plans_end_in_the_output_and_cost_no_more_than_going_left_to_right(network):
    equation, shapes = network
    chosen = plan(equation, tuple(shapes))
    terms = equation.split("->")[0].split(",")
    assert chosen.steps[-1].equation.endswith("->" + equation.split("->")[1])
    assert len(chosen.steps) == max(1, len(terms) - 1)
    if len(terms) > 1:
        size = {c: n for term, shape in zip(terms, shapes, strict=True) for c, n in zip(term, shape, strict=True)}
        fixed = steps_of(left_to_right(len(terms)), terms, equation.split("->")[1], size)
        assert chosen.cost <= sum(step.cost for step in fixed)


def test_costs_count_the_operations_of_opt_einsum(monkeypatch):
    """With free bytes and steps, the cost of a plan is opt_einsum's own count of operations."""
    terms, shapes = ["Bab", "aq", "qbr", "ri"], ((64, 8, 9), (8, 5), (5, 9, 7), (7, 11))
    monkeypatch.setattr(contraction_order, "_OPERATIONS_PER_BYTE", 0.0)
    monkeypatch.setattr(contraction_order, "_OPERATIONS_PER_STEP", 0.0)
    equation = f"{','.join(terms)}->Bi"
    info = opt_einsum.contract_path(equation, *shapes, shapes=True)[1]
    ours = plan.__wrapped__(equation, shapes)
    assert ours.cost == pytest.approx(float(info.opt_cost), rel=0.02)
    assert ours.intermediates == 8 * 9 * 7 + 64 * (7 + 11)  # abr, Br and Bi


@pytest.mark.parametrize(
    ("equation", "clones"),
    [
        ("Bab,ai,bj->Bji", 1),  # the last mode first: a result is copied instead of the batch
        ("Bab,ar,rbs->Bs", 0),  # the cores first
    ],
)
def test_the_batch_is_not_copied_where_another_order_will_do(equation, clones):
    size = dict.fromkeys("ab", 32) | dict.fromkeys("ijrsc", 4) | {"B": 1024}
    operands = [torch.randn([size[c] for c in term]) for term in equation.split("->")[0].split(",")]
    with Operations() as operations:
        contract(equation, *operands)
    copied = [numel for name, numel in operations.calls if name == "aten.clone.default"]
    assert len(copied) == clones
    assert all(numel < operands[0].numel() for numel in copied)


@pytest.mark.parametrize("batch", [512, 4096])
def test_a_result_lies_as_it_is_wanted_whatever_the_batch(batch):
    """Plans are made for any batch, so none may count on a product for each of its entries."""
    size = dict.fromkeys("ab", 32) | dict.fromkeys("ij", 64) | dict.fromkeys("qrst", 20) | {"B": batch}
    terms = ["Bab", "aq", "br", "is", "jt", "qrst"]  # Tucker
    operands = [torch.randn([size[c] for c in term], requires_grad=True) for term in terms]
    with Operations() as operations:
        y = contract(f"{','.join(terms)}->Bij", *operands).reshape(batch, -1)
        y.backward(torch.ones_like(y))
    assert max(numel for name, numel in operations.calls if "clone" in name or "copy" in name) < y.numel()


@pytest.mark.parametrize(
    ("batch", "order"),
    [
        (64, "ba"),  # the batch is copied to another order of its modes, and no part of the weight
        (65536, "ab"),  # it is larger than the weight
    ],
)
def test_a_weight_is_formed_in_the_order_that_its_last_product_leaves(batch, order):
    shapes = ((1, 16, 16, 8), (8, 16, 16, 1))
    assert order_of_rows("ab", shapes, "qair,rbjs->abij", batch) == order
    weight = contract(f"qair,rbjs->{order}ij", *(torch.randn(shape) for shape in shapes))
    assert weight.is_contiguous() == (order == "ba")


def test_long_networks_are_planned_quickly():
    """Thirty-two cores, as in the norm of a train of sixteen: no exponential search."""
    letters = "acdefghijklmnopqr"
    terms = [letters[n] + letters[n + 1] for n in range(16)] * 2
    start = time.perf_counter()
    plan(f"{','.join(terms)}->", tuple((3, 3) for _ in terms))
    assert time.perf_counter() - start < 5.0


def test_batches_of_similar_size_share_a_plan():
    sizes = [contraction.planned_size(batch) for batch in (0, 1, 2, 4, 5, 16, 17, 1000)]
    assert sizes == [1, 1, 4, 4, 16, 16, 64, 1024]


def test_rebuilding_pays_for_large_batches_only():
    """A rank-1 matrix is never worth rebuilding; a full-rank one always, once the batch is large."""
    shapes = ((256, 1), (1, 256))
    assert not any(rebuilding_is_cheaper("Ba,ar,rb->Bb", shapes, "ar,rb->ab", batch) for batch in (1, 64, 4096, 65536))
    shapes = ((256, 256), (256, 256))
    assert not rebuilding_is_cheaper("Ba,ar,rb->Bb", shapes, "ar,rb->ab", 1)
    assert rebuilding_is_cheaper("Ba,ar,rb->Bb", shapes, "ar,rb->ab", 65536)
