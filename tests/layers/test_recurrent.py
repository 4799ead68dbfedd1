"""Recurrent against torch.nn with the rebuilt weights."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import rankfold as rf
from rankfold.bayesian_tensor import BayesianTensor
from rankfold.layers import Recurrent
from rankfold.layers.recurrent import one_block

CONFIGS = [rf.CP(5), rf.Tucker(3), rf.TT(4), rf.TTM(4)]
formats = pytest.mark.parametrize("config", CONFIGS, ids=["cp", "tucker", "tt", "ttm"])

IN, HIDDEN, STEPS, BATCH = 6, 8, 5, 3

MODULES = {
    "lstm": (nn.LSTM, {}),
    "lstm proj": (nn.LSTM, {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
    "lstm no bias": (nn.LSTM, {"bias": False, "proj_size": 5}),
    "lstm deep": (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "gru": (nn.GRU, {}),
    "gru deep": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False}),
    "rnn": (nn.RNN, {"num_layers": 2}),
    "rnn relu": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
}
modules = pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)


def dense_layer(module, dtype=torch.float64):
    make, options = module
    return make(IN, HIDDEN, **options, dtype=dtype)


def hidden_states(dense, batch):
    """A random hx for ``dense``, in the form it wants; ``batch`` is a tuple, empty without a batch."""
    rows = dense.num_layers * (2 if dense.bidirectional else 1)
    h = torch.randn(rows, *batch, dense.proj_size or HIDDEN, dtype=torch.float64, requires_grad=True)
    c = torch.randn(rows, *batch, HIDDEN, dtype=torch.float64, requires_grad=True)
    return (h, c) if dense.mode == "LSTM" else h


def tensors_of(value):
    """All floating-point tensors in a nest of tuples."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    return [tensor for part in value if part is not None for tensor in tensors_of(part)]


def assert_runs_like_torch(layer, dense, input, hx):
    """Same results as ``dense`` given the rebuilt weights, and same gradients for everything."""
    layer.eval()
    dense.eval()
    ours, truth = layer(input, hx), functional_call(dense, layer.weights(), (input, hx))
    assert type(ours[0]) is type(truth[0])
    assert type(ours[1]) is type(truth[1])
    means = [p for name, p in layer.named_parameters() if ".mean." in name]
    inputs = [*means, *(x for x in tensors_of((input, hx)) if x.requires_grad)]
    gradients = []
    for results in (ours, truth):
        loss = sum((x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)).sum() for x in tensors_of(results))
        gradients.append(torch.autograd.grad(loss, inputs))
    for mine, theirs in zip(tensors_of((ours, gradients[0])), tensors_of((truth, gradients[1])), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@formats
@modules
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("given", [True, False], ids=["hx", "no hx"])
def test_results_and_gradients_match_torch(config, module, batched, given):
    dense = dense_layer(module)
    layer = Recurrent(dense, config)
    shape = (STEPS, IN) if not batched else (BATCH, STEPS, IN) if dense.batch_first else (STEPS, BATCH, IN)
    input = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    hx = hidden_states(dense, (BATCH,) if batched else ()) if given else None
    assert_runs_like_torch(layer, dense, input, hx)


@formats
@modules
@pytest.mark.parametrize("given", [True, False], ids=["hx", "no hx"])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [2, 5, 4]], ids=["sorted", "unsorted"])
def test_packed_sequences_match_torch(config, module, given, lengths):
    dense = dense_layer(module)
    layer = Recurrent(dense, config)
    sequences = [torch.randn(n, IN, dtype=torch.float64, requires_grad=True) for n in lengths]
    packed = pack_sequence(sequences, enforce_sorted=lengths == sorted(lengths, reverse=True))
    assert_runs_like_torch(layer, dense, packed, hidden_states(dense, (BATCH,)) if given else None)


def test_a_packed_result_unpacks():
    layer = Recurrent(nn.GRU(IN, HIDDEN, batch_first=True), rf.TTM(4)).eval()
    padded, lengths = torch.randn(BATCH, STEPS, IN), torch.tensor([2, 5, 4])
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    output, found = pad_packed_sequence(layer(packed)[0], batch_first=True)
    assert torch.equal(found, lengths)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(output[row, :length], layer(padded[row, :length])[0])


def test_every_matrix_is_a_tensor_and_every_bias_a_vector():
    dense = nn.LSTM(IN, HIDDEN, num_layers=2, bidirectional=True, proj_size=3)
    layer = Recurrent(dense, rf.TTM(4))
    assert {*layer.tensors, *layer.vectors} == {name for name, _ in dense.named_parameters()}
    assert set(layer.tensors) == {name for name, p in dense.named_parameters() if p.dim() == 2}
    for name, tensor in layer.tensors.items():
        assert isinstance(tensor, BayesianTensor)
        assert (tensor.format.outputs.size, tensor.format.inputs.size) == dense.get_parameter(name).shape


