"""What every tensorized layer must do, in every format, dtype and kind of inference."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D

import rankfold as rf
from rankfold import contraction
from rankfold.bayesian_tensor import BayesianTensor
from rankfold.layers import (
    Conv1d,
    Conv2d,
    Embedding,
    EmbeddingBag,
    Linear,
    Recurrent,
    TensorizedLayer,
    TensorizedModule,
)
from rankfold.posterior import GaussianPosterior


@dataclass(frozen=True)
class Case:
    """A tensorized class, the ``torch.nn`` layer it stands in for, and an input; awkward sizes throughout."""

    twin: type[TensorizedModule]
    dense: Callable[[], nn.Module]
    input: Callable[[], torch.Tensor]

    def layer(self, config, dtype=torch.float32):
        return self.twin.from_dense(self.dense().to(dtype), config)

    def example(self, dtype=torch.float32):
        value = self.input()
        return value.to(dtype) if value.is_floating_point() else value


CASES = {
    "linear": Case(Linear, lambda: nn.Linear(14, 11), lambda: torch.randn(2, 3, 14)),
    "linear of transformers": Case(Linear, lambda: Conv1D(11, 14), lambda: torch.randn(2, 3, 14)),
    "embedding": Case(Embedding, lambda: nn.Embedding(23, 10, 2), lambda: torch.randint(23, (4, 3))),
    "bag": Case(EmbeddingBag, lambda: nn.EmbeddingBag(23, 10, padding_idx=2), lambda: torch.randint(23, (4, 3))),
    "conv1d": Case(Conv1d, lambda: nn.Conv1d(5, 7, 3), lambda: torch.randn(2, 5, 6)),
    "conv2d": Case(Conv2d, lambda: nn.Conv2d(3, 7, (2, 3), stride=2), lambda: torch.randn(2, 3, 5, 6)),
    "lstm": Case(Recurrent, lambda: nn.LSTM(5, 6, bidirectional=True), lambda: torch.randn(4, 2, 5)),
    "gru": Case(Recurrent, lambda: nn.GRU(5, 6), lambda: torch.randn(4, 2, 5)),
}
FORMATS = {"cp": rf.CP(5), "tucker": rf.Tucker(2), "tt": rf.TT(3), "ttm": rf.TTM(3)}
INFERENCES = ["bayes", "map", "fixed"]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
formats = pytest.mark.parametrize("config", FORMATS.values(), ids=FORMATS)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
inferences = pytest.mark.parametrize("inference", INFERENCES)


def result(layer, *inputs):
    """The output of any layer, without the hidden state of a recurrent one."""
    output = layer(*inputs)
    return output[0] if isinstance(output, tuple) else output


def tensors_of(layer):
    return [module for module in layer.modules() if isinstance(module, BayesianTensor)]


def distance(ours, truth):
    """Relative error in norm, measured in float64."""
    ours, truth = ours.detach().double(), truth.detach().double()
    return ((ours - truth).norm() / truth.norm()).item()


def gradients(output, layer):
    weights = torch.linspace(-1, 1, output.numel()).reshape(output.shape).to(output.dtype)
    return torch.autograd.grad((output * weights).sum(), list(layer.parameters()))


# The same function as torch.nn ------------------------------------------------------------------------


@cases
@formats
@dtypes
@inferences
def test_eval_is_the_dense_layer_with_the_mean_weight(case, config, dtype, inference):
    layer = case.layer(replace(config, inference=inference), dtype).eval()
    example = case.example(dtype)
    exact = result(copy.deepcopy(layer).double().to_dense().eval(), case_input := widen(example))
    output = result(layer, example)
    assert output.dtype == dtype
    assert distance(output, exact) < TOLERANCE[dtype]
    assert distance(result(layer.to_dense().eval().double(), case_input), exact) < TOLERANCE[dtype]


def widen(example):
    return example.double() if example.is_floating_point() else example


@cases
@formats
def test_a_trained_layer_is_kept_at_full_rank(case, config):
    dense = case.dense().double().eval()
    layer = case.twin.from_dense(dense, replace(config, max_rank=40), trained=True).eval()
    example = case.example(torch.float64)
    assert distance(result(layer, example), result(dense, example)) < 1e-4  # CP's least squares is the coarsest


@cases
def test_a_layer_on_the_meta_device_gives_a_real_one_of_the_default_scale(case):
    torch.manual_seed(3)
    twin = case.twin.from_dense(case.dense().to("meta"), rf.TTM(8))
    assert not any(tensor.is_meta for tensor in (*twin.parameters(), *twin.buffers()))
    for name, parameter in twin.to_dense().named_parameters():
        if "weight" in name:
            assert parameter.std().item() == pytest.approx(case.dense().get_parameter(name).std().item(), rel=0.35)


@cases
@formats
def test_weight_has_the_layout_of_torch(case, config):
    layer = case.layer(config)
    if isinstance(layer, TensorizedLayer):
        assert layer.weight.shape == case.dense().weight.shape
    assert type(layer.to_dense()) is type(case.dense())
    assert {name: p.shape for name, p in layer.to_dense().named_parameters()} == {
        name: p.shape for name, p in case.dense().named_parameters()
    }


@cases
def test_another_layer_is_refused(case):
    wrong = nn.Linear(4, 4) if case.twin is not Linear else nn.Conv2d(3, 3, 3)
    with pytest.raises(TypeError, match=rf"expected a torch.nn.*, got {type(wrong).__name__}; .*tensorize_"):
        case.twin.from_dense(wrong, rf.CP(2))


@cases
def test_the_name_of_a_format_is_no_config(case):
    with pytest.raises(TypeError, match=r"a config must be an instance such as rankfold.TTM\(max_rank=20\), got 'ttm'"):
        case.twin.from_dense(case.dense(), "ttm")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Linear(4, 4, config="ttm"),
        lambda: Embedding(4, 4, config="ttm"),
        lambda: EmbeddingBag(4, 4, config="ttm"),
        lambda: Conv1d(4, 4, 3, config="ttm"),
        lambda: Conv2d(4, 4, 3, config="ttm"),
    ],
)
def test_the_name_of_a_format_makes_no_layer(make):
    with pytest.raises(TypeError, match=r"a config must be an instance .*, got 'ttm'"):
        make()


# Gradients --------------------------------------------------------------------------------------------


@cases
@formats
@inferences
def test_gradients_have_the_strides_of_their_parameters(case, config, inference):
    layer = case.layer(replace(config, inference=inference)).train()
    result(layer, case.example()).square().mean().backward()
    for parameter in layer.parameters():  # DDP copies, and warns, where they differ
        assert parameter.grad.stride() == parameter.stride()


@cases
@formats
def test_gradients_match_finite_differences(case, config):
    """Of every parameter, log-stds included: with the noise held fixed, the output is a smooth function."""
    layer = case.layer(config, torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)
    example = case.example(torch.float64)

    def function(*parameters):
        torch.manual_seed(0)
        return result(lambda x: functional_call(layer, dict(zip(names, parameters, strict=True)), (x,)), example)

    assert torch.autograd.gradcheck(function, values, fast_mode=True)


@cases
@formats
@dtypes
@inferences
def test_training_reaches_every_parameter(case, config, dtype, inference):
    layer = case.layer(replace(config, inference=inference), dtype)
    example = case.example(dtype)
    for gradient, parameter in zip(gradients(result(layer, example), layer), layer.parameters(), strict=True):
        assert gradient.dtype == parameter.dtype
        assert bool(gradient.isfinite().all())
        assert bool(gradient.any())


@cases
@formats
def test_only_the_bayesian_mode_samples(case, config):
    example = case.example()
    for inference, samples in (("bayes", True), ("map", False), ("fixed", False)):
        layer = case.layer(replace(config, inference=inference))
        assert torch.equal(result(layer, example), result(layer, example)) != samples
        assert any(isinstance(module, GaussianPosterior) for module in layer.modules()) == samples
        assert all(tensor.has_prior == (inference != "fixed") for tensor in tensors_of(layer))


@cases
@formats
def test_checkpointing_recomputes_the_same_noise(case, config):
    layer, example = case.layer(config), case.example()
    torch.manual_seed(5)
    plain = gradients(result(layer, example), layer)
    torch.manual_seed(5)
    recomputed = gradients(result(lambda x: checkpoint(layer, x, use_reentrant=False), example), layer)
    for ours, truth in zip(recomputed, plain, strict=True):
        torch.testing.assert_close(ours, truth)


# State ------------------------------------------------------------------------------------------------


@cases
@formats
def test_forward_writes_nothing(case, config):
    layer, example = case.layer(config), case.example()
    before = copy.deepcopy(layer.state_dict())
    result(layer, example)
    result(layer, example)
    after = layer.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@cases
@formats
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_equal_and_independent(case, config, duplicate):
    layer, example = case.layer(config).eval(), case.example()
    twin = duplicate(layer)
    assert repr(twin) == repr(layer)
    assert torch.equal(result(twin, example), result(layer, example))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert bool(result(layer, example).any())


@cases
@formats
@inferences
def test_state_travels_with_its_ranks(case, config, inference):
    """A state of smaller ranks, through a file, into a layer of larger ones."""
    source = case.layer(replace(config, inference=inference, max_rank=2)).eval()
    target = case.layer(replace(config, inference=inference, max_rank=4)).eval()
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True))
    example = case.example()
    assert torch.equal(result(target, example), result(source, example))
    assert [t.format.ranks for t in tensors_of(target)] == [t.format.ranks for t in tensors_of(source)]


# Precision --------------------------------------------------------------------------------------------


@cases
@formats
def test_bfloat16_spares_variances_and_log_stds(case, config):
    layer = case.layer(config).to(torch.bfloat16)
    for name, value in layer.state_dict().items():
        expected = torch.float32 if "log_std" in name or "variance" in name else torch.bfloat16
        assert value.dtype == expected, name
    output = result(layer, case.example(torch.bfloat16))
    assert output.dtype == torch.bfloat16
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(output, layer))


@cases
@formats
def test_autocast_gives_the_dtype_torch_gives(case, config):
    layer, example = case.layer(config), case.example()
    with torch.autocast("cpu", torch.bfloat16):
        output = result(layer, example)
        assert output.dtype == result(case.dense(), example).dtype
        mean = result(layer.eval(), example)
    assert distance(mean, result(layer, example)) < 0.05
    for gradient, parameter in zip(gradients(output, layer), layer.parameters(), strict=True):
        assert gradient.dtype == parameter.dtype == torch.float32
        assert bool(gradient.isfinite().all())


@cases
@formats
def test_dense_copies_are_the_same_under_autocast(case, config):
    layer = case.layer(config)
    with torch.autocast("cpu", torch.bfloat16):
        lowered = rf.to_dense(layer).state_dict()
    torch.testing.assert_close(lowered, rf.to_dense(layer).state_dict(), rtol=0.0, atol=0.0)


# torch.compile ----------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiling(test):
    """Start and end with an empty compiler; torch 2.11 warns about itself when that is first loaded."""
    test = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")(test)
    return pytest.mark.usefixtures("_fresh_compiler")(test)


def assert_compiles(layer, compiled, example):
    """With the same noise, outputs and gradients are those of the plain layer."""
    torch.manual_seed(7)
    ours = result(compiled, example)
    torch.manual_seed(7)
    truth = result(layer, example)
    torch.testing.assert_close(ours, truth)
    for mine, theirs in zip(gradients(ours, layer), gradients(truth, layer), strict=True):
        torch.testing.assert_close(mine, theirs)


@compiling
@pytest.mark.parametrize("case", [c for c in CASES.values() if c.twin is not Recurrent], ids=lambda c: c.twin.__name__)
@formats
def test_compiles_to_one_graph(case, config):
    layer = case.layer(config)
    assert_compiles(layer, torch.compile(layer, fullgraph=True, backend="aot_eager"), case.example())


@compiling
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's, at graph breaks
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_recurrent_layers_compile_around_their_kernel(name):
    """As with torch.nn, the recurrence itself stays one eager call."""
    layer = CASES[name].layer(rf.TTM(3))
    assert_compiles(layer, torch.compile(layer, backend="aot_eager"), CASES[name].example())


@compiling
@pytest.mark.parametrize("name", ["linear", "embedding"])
def test_batches_of_similar_size_share_a_graph(name):
    layer, backend = CASES[name].layer(rf.TTM(3)), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    for batch in (20, 21, 40, 64, 33):
        compiled(torch.randint(23, (batch,)) if name == "embedding" else torch.randn(batch, 14))
    assert backend.frame_count == 1


@formats
def test_torch_func_transforms_them(config):
    """Gradients by torch.func are those of autograd, in training mode too, of the output and of the KL."""
    torch.manual_seed(0)
    layer, x = rf.Linear(20, 10, config=config, dtype=torch.float64), torch.randn(8, 20, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        torch.manual_seed(1)
        return functional_call(WithKL(layer), {f"layer.{k}": v for k, v in parameters.items()}, (x,))

    found = torch.func.grad(loss)(parameters, x)
    torch.manual_seed(1)
    expected = torch.autograd.grad(WithKL(layer)(x), list(parameters.values()))
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[name], gradient)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), randomness="same")(parameters, x[:, None])
    for n in range(len(x)):
        alone = torch.func.grad(loss)(parameters, x[n : n + 1])
        for name, gradient in each.items():
            torch.testing.assert_close(gradient[n], alone[name])


class WithKL(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).square().sum() + self.layer.tensor.kl()


@formats
def test_embeddings_can_be_mapped(config):
    table = rf.Embedding(5000, 12, padding_idx=3, config=config, dtype=torch.float64).eval()
    for size in (7, 1000):
        index = torch.randint(5000, (6, size))
        torch.testing.assert_close(torch.vmap(table)(index), table(index))
    with pytest.raises(IndexError, match="index 5000 is out of range"):
        torch.vmap(table)(torch.tensor([[0, 1], [5000, 2]]))


@formats
@pytest.mark.parametrize("kind", [rf.Embedding, rf.EmbeddingBag])
@pytest.mark.parametrize("entries", [None, 500])
def test_embeddings_have_gradients_by_torch_func(config, kind, entries, monkeypatch):
    """Also with as many rows as kernels are for, and more than are contracted at once."""
    if entries is not None:
        monkeypatch.setattr(contraction, "_CHUNK_ENTRIES", entries)
    size = 5000 if entries is None else 10**6  # so large that it is not rebuilt
    table = kind(size, 12, config=config, dtype=torch.float64).eval()
    parameters, index = dict(table.named_parameters()), torch.randint(size, (1000, 7))

    def loss(parameters):
        return functional_call(table, parameters, (index,)).square().sum()

    found = torch.func.grad(loss)(parameters)
    means = {name: parameter for name, parameter in parameters.items() if "mean" in name}
    expected = torch.autograd.grad(table(index).square().sum(), list(means.values()))
    for name, gradient in zip(means, expected, strict=True):
        torch.testing.assert_close(found[name], gradient)


@formats
def test_layers_are_made_where_the_context_says(config):
    with torch.device("meta"):
        layers = [
            rf.Linear(64, 32, config=config),
            rf.Conv2d(8, 8, 3, config=config),
            rf.Embedding(99, 8, config=config),
        ]
    for layer in layers:
        assert all(tensor.is_meta for tensor in (*layer.parameters(), *layer.buffers()))
