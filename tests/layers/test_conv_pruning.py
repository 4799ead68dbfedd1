"""Ranks of convolutions are cut while they train: the function stays, the optimizer follows, training goes on."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rankfold as rf
from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import TensorConfig
from rankfold.pruning import cut_dead_ranks

CONFIGS: list[TensorConfig] = [
    rf.CP(6, in_dims=(6,), out_dims=(8,)),
    rf.Tucker((4, 5, 4), in_dims=(6,), out_dims=(8,)),
    rf.TT((4, 5), in_dims=(6,), out_dims=(8,)),
    rf.TTM((4, 5), in_dims=(2, 3), out_dims=(4, 2)),
]
each_format = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
each_way = pytest.mark.parametrize("chain", [False, True], ids=["rebuilt", "chain"])


def network(config: TensorConfig) -> nn.Sequential:
    """A strided, padded convolution between dense ones, with batch norm, in float64."""
    torch.manual_seed(0)
    conv = rf.Conv2d(6, 8, 3, stride=2, padding=1, config=config)
    first, last = nn.Conv2d(3, 6, 3), nn.Conv2d(8, 2, 1)
    return nn.Sequential(first, nn.BatchNorm2d(6), nn.ReLU(), conv, nn.BatchNorm2d(8), nn.ReLU(), last).double()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    model.train()
    for _ in range(steps):
        loss = model(torch.randn(4, 3, 9, 9, dtype=torch.float64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.isfinite(loss)


@torch.no_grad()
def kill(tensor: BayesianTensor, k: int) -> list[torch.Tensor]:
    """Make rank k of every group carry nothing; returns which ranks are dead, group by group."""
    for group in tensor.format.rank_groups:
        for factor, axis in group.axes:
            tensor.factors.mean[factor].select(axis, k).zero_()
    return [torch.arange(group.size) == k for group in tensor.format.rank_groups]


@each_format
@each_way
def test_cutting_amid_training_keeps_the_function_and_the_optimizers_state(config, chain, monkeypatch):
    monkeypatch.setattr("rankfold.layers.conv.chain_is_cheaper", lambda *_: chain)
    model = network(config)
    optimizer = torch.optim.Adam(rf.param_groups(model))
    train(model, optimizer)
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    dead = {"3.tensor": kill(model[3].tensor, 1)}
    before = model.eval()(x)
    ranks = model[3].tensor.format.ranks
    assert cut_dead_ranks(model, dead, [optimizer]) is not None
    assert model[3].tensor.format.ranks == tuple(rank - 1 for rank in ranks)
    torch.testing.assert_close(model(x), before, rtol=1e-12, atol=1e-12)
    for p in model.parameters():
        assert optimizer.state[p]["exp_avg"].shape == p.shape
    train(model, optimizer)
    images = torch.randn(2, 6, 7, 7, dtype=torch.float64)
    torch.testing.assert_close(model[3].eval()(images), model[3].to_dense()(images))


NOISE = 0.5


def planted(config: TensorConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, and what a convolution makes of them, with noise."""
    torch.manual_seed(1)
    truth = rf.Conv2d(6, 8, 3, padding=1, config=config, bias=False).eval()
    x = torch.randn(32, 6, 5, 5)
    with torch.no_grad():
        y = truth(x)
        return x, y / y.std() + NOISE * torch.randn_like(y)


@pytest.mark.parametrize("format", [rf.CP, rf.TT])
def test_superfluous_ranks_of_a_convolution_are_cut_in_training(format):
    most, true, total, lr = 6, 2, 250, 3e-2
    x, y = planted(format(true, in_dims=(6,), out_dims=(8,)))
    model = rf.Conv2d(6, 8, 3, padding=1, config=format(most, in_dims=(6,), out_dims=(8,)))
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=lr))
    ranks = rf.RankDetermination(model, optimizer, num_data=len(x), total_steps=total, check_every=10)
    for step in range(total):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 2.0 * (1.0 - step / total))
        # −log p of an image, up to a constant: ‖y − ŷ‖² / 2σ²
        nll = (model(x) - y).square().sum((1, 2, 3)).mean() / (2.0 * NOISE**2)
        (nll + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
    assert all(true <= rank < most for rank in model.tensor.format.ranks)
    assert F.mse_loss(model.eval()(x), y) < 1.1 * NOISE**2
