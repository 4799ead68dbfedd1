"""A kernel as three small ones: the same function as the rebuilt kernel."""

import pytest
import torch

import rankfold as rf
from rankfold.config import TensorConfig
from rankfold.convolution import chain_is_cheaper, stages

CONFIGS: list[TensorConfig] = [
    rf.CP(4, in_dims=(2, 3), out_dims=(2, 4)),
    rf.CP(5),
    rf.Tucker((2, 3, 4, 2, 3), in_dims=(2, 3), out_dims=(2, 4)),
    rf.TT((3, 4, 5, 2), in_dims=(2, 3), out_dims=(2, 4)),
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=str)


@each_config
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": "same"},
        {"padding": (2, 1), "padding_mode": "circular"},
        {"bias": False},
    ],
    ids=str,
)
def test_the_chain_equals_the_rebuilt_kernel(
    config: TensorConfig, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with channel counts that need padding: 5 in six, 7 in eight."""
    layer = rf.Conv2d(5, 7, (3, 2), config=config, dtype=torch.float64, **options).eval()
    x = torch.randn(2, 5, 9, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for chain in (False, True):
        monkeypatch.setattr("rankfold.layers.conv.chain_is_cheaper", lambda *_, chain=chain: chain)
        y = layer(x)
        layer.zero_grad()
        (grad,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
        y.square().sum().backward()
        results.append([y, grad, *[p.grad.clone() for p in layer.tensor.factors.mean]])
    for rebuilt, chained in zip(*results, strict=True):
        torch.testing.assert_close(chained, rebuilt)


def test_one_dimension_and_no_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = rf.Conv1d(6, 4, 3, config=rf.TT(3), dtype=torch.float64).eval()
    x = torch.randn(6, 11, dtype=torch.float64)
    expected = layer.to_dense()(x)
    monkeypatch.setattr("rankfold.layers.conv.chain_is_cheaper", lambda *_: True)
    torch.testing.assert_close(layer(x), expected)


def test_ttm_does_not_fall_apart() -> None:
    format = rf.TTM(4, in_dims=(2, 3), out_dims=(2, 4)).build(6, 8, kernel_size=9)
    assert stages(format) is None
    assert not chain_is_cheaper(format, 9, 10_000, 10_000)


def test_the_chain_is_taken_when_ranks_are_low_and_left_when_they_are_high() -> None:
    low = rf.CP(16, in_dims=(128,), out_dims=(128,)).build(128, 128, kernel_size=9)
    high = rf.Tucker((128, 9, 128), in_dims=(128,), out_dims=(128,)).build(128, 128, kernel_size=9)
    assert chain_is_cheaper(low, 9, 16_384, 16_384)
    assert not chain_is_cheaper(high, 9, 16_384, 16_384)


def test_grouped_and_pointwise_convolutions_rebuild() -> None:
    x = torch.randn(1, 8, 5, 5)
    for layer in (rf.Conv2d(8, 8, 3, groups=2, config=rf.CP(2)), rf.Conv2d(8, 8, 1, config=rf.CP(2))):
        torch.testing.assert_close(layer.eval()(x), layer.to_dense()(x))


@each_config
@pytest.mark.parametrize("chain", [False, True])
def test_bfloat16_rounds_and_no_more(config: TensorConfig, chain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under autocast the output is bfloat16, the gradients of the factors are float32."""
    monkeypatch.setattr("rankfold.layers.conv.chain_is_cheaper", lambda *_: chain)
    torch.manual_seed(0)
    layer = rf.Conv2d(5, 7, 3, padding=1, config=config).eval()
    x = torch.randn(2, 5, 9, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    exact = layer(x)
    assert (y - exact).norm() < 0.02 * exact.norm()
    y.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.tensor.factors.mean)


@each_config
@pytest.mark.parametrize("chain", [False, True])
def test_channels_last_is_the_same_function(config: TensorConfig, chain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfold.layers.conv.chain_is_cheaper", lambda *_: chain)
    layer = rf.Conv2d(5, 7, 3, padding=1, config=config, dtype=torch.float64).eval()
    x = torch.randn(2, 5, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x))


def test_a_depthwise_middle_is_planned_as_slow() -> None:
    """At rank 256, 128 channels and 16×16 pixels rebuilding took 74 ms on a CPU, the chain 79; at 128, 73 and 33."""
    for rank, chain in ((128, True), (256, False)):
        format = rf.CP(rank, in_dims=(128,), out_dims=(128,)).build(128, 128, kernel_size=9)
        assert chain_is_cheaper(format, 9, 32 * 16 * 16, 32 * 16 * 16) == chain
