"""Embedding layers fetch and pool their rows by kernels, and give what torch.nn gives on the rebuilt table."""

import pytest
import torch
import torch.nn.functional as F
from kernels.cases import SMALL_NAMES, assert_close

import rankfold as rf
from rankfold.kernels import chain, product
from rankfold.layers import embedding

CONFIGS = [rf.CP(6), rf.Tucker(3), rf.TT(4), rf.TTM(4)]
# as many rows as are never worth rebuilding the table for
ROWS, WIDTH, PADDING = 997, 10, 5


@pytest.fixture
def launches(device, monkeypatch):
    """Counts forward launches, and keeps the CPU from its own way with repeated indices."""
    counted = []
    monkeypatch.setattr(embedding, "looks_for_repeats", lambda index: False)
    for module in (chain, product):
        launch = module.launch_forward
        monkeypatch.setattr(module, "launch_forward", lambda *args, run=launch: counted.append(1) or run(*args))
    return counted


def assert_same_gradients(layer, ours, truth):
    assert_close(ours, truth.double(), 1e-5)
    weights, parameters = torch.randn_like(ours), list(layer.tensor.factors.mean)
    mine = torch.autograd.grad((ours * weights).sum(), parameters)
    theirs = torch.autograd.grad((truth * weights).sum(), parameters)
    for gradient, true_gradient in zip(mine, theirs, strict=True):
        assert_close(gradient, true_gradient.double(), 1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=SMALL_NAMES)
def test_embedding(config, device, launches):
    layer = rf.Embedding(ROWS, WIDTH, PADDING, config=config, device=device).eval()
    index = torch.tensor([[0, PADDING, 996], [7, 7, 401]], device=device)
    assert_same_gradients(layer, layer(index), F.embedding(index, layer.weight, PADDING))
    assert len(launches) == 1


@pytest.mark.parametrize("config", CONFIGS, ids=SMALL_NAMES)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_embedding_bag(config, mode, device, launches):
    layer = rf.EmbeddingBag(ROWS, WIDTH, mode=mode, padding_idx=PADDING, config=config, device=device).eval()
    index = torch.tensor([[0, PADDING, 996], [7, 7, 401], [PADDING, PADDING, PADDING]], device=device)
    truth = F.embedding_bag(index, layer.weight, mode=mode, padding_idx=PADDING)
    assert_same_gradients(layer, layer(index), truth)
    assert len(launches) == 1


def test_rows_of_a_sample_use_one_sample(device, launches):
    """Bags in training mode draw the factors once: the same seed gives the same bags by kernel and by torch."""
    layer = rf.EmbeddingBag(ROWS, WIDTH, mode="sum", config=rf.TTM(4), device=device)
    index = torch.tensor([[1, 2], [3, 4]], device=device)
    torch.manual_seed(3)
    ours = layer(index)
    torch.manual_seed(3)
    truth = layer(index, per_sample_weights=torch.ones(2, 2, device=device, requires_grad=True))
    assert_close(ours, truth.detach().double(), 1e-5)
