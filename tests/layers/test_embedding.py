"""Embedding and EmbeddingBag against torch.nn.functional on the rebuilt table."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import rankfold as rf
from rankfold.layers import Embedding, EmbeddingBag
from rankfold.layers.row_checks import check_index

CONFIGS = [rf.CP(6), rf.Tucker(3), rf.TT(4), rf.TTM(4)]
FORMAT_NAMES = ["cp", "tucker", "tt", "ttm"]
formats = pytest.mark.parametrize("config", CONFIGS, ids=FORMAT_NAMES)

# 23 rows fold with padding, so indices 23 and up would still land inside the factors
ROWS, WIDTH = 23, 10


def gradients(output, inputs):
    """Gradients of a fixed scalar of ``output``."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return torch.autograd.grad((output * weights).sum(), inputs, allow_unused=True)


def assert_same_function(layer, ours, truth, *inputs):
    """``ours`` and ``truth`` agree, and so do their gradients with respect to the factors and ``inputs``."""
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)
    means = [*layer.tensor.factors.mean, *inputs]
    for mine, theirs in zip(gradients(ours, means), gradients(truth, means), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


# Embedding ----------------------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0,), (2, 0)])
@pytest.mark.parametrize("padding_idx", [None, 4, -1])
def test_rows_and_gradients_match_the_rebuilt_table(config, dtype, shape, padding_idx):
    layer = Embedding(ROWS, WIDTH, padding_idx, dtype=torch.float64, config=config).eval()
    index = torch.randint(ROWS, shape, dtype=dtype)
    assert_same_function(layer, layer(index), F.embedding(index, layer.weight, layer.padding_idx))


@pytest.mark.parametrize(("padding_idx", "row"), [(0, 0), (22, 22), (-1, 22), (-23, 0)])
def test_padding_rows_are_exactly_zero_and_learn_nothing(padding_idx, row):
    layer = Embedding(ROWS, WIDTH, padding_idx, config=rf.TTM(4))
    assert layer.padding_idx == nn.Embedding(ROWS, WIDTH, padding_idx).padding_idx == row
    output = layer(torch.tensor([row, row]))
    assert torch.equal(output, torch.zeros(2, WIDTH))
    assert torch.equal(layer.weight[row], torch.zeros(WIDTH))
    assert all(not grad.any() for grad in torch.autograd.grad(output.sum(), list(layer.parameters())))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_an_exported_table_keeps_its_dtype_where_autocast_is_on():
    layer, index = Embedding(10_000, WIDTH, config=rf.TTM(4)).eval(), torch.tensor([3, 9_999])
    exported = torch.export.export(layer, (index,)).module()
    with torch.autocast("cpu", torch.bfloat16):
        assert exported(index).dtype == layer(index).dtype == torch.float32


@pytest.mark.parametrize("bad", [-1, 23, 24, 2**40])
@pytest.mark.parametrize("make", [Embedding, EmbeddingBag])
def test_indices_out_of_range_are_named(make, bad):
    layer = make(ROWS, WIDTH, config=rf.TTM(4))
    assert layer.tensor.format.inputs.padded_size > 23  # 23 is a padded row, which must not be served
    with pytest.raises(IndexError, match=f"index {bad} is out of range: valid indices are 0 to 22"):
        layer(torch.tensor([[0, bad, 3]]))


@pytest.mark.parametrize("bad", [-1, 23])
def test_compiled_code_checks_indices_too(bad):
    layer = torch.compile(Embedding(ROWS, WIDTH, config=rf.TTM(4)), fullgraph=True, backend="aot_eager")
    assert layer(torch.tensor([0, 22])).shape == (2, WIDTH)
    with pytest.raises(RuntimeError, match="valid indices are 0 to 22"):
        layer(torch.tensor([0, bad]))


def test_indices_must_be_integers():
    with pytest.raises(TypeError, match=r"int32 or int64, got torch\.float32"):
        Embedding(ROWS, WIDTH, config=rf.TTM(4))(torch.tensor([1.0]))


def test_padding_idx_must_be_a_row():
    with pytest.raises(ValueError, match="between -23 and 22 for 23 embeddings, got 23"):
        Embedding(ROWS, WIDTH, 23, config=rf.TTM(4))


@formats
def test_ten_million_rows_cost_megabytes(config):
    config = {"CP": rf.CP(350), "Tucker": rf.Tucker(20), "TT": rf.TT(24), "TTM": rf.TTM(16)}[type(config).__name__]
    layer = Embedding(10_131_227, 128, config=config)
    assert sum(p.numel() * p.element_size() for p in layer.parameters()) < 32 * 2**20
    index = torch.randint(10_131_227, (2048,))
    index[:2] = torch.tensor([0, 10_131_226])
    with torch.autograd.graph.saved_tensors_hooks(count_bytes := ByteCount(), lambda x: x):
        output = layer(index)
    assert output.shape == (2048, 128)
    assert count_bytes.total < 2**30  # what backward keeps; the table would be 5 GB
    output.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())
    assert 0.7 < output.detach().std().item() < 1.3