@formats
@modules
def test_trained_weights_survive_at_full_rank(config, module):
    dense = dense_layer(module).eval()
    full = {"CP": rf.CP(64), "Tucker": rf.Tucker(64), "TT": rf.TT(64), "TTM": rf.TTM(64)}[type(config).__name__]
    layer = Recurrent.from_dense(dense, full, trained=True).eval()
    input = torch.randn(STEPS, IN, dtype=torch.float64)
    torch.testing.assert_close(layer(input), dense(input), rtol=1e-4, atol=1e-4)


@modules
def test_to_dense_gives_the_same_module_back(module):
    dense = dense_layer(module)
    layer = Recurrent(dense, rf.TTM(4)).eval()
    back = layer.to_dense()
    assert type(back) is type(dense)
    assert back.extra_repr() == dense.extra_repr()
    input = torch.randn(STEPS, IN, dtype=torch.float64)
    torch.testing.assert_close(back(input), layer(input))


def test_dropout_between_layers_is_that_of_torch():
    dense = nn.LSTM(IN, HIDDEN, num_layers=2, dropout=0.5)
    layer = Recurrent(dense, rf.TTM(4, inference="map"))
    input = torch.randn(STEPS, BATCH, IN)
    torch.manual_seed(1)
    ours = layer(input)
    torch.manual_seed(1)
    torch.testing.assert_close(ours, functional_call(dense, layer.weights(), (input,)))
    assert not torch.equal(layer(input)[0], layer(input)[0])
    layer.eval()
    assert torch.equal(layer(input)[0], layer(input)[0])


def test_dropout_of_a_single_layer_warns_only_where_torch_does():
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        dense = nn.LSTM(IN, HIDDEN, dropout=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = Recurrent(dense, rf.TTM(4))
        repr(layer)
        assert layer.to_dense().dropout == 0.5


def test_a_module_on_the_meta_device_will_do():
    layer = Recurrent.from_dense(nn.LSTM(IN, HIDDEN, device="meta"), rf.TTM(4))
    assert layer(torch.randn(STEPS, IN))[0].shape == (STEPS, HIDDEN)


def test_initial_weights_have_the_standard_deviation_of_torch():
    dense = nn.LSTM(64, 128)
    for name, weight in Recurrent(dense, rf.TTM(16)).eval().weights().items():
        assert weight.std().item() == pytest.approx(dense.get_parameter(name).std().item(), rel=0.1)


@pytest.mark.parametrize("bias", [True, False])
def test_one_block_holds_the_same_weights_matrices_first(bias):
    """On a GPU the kernels get their weights so; values and gradients must not change."""
    dense = nn.LSTM(IN, HIDDEN, num_layers=2, proj_size=3, bias=bias)
    weights = Recurrent(dense, rf.TTM(4)).eval().weights()
    views = one_block(weights)
    starts = {name: view.storage_offset() for name, view in zip(weights, views, strict=True)}
    assert len({view.untyped_storage().data_ptr() for view in views}) == 1
    entries = sum(weight.numel() for name, weight in weights.items() if "weight" in name)
    assert starts.get("bias_ih_l0", entries) == entries
    # two biases of 4 · HIDDEN gates for each of two layers, there or not
    assert views[0].untyped_storage().nbytes() == 4 * (entries + 2 * 2 * 4 * HIDDEN)
    for (name, plain), view in zip(weights.items(), views, strict=True):
        torch.testing.assert_close(plain, view)
        (gradient,) = torch.autograd.grad(view.square().sum(), weights[name], retain_graph=True)
        torch.testing.assert_close(gradient, 2 * plain)


def test_wrong_shapes_are_named():
    layer = Recurrent(nn.LSTM(IN, HIDDEN), rf.TTM(4))
    with pytest.raises(ValueError, match=r"expected input of shape \(\*, \*, 6\).*got \(5, 3, 7\)"):
        layer(torch.randn(STEPS, BATCH, 7))
    state = torch.zeros(1, 4, HIDDEN)
    with pytest.raises(ValueError, match=r"expected hx of shape \[\(1, 3, 8\), \(1, 3, 8\)\], got \[\(1, 4, 8\)"):
        layer(torch.randn(STEPS, BATCH, IN), (state, state))
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.LSTM, GRU or RNN, got Linear"):
        Recurrent(nn.Linear(3, 4), rf.TTM(4))


def test_code_written_for_torch_may_flatten_parameters():
    layer = Recurrent(nn.LSTM(IN, HIDDEN), rf.TTM(4))
    before = copy.deepcopy(layer.state_dict())
    layer.flatten_parameters()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_repr_names_every_matrix():
    text = repr(Recurrent(nn.GRU(IN, HIDDEN, batch_first=True), rf.TTM(4, inference="map")))
    assert text.startswith("Recurrent(GRU, 6, 8, batch_first=True, map\n  (weight_ih_l0): TTM [2, 3] x [6, 4], ranks")
