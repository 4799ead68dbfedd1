"""Conv1d and Conv2d against torch.nn with the rebuilt kernel."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import rankfold as rf
from rankfold.layers import Conv1d, Conv2d

CONFIGS = [rf.CP(5), rf.Tucker(3), rf.TT(4), rf.TTM(4)]
formats = pytest.mark.parametrize("config", CONFIGS, ids=["cp", "tucker", "tt", "ttm"])


def assert_convolves_like_torch(layer, dense, x):
    """Same outputs as ``dense`` given the rebuilt kernel, and same gradients for input and factors."""
    layer.eval()
    x = x.requires_grad_()
    state = {"weight": layer.weight} | ({} if layer.bias is None else {"bias": layer.bias})
    ours, truth = layer(x), functional_call(dense, state, (x,))
    torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)
    inputs = [x, *layer.tensor.factors.mean]
    weights = torch.randn_like(ours)
    gradients = [torch.autograd.grad((y * weights).sum(), inputs) for y in (ours, truth)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


OPTIONS_2D = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (1, 2), "padding": (2, 0), "dilation": (2, 1)},
    {"padding": "same"},
    {"padding": "same", "dilation": (1, 3)},
    {"padding": "valid"},
    {"groups": 3},
    {"bias": False, "groups": 3, "padding": 1},
    *({"padding": (1, 2), "stride": 2, "padding_mode": mode} for mode in ("reflect", "replicate", "circular")),
    {"padding": "same", "padding_mode": "reflect", "dilation": 2},
    {"padding": "valid", "padding_mode": "circular"},
]


# torch says so itself of even kernels with padding='same'
even_kernels = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


@even_kernels
@formats
@pytest.mark.parametrize("options", OPTIONS_2D, ids=str)
@pytest.mark.parametrize("kernel_size", [(3, 3), (2, 3), (1, 1)], ids=str)
def test_conv2d_matches_torch(config, options, kernel_size):
    dense = nn.Conv2d(9, 15, kernel_size, **options, dtype=torch.float64)
    layer = Conv2d(9, 15, kernel_size, **options, dtype=torch.float64, config=config)
    assert_convolves_like_torch(layer, dense, torch.randn(2, 9, 8, 10, dtype=torch.float64))


OPTIONS_1D = [
    {},
    {"stride": 3, "padding": 2},
    {"dilation": 2, "groups": 2},
    {"padding": "same"},
    *({"padding": 2, "padding_mode": mode} for mode in ("reflect", "replicate", "circular")),
    {"padding": "same", "padding_mode": "circular", "dilation": 2},
]


@even_kernels
@formats
@pytest.mark.parametrize("options", OPTIONS_1D, ids=str)
@pytest.mark.parametrize("kernel_size", [1, 4])
def test_conv1d_matches_torch(config, options, kernel_size):
    dense = nn.Conv1d(10, 6, kernel_size, **options, dtype=torch.float64)
    layer = Conv1d(10, 6, kernel_size, **options, dtype=torch.float64, config=config)
    assert_convolves_like_torch(layer, dense, torch.randn(2, 10, 12, dtype=torch.float64))


@formats
@pytest.mark.parametrize(("channels", "out"), [(1, 1), (3, 7), (13, 11), (97, 61)])
def test_odd_channel_counts(config, channels, out):
    layer = Conv2d(channels, out, 3, dtype=torch.float64, config=config)
    dense = nn.Conv2d(channels, out, 3, dtype=torch.float64)
    assert layer.weight.shape == dense.weight.shape
    assert_convolves_like_torch(layer, dense, torch.randn(1, channels, 4, 4, dtype=torch.float64))


def test_some_channel_counts_are_padded():
    modes = Conv2d(97, 61, 3, config=rf.TTM(4)).tensor.format
    assert modes.inputs.padded_size > 97 * 9
    assert modes.inputs.dims[-1] == 9  # the kernel positions stay one mode


def test_kernel_positions_follow_the_channels():
    """A[c·K + k, o] is the kernel entry (o, c, k)."""
    matrix = torch.randn(4 * 6, 5, dtype=torch.float64)
    layer = Conv2d(4, 5, (2, 3), dtype=torch.float64, config=rf.TT(50), matrix=matrix).eval()
    expected = torch.empty(5, 4, 2, 3, dtype=torch.float64)
    for o, c, row, column in torch.cartesian_prod(*map(torch.arange, expected.shape)).tolist():
        expected[o, c, row, column] = matrix[c * 6 + row * 3 + column, o]
    torch.testing.assert_close(layer.weight, expected)


def test_unbatched_input():
    layer = Conv2d(3, 4, 3, padding=1, padding_mode="circular", config=rf.TTM(4)).eval()
    x = torch.randn(3, 6, 6)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


@pytest.mark.parametrize(("make", "shape"), [(Conv1d, (32, 64, 3)), (Conv2d, (32, 64, 3))])
def test_initial_kernel_has_the_standard_deviation_of_torch(make, shape):
    layer = make(*shape, config=rf.TTM(20)).eval()
    dense = getattr(nn, make.__name__)(*shape)
    assert layer.weight.std().item() == pytest.approx(dense.weight.std().item(), rel=0.1)


def test_arguments_are_checked_as_in_torch():
    with pytest.raises(ValueError, match="in_channels must be divisible by groups"):
        Conv2d(5, 4, 3, groups=2, config=rf.TTM(4))
    with pytest.raises(ValueError, match="padding='same' is not supported for strided convolutions"):
        Conv2d(4, 4, 3, padding="same", stride=2, config=rf.TTM(4))
    with pytest.raises(ValueError, match="padding_mode must be one of"):
        Conv2d(4, 4, 3, padding_mode="mirror", config=rf.TTM(4))


def test_another_layer_is_refused():
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Conv2d, got Conv1d"):
        Conv2d.from_dense(nn.Conv1d(3, 4, 3), rf.TTM(4))


def test_repr_reads_like_torch():
    text = repr(Conv2d(8, 16, 3, padding=1, groups=2, config=rf.TTM(4)))
    assert text.startswith("Conv2d(8, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), groups=2, TTM [")