class ByteCount:
    """Adds up what autograd keeps for backward."""

    def __init__(self):
        self.total = 0

    def __call__(self, tensor):
        self.total += tensor.numel() * tensor.element_size()
        return tensor


@pytest.mark.parametrize("make", [Embedding, EmbeddingBag])
def test_initial_rows_have_unit_standard_deviation_unless_asked(make):
    torch.manual_seed(0)
    assert make(1000, 64, config=rf.TTM(8)).eval().weight.std().item() == pytest.approx(1.0, rel=0.1)
    assert make(1000, 64, config=rf.TTM(8, init_std=0.02)).eval().weight.std().item() == pytest.approx(0.02, rel=0.1)
    dense = getattr(nn, make.__name__)(1000, 64)
    nn.init.normal_(dense.weight, std=0.05)
    assert make.from_dense(dense, rf.TTM(8)).eval().weight.std().item() == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("config", [rf.CP, rf.Tucker, rf.TT, rf.TTM])
@pytest.mark.parametrize("inference", ["bayes", "fixed"])
def test_rows_that_start_equal_part_with_the_first_step(config, inference):
    torch.manual_seed(0)
    layer = Embedding(90, 4, config=config(4, init_std=0.3, inference=inference, equal_rows=True))
    before = layer.eval().weight
    torch.testing.assert_close(before, before[:1].expand(90, 4))
    assert before.square().mean().sqrt().item() == pytest.approx(0.3, rel=1e-4)
    (layer.train()(torch.arange(90)) * torch.randn(90, 4)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert len(layer.eval().weight.detach().round(decimals=5).unique(dim=0)) == 90


@pytest.mark.parametrize("make", [Embedding, EmbeddingBag])
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"max_norm": 1.0}, "max_norm is not supported, got 1.0: rows share their factors"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True is not supported"),
        ({"sparse": True}, "sparse=True is not supported: the factors are small"),
    ],
)
def test_options_that_act_on_single_rows_are_refused(make, option, reason):
    with pytest.raises(ValueError, match=reason):
        make(ROWS, WIDTH, **option, config=rf.TTM(4))
    with pytest.raises(ValueError, match=reason):
        make.from_dense(getattr(nn, make.__name__)(ROWS, WIDTH, **option), rf.TTM(4))


def test_arguments_stand_where_torch_has_them():
    assert Embedding(ROWS, WIDTH, 3, None, 2.0, False, False, config=rf.TTM(4)).padding_idx == 3
    assert EmbeddingBag(ROWS, WIDTH, None, 2.0, False, "sum", False, config=rf.TTM(4)).mode == "sum"


# EmbeddingBag -------------------------------------------------------------------------------------

OFFSETS = {
    "2-D": ((4, 3), None, False),
    "offsets": ((12,), [0, 3, 3, 7], False),
    "last offset": ((12,), [0, 3, 7, 12], True),
    "empty bags": ((12,), [0, 0, 0, 12, 12], False),
    "no indices": ((0,), [0, 0], False),
}


