"""Linear against torch.nn.functional.linear with the rebuilt weight."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rankfold as rf
from rankfold.formats import base
from rankfold.layers import Embedding, Linear

CONFIGS = [rf.CP(6), rf.Tucker(3), rf.TT(4), rf.TTM(4)]
formats = pytest.mark.parametrize("config", CONFIGS, ids=["cp", "tucker", "tt", "ttm"])


@formats
@pytest.mark.parametrize("rebuild", [True, False], ids=["rebuild", "contract"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(23,), (4, 23), (2, 3, 23), (0, 23)], ids=str)
def test_outputs_and_gradients_match_torch(monkeypatch, config, rebuild, bias, shape):
    monkeypatch.setattr(base, "rebuilding_is_cheaper", lambda *_: rebuild)
    layer = Linear(23, 17, bias, dtype=torch.float64, config=config).eval()
    x = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    ours, truth = layer(x), F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)
    inputs = [x, *layer.tensor.factors.mean]
    weights = torch.randn_like(ours)
    gradients = [torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, truth)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


def test_arguments_stand_where_torch_has_them():
    layer = Linear(23, 17, False, "cpu", torch.float64, config=rf.TTM(4))
    assert layer.bias is None
    assert layer.weight.dtype == torch.float64


def test_initial_weights_and_biases_have_the_scale_of_torch():
    layer, dense = Linear(784, 512, config=rf.TTM(20)).eval(), nn.Linear(784, 512)
    assert layer.weight.std().item() == pytest.approx(dense.weight.std().item(), rel=0.05)
    assert layer.bias.std().item() == pytest.approx(dense.bias.std().item(), rel=0.1)
    assert layer.bias.abs().max() <= 1 / 784**0.5


def test_an_input_of_the_wrong_width_is_named():
    with pytest.raises(ValueError, match=r"expected 23 input features in the last dimension, got shape \(4, 22\)"):
        Linear(23, 17, config=rf.TTM(4))(torch.randn(4, 22))


@formats
def test_a_tied_layer_is_the_transpose_of_the_embedding(config):
    embedding = Embedding(23, 10, dtype=torch.float64, config=config).eval()
    head = Linear(10, 23, bias=False, dtype=torch.float64, config=config).eval()
    head.tie_(embedding.tensor, transposed=True)
    x = torch.randn(4, 10, dtype=torch.float64)
    torch.testing.assert_close(head(x), F.linear(x, embedding.weight))
    torch.testing.assert_close(head.weight, embedding.weight)


def test_the_linear_layer_of_transformers_is_taken_as_it_stores_its_weight():
    from transformers.pytorch_utils import Conv1D

    dense = Conv1D(17, 23).double()  # 23 inputs, 17 outputs
    layer = Linear.from_dense(dense, rf.TT(100), trained=True).eval()
    x = torch.randn(4, 23, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(x))


def test_repr_reads_like_torch():
    text = repr(Linear(784, 512, config=rf.TTM(20, in_dims=(28, 28), out_dims=(16, 32), inference="fixed")))
    assert text == "Linear(in_features=784, out_features=512, bias=True, TTM [28, 28] x [16, 32], ranks [20], fixed)"
