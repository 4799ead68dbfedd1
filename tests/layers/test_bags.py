"""Repeated rows, rebuilt tables and early pooling change what is computed, never the result."""

import pytest
import torch
import torch.nn.functional as F

import rankfold as rf
from rankfold.formats import CP, TensorTrain, TensorTrainMatrix, Tucker
from rankfold.kernels import dispatch
from rankfold.layers import Embedding, EmbeddingBag, embedding
from rankfold.layers.bags import pooled_before_outputs, split
from rankfold.shapes import Folding

INPUTS, OUTPUTS = Folding(50, (3, 4, 5)), Folding(13, (2, 7))
FORMATS = {
    "cp": CP(INPUTS, OUTPUTS, (6,)),
    "tucker": Tucker(INPUTS, OUTPUTS, (2, 3, 4, 2, 3)),
    "tt": TensorTrain(INPUTS, OUTPUTS, (3, 5, 4, 2)),
    "ttm": TensorTrainMatrix(INPUTS, Folding(13, (2, 1, 7)), (3, 4)),
}
CONFIGS = {"cp": rf.CP(6), "tucker": rf.Tucker(3), "tt": rf.TT(4), "ttm": rf.TTM(4)}
ROWS, WIDTH = 211, 10


@pytest.mark.parametrize("least", [0, 1000], ids=["tables", "one by one"])
@pytest.mark.parametrize("name", FORMATS)
def test_pooling_before_the_shared_factors_is_pooling_after_them(name, least, monkeypatch):
    format = FORMATS[name]
    monkeypatch.setitem(dispatch.LEAST_ROWS["cpu"], format.name, least)
    factors = [factor.requires_grad_() for factor in format.random_factors(1.0)]
    index, weights = torch.randint(50, (9,)), torch.randn(4, 9, dtype=torch.float64)
    ours = pooled_before_outputs(format, factors, index, lambda rows: weights @ rows)
    truth = weights @ format.reconstruct(factors)[index]
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)
    direction = torch.randn_like(truth)
    for mine, theirs in zip(
        torch.autograd.grad(ours, factors, direction), torch.autograd.grad(truth, factors, direction), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cp", ([0, 1, 2], [3, 4])),
        ("tucker", ([0, 1, 2, 5], [3, 4])),
        ("tt", ([0, 1, 2], [3, 4])),
        ("ttm", ([0, 1, 2], [])),
    ],
)
def test_only_what_has_no_input_mode_can_wait(name, expected):
    assert split(FORMATS[name]) == expected


def gradients(layer, output):
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return torch.autograd.grad((output * weights).sum(), list(layer.tensor.factors.mean))


def assert_same(layer, ours, truth):
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(gradients(layer, ours), gradients(layer, truth), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.fixture(params=["with", "without"])
def repeats(request, monkeypatch):
    """With repeats looked for, as on a CPU, and without, as on an accelerator."""
    if request.param == "without":
        monkeypatch.setattr(embedding, "looks_for_repeats", lambda index: False)


@pytest.mark.usefixtures("repeats")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [5, 300])  # too few for a rebuilt table, and enough
def test_embedding_of_repeated_words(name, size):
    layer = Embedding(ROWS, WIDTH, padding_idx=3, dtype=torch.float64, config=CONFIGS[name]).eval()
    index = torch.randint(12, (2, size))
    assert_same(layer, layer(index), F.embedding(index, layer.weight, padding_idx=3))


@pytest.mark.usefixtures("repeats")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 3, 100])  # 100 never occurs
def test_bags_of_repeated_words(name, mode, padding):
    layer = EmbeddingBag(ROWS, WIDTH, mode=mode, padding_idx=padding, dtype=torch.float64, config=CONFIGS[name]).eval()
    index = torch.randint(12, (4, 30), dtype=torch.int32)
    index[3] = 3  # a bag of nothing but padding, if it is padding
    truth = F.embedding_bag(index, layer.weight, mode=mode, padding_idx=padding)
    assert_same(layer, layer(index), truth)
    flat, offsets = index.reshape(-1), torch.tensor([0, 7, 7, 80], dtype=torch.int32)
    truth = F.embedding_bag(flat, layer.weight, offsets, mode=mode, padding_idx=padding)
    assert_same(layer, layer(flat, offsets), truth)


def test_a_row_that_occurs_often_is_computed_once(monkeypatch):
    asked = []
    rows = rf.formats.TensorFormat.rows
    monkeypatch.setattr(rf.formats.TensorFormat, "rows", lambda *args: asked.append(len(args[2])) or rows(*args))
    Embedding(10_000, WIDTH, config=rf.TTM(4))(torch.tensor([[7, 8, 7], [7, 7, 8]]))
    assert asked == [2]


def test_bags_are_the_same_for_one_sample_of_the_posterior():
    bag = EmbeddingBag(ROWS, WIDTH, mode="sum", config=rf.CP(5))
    torch.manual_seed(3)
    found = bag(torch.tensor([[1, 1, 2]]))
    torch.manual_seed(3)
    table = bag.weight
    torch.testing.assert_close(found[0], 2 * table[1] + table[2])