@formats
@pytest.mark.parametrize("bags", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 4, -2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_bags_and_gradients_match_the_rebuilt_table(config, bags, mode, padding_idx, dtype):
    shape, offsets, include_last_offset = bags
    layer = EmbeddingBag(
        ROWS,
        WIDTH,
        mode=mode,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
        dtype=torch.float64,
        config=config,
    ).eval()
    options = {"mode": mode, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
    index = torch.randint(ROWS, shape, dtype=dtype)
    if index.numel() and padding_idx is not None:  # a bag with some padding, and one of nothing else
        index.view(-1)[:4] = padding_idx % ROWS
    offsets = None if offsets is None else torch.tensor(offsets, dtype=dtype)
    ours, truth = layer(index, offsets), F.embedding_bag(index, layer.weight, offsets, **options)
    assert_same_function(layer, ours, truth)


@formats
@pytest.mark.parametrize("padding_idx", [None, 4])
def test_per_sample_weights_and_their_gradients_match(config, padding_idx):
    layer = EmbeddingBag(ROWS, WIDTH, mode="sum", padding_idx=padding_idx, dtype=torch.float64, config=config).eval()
    index = torch.tensor([[4, 1, 2], [4, 4, 4], [22, 0, 4]])
    scale = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    ours = layer(index, per_sample_weights=scale)
    truth = F.embedding_bag(index, layer.weight, mode="sum", per_sample_weights=scale, padding_idx=layer.padding_idx)
    assert_same_function(layer, ours, truth, scale)


def test_per_sample_weights_need_the_sum():
    layer = EmbeddingBag(ROWS, WIDTH, mode="mean", config=rf.TTM(4))
    with pytest.raises(NotImplementedError, match="only supported for mode='sum'"):
        layer(torch.zeros(2, 2, dtype=torch.int64), per_sample_weights=torch.ones(2, 2))


@pytest.mark.parametrize(
    ("mode", "reason"), [("max", "mode='max' is not supported: bags are pooled linearly"), ("avg", "got 'avg'")]
)
def test_other_modes_are_refused(mode, reason):
    with pytest.raises(ValueError, match=reason):
        EmbeddingBag(ROWS, WIDTH, mode=mode, config=rf.TTM(4))


def test_a_dense_bag_of_maxima_is_refused():
    with pytest.raises(ValueError, match="mode='max' is not supported"):
        EmbeddingBag.from_dense(nn.EmbeddingBag(ROWS, WIDTH, mode="max"), rf.TTM(4))


@pytest.mark.parametrize("config", [rf.Tucker(3), rf.TT(4), rf.TTM(4)], ids=lambda c: type(c).__name__)
def test_a_second_derivative_is_right_or_an_error(config):
    """Many rows go through operators that have no second derivative: better none than a wrong one."""
    torch.manual_seed(0)
    table = rf.Embedding(90_000, 16, config=config, dtype=torch.float64).eval()
    factors = list(table.tensor.factors.mean)
    for size in (50, 7000):
        index = torch.randperm(90_000)[:size]
        expected = second_derivative(table.tensor.matrix()[index], factors)
        if size == 50:
            for ours, dense in zip(second_derivative(table(index), factors), expected, strict=True):
                torch.testing.assert_close(ours, dense)
        else:
            with pytest.raises(RuntimeError, match="differentiate twice"):
                second_derivative(table(index), factors)


def second_derivative(rows, factors):
    """Of the squared gradient of a sum of cubes."""
    first = torch.autograd.grad(rows.pow(3).sum(), factors, create_graph=True)
    for factor in factors:
        factor.grad = None
    sum(g.pow(2).sum() for g in first).backward()
    return [factor.grad for factor in factors]


def test_a_look_with_fake_tensors_leaves_nothing_behind():
    """As those take who ask how much memory a model on a GPU will need."""
    for _ in range(2):
        with FakeTensorMode():
            check_index(torch.zeros(5, dtype=torch.int64, device="cuda:0"), 10)
