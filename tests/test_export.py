"""An exported file computes the posterior mean, for any batch, and holds nothing else."""

import logging
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models.resnet import ResNet
from onnx import numpy_helper
from torch import nn

import rankfold as rf
from rankfold.bayesian_tensor import tensors_of
from rankfold.export import ExportError, export_onnx, export_program, onnx_file
from rankfold.export.int8 import to_bytes
from rankfold.export.program import checked_inputs, silence
from rankfold.pruning.cutting import cut_dead_ranks

CONFIGS = {"cp": rf.CP(8), "tucker": rf.Tucker(4), "tt": rf.TT(6), "ttm": rf.TTM(6)}
# what a file may hold beyond its numbers, in bytes for every tensorized layer: the graph
GRAPH_BYTES = 2200


class EveryLayer(nn.Module):
    """All layers side by side, one output each; sizes that need padding, and both ways to convolve."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(61, 50)
        self.embedding = nn.Embedding(997, 32, padding_idx=3)
        self.bag = nn.EmbeddingBag(997, 32, mode="sum")
        self.padded_bag = nn.EmbeddingBag(997, 32, padding_idx=3)
        self.conv1 = nn.Conv1d(16, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding="valid")

    def forward(self, x, index, signal, image):
        bags = self.bag(index), self.padded_bag(index)
        return self.linear(x), self.embedding(index), *bags, self.conv1(signal), self.conv2(image)


def every_input(batch):
    index = torch.randint(997, (batch, 7))
    index[0, :3] = 3
    index[-1] = 3  # a bag of nothing but padding
    return torch.randn(batch, 61), index, torch.randn(batch, 16, 9), torch.randn(batch, 16, 9, 9)


def pruned(model):
    """Cut the second rank of every group; the model stays in training mode."""
    dead = {n: [torch.arange(g.size) == 1 for g in t.format.rank_groups] for n, t in tensors_of(model).items()}
    cut_dead_ranks(model, dead)
    return model


def tensorized(model, config):
    return pruned(rf.tensorize_(model, config, lambda module, name: True))


def truth(model, inputs):
    """The posterior mean by torch.nn layers in float64."""
    exact = rf.to_dense(model).double().eval()
    with torch.no_grad():
        return exact(*(x.double() if x.is_floating_point() else x for x in inputs))


def run(path, inputs):
    session = onnxruntime.InferenceSession(path)
    names = [entry.name for entry in session.get_inputs()]
    return [torch.from_numpy(y) for y in session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))]


def assert_close(found, expected, tolerance=2e-6):
    found, expected = ([y] if isinstance(y, torch.Tensor) else list(y) for y in (found, expected))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance * float(b.abs().max()))


def initializers(path):
    return {array.name: numpy_helper.to_array(array) for array in onnx.load(path).graph.initializer}


def operators(path):
    return {node.op_type for node in onnx.load(path).graph.node}


def mean_parameters(model):
    return sum(p.numel() for name, p in model.named_parameters() if "log_std" not in name)


# Every layer in every format ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=CONFIGS)
def exported(request, tmp_path_factory):
    torch.manual_seed(0)
    model = tensorized(EveryLayer(), CONFIGS[request.param])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path_factory.mktemp("export") / "new" / "every.onnx"
    return model, before, export_onnx(model, path, every_input(5))


@pytest.mark.parametrize("batch", [1, 5, 23])
def test_every_layer_gives_its_posterior_mean_at_every_batch_size(exported, batch):
    model, _, file = exported
    inputs = every_input(batch)
    assert_close(run(file.path, inputs), truth(model, inputs))


def test_the_file_holds_the_factors_and_nothing_of_training(exported):
    model, _, file = exported
    arrays = initializers(file.path)
    assert not [name for name in arrays if "log_std" in name or "variance" in name]
    assert file.num_parameters == mean_parameters(model) == rf.accounting(model).total.final_parameters
    floats = sum(array.size for array in arrays.values() if array.dtype == np.float32 and array.size > 1)
    assert floats == file.num_parameters
    assert file.num_bytes == file.path.stat().st_size
    assert file.num_bytes < 4 * file.num_parameters + GRAPH_BYTES * len(tensors_of(model))


def test_the_batch_is_the_only_open_dimension(exported):
    graph = onnx.load(exported[2].path).graph
    for value in (*graph.input, *graph.output):
        first, *rest = value.type.tensor_type.shape.dim
        assert first.dim_param == "batch"
        assert all(dim.dim_value > 0 for dim in rest)


@pytest.mark.parametrize("kind", [rf.CP, rf.Tucker, rf.TT, rf.TTM])
@pytest.mark.parametrize("bad", [1_000, 1_000_000, -1])
def test_a_program_with_a_table_refuses_rows_beyond_its_folding(kind, bad):
    table = rf.Embedding(1_000, 8, config=kind(2, in_dims=(10, 100)))
    program = export_program(table, torch.tensor([[1], [2]])).module()
    with pytest.raises(IndexError, match="out of range"):
        program(torch.tensor([[3], [bad]]))


@pytest.mark.parametrize("kind", [rf.Embedding, rf.EmbeddingBag])
def test_a_program_keeps_the_dtype_of_its_table_where_autocast_is_on(kind):
    layer, index = kind(997, 32, config=CONFIGS["ttm"]), torch.randint(997, (4, 3))
    program = export_program(layer, index).module()
    with torch.autocast("cpu", torch.bfloat16):
        rows = program(index)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, layer.eval()(index), rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_was(exported):
    model, before, _ = exported
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_program_takes_any_batch_and_holds_the_means_alone():
    model = tensorized(EveryLayer(), rf.Tucker(4))
    program = export_program(model, every_input(2))
    for batch in (1, 2, 9):
        inputs = every_input(batch)
        assert_close(program.module()(*inputs), truth(model, inputs))
    assert sum(value.numel() for value in program.state_dict.values()) == mean_parameters(model)
    assert not [name for name in program.state_dict if "log_std" in name or "variance" in name]


# Whole models ------------------------------------------------------------------------------------------


class BagOfWords(nn.Module):
    """A text classifier for sentences of one length."""

    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(500, 32, padding_idx=0)
        self.hidden = nn.Linear(32, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, tokens):
        return self.head(self.hidden(self.words(tokens)).relu())


class Sentences(nn.Module):
    """A classifier that reads word after word."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(200, 16, padding_idx=0)
        self.reader = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens):
        return self.head(self.reader(self.words(tokens))[0].mean(1))


def with_statistics(model):
    """Batch norm has seen something."""
    model.train()(torch.randn(32, 3, 8, 8))
    return model


WHOLE = {
    "images": (lambda: with_statistics(ResNet()), rf.TT(6), lambda b: torch.randn(b, 3, 8, 8)),
    "words": (BagOfWords, rf.TTM(6), lambda b: torch.randint(500, (b, 12))),
    "sentences": (Sentences, rf.TTM(4), lambda b: torch.randint(200, (b, 6))),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_give_their_posterior_mean(name, tmp_path):
    make, config, inputs = WHOLE[name]
    model = tensorized(make(), config)
    file = export_onnx(model, tmp_path / "whole.onnx", inputs(3))
    x = inputs(8)
    assert_close(run(file.path, [x]), truth(model, [x]), tolerance=1e-5)
    assert 0 <= file.difference < 1e-5
    assert file.rounding == 0.0
    assert file.num_bytes < 4 * file.num_parameters + GRAPH_BYTES * len(tensors_of(model))


def test_dense_export_has_plain_operators(tmp_path):
    model = tensorized(BagOfWords(), rf.TTM(6))
    file = export_onnx(model, tmp_path / "dense.onnx", torch.randint(500, (3, 12)), layout="dense")
    x = torch.randint(500, (8, 12))
    assert_close(run(file.path, [x]), truth(model, [x]), tolerance=1e-5)
    assert file.num_parameters == rf.accounting(model).total.dense_parameters
    assert "Einsum" not in operators(file.path)
    assert tensors_of(model)


def test_a_single_layer_can_be_exported_and_exporters_say_nothing(tmp_path, capfd):
    layer = rf.Linear(40, 30, config=rf.CP(3))
    file = export_onnx(layer, tmp_path / "layer.onnx", torch.randn(1, 40))  # an example of one does not fix the batch
    assert capfd.readouterr() == ("", "")
    x = torch.randn(7, 40)
    assert_close(run(file.path, [x]), truth(layer, [x]))


def test_a_model_without_tensors_can_be_exported():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.9))
    program = export_program(model, torch.randn(2, 6))
    x = torch.randn(3, 6)
    assert_close(program.module()(x), truth(model, [x]))


def test_inference_by_point_factors_is_exported_too():
    layer = rf.Linear(40, 30, config=rf.TT(3, inference="map"))
    program = export_program(layer, [torch.randn(4, 40)])
    x = torch.randn(7, 40)
    assert_close(program.module()(x), truth(layer, [x]))


# int8 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [rf.CP(6), rf.Tucker(6), rf.TT(6), rf.TTM(6)], ids=["CP", "Tucker", "TT", "TTM"])
def test_int8_is_computed_in_float32(config, tmp_path):
    """The file gives what the rounded weights give: onnxruntime must not round the input as well."""
    torch.manual_seed(0)
    model = rf.tensorize_(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), config)
    small = export_onnx(model, tmp_path / "small.onnx", torch.randn(8, 64), quantize="int8")
    assert small.difference < 1e-5


@pytest.mark.parametrize("layout", ["factors", "dense"])
@pytest.mark.parametrize("name", CONFIGS)
def test_int8_before_batch_norm(name, layout, tmp_path):
    """Optimized, a graph has a batch norm multiplied into the weight before it, which is then no longer the model's."""
    images = [nn.Conv2d(2, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)]
    dense = nn.Sequential(*images, nn.Flatten(), nn.Linear(32, 24), nn.BatchNorm1d(24))
    model = rf.tensorize_(dense, CONFIGS[name], ["3"])
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.1, 4.0)
    x = torch.randn(3, 2, 5, 5)
    file = export_onnx(model, tmp_path / "small.onnx", x, layout=layout, quantize="int8")
    assert file.difference < 1e-5
    assert file.rounding < 0.05
    with torch.no_grad():
        expected = model.eval()(x)
    (found,) = run(file.path, [x])
    assert (found - expected).norm() < 0.05 * expected.norm()


def test_int8_is_a_third_of_the_size_and_close(tmp_path):
    model = rf.tensorize_(nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)), rf.TT(20))
    x = torch.randn(64, 784)
    small = export_onnx(model, tmp_path / "small.onnx", x, quantize="int8")
    assert small.num_parameters == mean_parameters(model)
    assert small.num_bytes < 4 * small.num_parameters / 3
    arrays = initializers(small.path)
    assert sum(a.size for a in arrays.values() if a.dtype == np.int8) > 0.95 * small.num_parameters
    expected = truth(model, [x])
    change = float((run(small.path, [x])[0].double() - expected).square().sum() / expected.square().sum()) ** 0.5
    assert 0 < change < 0.03
    assert small.rounding == pytest.approx(change, rel=0.01)


@pytest.mark.parametrize("shape", [(16, 40), (20, 4, 7, 20), (1, 300, 1), (128, 2)])
def test_rounding_is_at_most_half_a_step_and_chooses_the_better_scales(shape):
    weight = torch.randn(shape) * torch.linspace(0.01, 1.0, shape[1])[:, *[None] * (len(shape) - 2)]
    values, scale, axis = stored = to_bytes(weight)
    steps = scale if axis is None else scale.reshape([-1 if n == axis else 1 for n in range(len(shape))])
    assert values.dtype == torch.int8
    assert bool(((stored.restored() - weight).abs() <= 0.5001 * steps).all())
    assert scale.numel() <= max(1, weight.numel() / 16)
    if shape == (16, 40):
        assert axis == 1  # the axis along which the magnitudes differ


def test_zeros_stay_zeros():
    assert not to_bytes(torch.zeros(8, 40)).restored().any()


# What goes wrong ---------------------------------------------------------------------------------------

LAYER = rf.Linear(8, 6, config=rf.TTM(2))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), r"batch as their first dimension.*\[\]"),
        (torch.tensor(1.0), r"first dimension.*\[\(\)\]"),
        ((torch.ones(2, 8), torch.ones(3, 8)), r"\[\(2, 8\), \(3, 8\)\]"),
        (torch.ones(0, 8), "at least 1"),
    ],
)
def test_examples_without_a_batch_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        export_program(LAYER, inputs)


def test_inputs_that_are_no_tensors_are_refused():
    with pytest.raises(TypeError, match="got int among them"):
        checked_inputs([torch.ones(2), 3])


def test_what_the_model_itself_refuses_is_its_own_error():
    with pytest.raises(ValueError, match="expected 8 input features"):
        export_program(LAYER, torch.ones(2, 9))


@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        (torch.full((4, 3), 1_000), IndexError, "index 1000 is out of range: valid indices are 0 to 999"),
        (torch.ones(4, 3), TypeError, "indices must be int32 or int64, got torch.float32"),
    ],
)
@pytest.mark.parametrize("kind", [rf.Embedding, rf.EmbeddingBag])
def test_an_example_of_indices_is_checked(kind, example, error, message):
    with pytest.raises(error, match=message):
        export_program(kind(1_000, 8, config=rf.TTM(2)), example)


class Stubborn(nn.Module):
    """Fixes its batch."""

    def __init__(self):
        super().__init__()
        self.layer = rf.Linear(8, 6, config=rf.TTM(2))

    def forward(self, x):
        return self.layer(x).reshape(4, -1)


def test_a_model_that_fixes_its_batch_is_refused():
    with pytest.raises(ExportError, match=r"(?s)torch\.export cannot trace.*batch.*layout=.dense."):
        export_program(Stubborn(), torch.ones(4, 8))


def test_bags_by_offsets_are_refused():
    bag = rf.EmbeddingBag(50, 8, config=rf.TTM(2))
    with pytest.raises(ValueError, match=r"indices \(B, N\) and no offsets"):
        export_program(bag, (torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2])))


def test_an_unknown_quantization_is_refused(tmp_path):
    with pytest.raises(ValueError, match="quantize must be None or 'int8', got 'int4'"):
        export_onnx(LAYER, tmp_path / "x.onnx", torch.ones(2, 8), quantize="int4")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}.*pip install 'rankfold\[export\]'") as caught:
        export_onnx(LAYER, tmp_path / "x.onnx", torch.ones(2, 8))
    assert caught.value.name == package


def test_weights_beyond_2_gb_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_MAX_BYTES", 100)
    with pytest.raises(ExportError, match="at most 2 GB"):
        export_onnx(LAYER, tmp_path / "x.onnx", torch.ones(2, 8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda y: y * 1.001 if len(y) == 1 else y, "differ by 1.0e-03 of the largest output for a batch of 1"),
        (lambda y: y[:1], r"shape \[\(1, 6\)\] for a batch of 2"),
    ],
)
def test_a_file_that_computes_something_else_is_not_written(wrong, message, tmp_path, monkeypatch):
    path = tmp_path / "x.onnx"
    path.write_text("what was there")
    right = onnx_file._run
    monkeypatch.setattr(onnx_file, "_run", lambda *arguments: [wrong(y) for y in right(*arguments)])
    with pytest.raises(ExportError, match=message):
        export_onnx(LAYER, path, torch.ones(2, 8))
    assert path.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("layout", ["factors", "halves", "dense"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_parameters_that_are_not_finite_are_named_and_not_written(value, layout, tmp_path):
    model = nn.Sequential(rf.Embedding(9, 8, config=rf.CP(2)), nn.Linear(8, 6))
    with torch.no_grad():
        model[1].bias[2] = value
    message = r"(?s)nothing was exported: the model holds NaN or infinity in 1\.bias\. Load an earlier checkpoint"
    with pytest.raises(ExportError, match=message) as caught:
        export_onnx(model, tmp_path / "x.onnx", torch.zeros(2, dtype=torch.long), layout=layout, quantize="int8")
    assert "float()" not in str(caught.value)
    with pytest.raises(ExportError, match=message):
        export_program(model, torch.zeros(2, dtype=torch.long), layout=layout)
    assert not list(tmp_path.iterdir())


def test_factors_that_are_not_finite_are_named(tmp_path):
    layer = rf.Linear(8, 6, config=rf.TTM(2))
    with torch.no_grad():
        layer.tensor.factors.mean[1].fill_(torch.nan)
    with pytest.raises(ExportError, match=r"in tensor\.factors\.mean\.1\. "):
        export_onnx(layer, tmp_path / "x.onnx", torch.ones(2, 8))


def test_an_example_that_is_not_finite_is_not_blamed_on_the_precision(tmp_path):
    with pytest.raises(ExportError, match="gives NaN or infinity for the example") as caught:
        export_onnx(LAYER, tmp_path / "x.onnx", torch.full((2, 8), torch.nan))
    assert "float()" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["folder", "file/x.onnx", "file/deep/x.onnx", "/proc/x.onnx"])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_traced(place, tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("keep me")
    monkeypatch.setattr(onnx_file, "trace", lambda *_: pytest.fail("traced"))
    remedy = "name a file in it" if place == "folder" else "choose another place"
    with pytest.raises(OSError, match=rf"{place} cannot be written \(.*\); .*{remedy}"):
        export_onnx(LAYER, tmp_path / place, torch.ones(2, 8))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file", tmp_path / "folder"]
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_folder_is_made_only_for_a_file_that_is_written(tmp_path):
    with pytest.raises(ValueError, match="expected 8 input features"):
        export_onnx(LAYER, tmp_path / "deep" / "x.onnx", torch.ones(2, 9))
    assert not list(tmp_path.iterdir())
    assert export_onnx(LAYER, tmp_path / "deep" / "x.onnx", torch.ones(2, 8)).path.exists()


def test_numbers_that_onnxruntime_does_not_know_are_refused(tmp_path):
    layer = rf.Linear(8, 6, config=rf.TTM(2), dtype=torch.bfloat16)
    with pytest.raises(ExportError, match=r"(?s)cannot load.*export model\.float\(\)"):
        export_onnx(layer, tmp_path / "x.onnx", torch.ones(2, 8, dtype=torch.bfloat16))
    assert not list(tmp_path.iterdir())


def test_silence_ends():
    with silence():
        logging.getLogger("any").error("not shown")
    assert not logging.root.manager.disable


@pytest.mark.parametrize("config", [rf.CP(3), rf.Tucker(2), rf.TT(3), rf.TTM(3)], ids=lambda c: type(c).__name__)
def test_halves_compute_the_same_with_fewer_operations(config, tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(rf.Linear(30, 21, config=config), nn.ReLU(), nn.Linear(21, 4)).eval()
    x = torch.randn(5, 30)
    small = export_onnx(model, tmp_path / "factors.onnx", x)
    fast = export_onnx(model, tmp_path / "halves.onnx", x, layout="halves")
    assert fast.difference < 1e-5  # checked against the model when it was written
    program = export_program(model, x, layout="halves")
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)
    if type(config) is rf.TTM:
        assert fast.num_parameters == small.num_parameters
    else:
        assert "0.0.weight" in program.state_dict
        assert fast.num_parameters < 30 * 21 + 21 + 21 * 4 + 4


def test_a_layer_with_two_names_has_halves_by_both():
    shared = rf.Linear(30, 30, config=rf.CP(3))
    model = nn.Sequential(shared, nn.ReLU(), shared).eval()
    program = export_program(model, torch.randn(5, 30), layout="halves")
    assert not [name for name in program.state_dict if "factors" in name]


def test_a_layer_whose_halves_are_larger_than_its_weight_is_multiplied_out():
    model, x = rf.Linear(6, 6, config=rf.CP(max_rank=5)).eval(), torch.randn(2, 6)
    program = export_program(model, x, layout="halves")
    assert {name: tuple(value.shape) for name, value in program.state_dict.items()} == {"weight": (6, 6), "bias": (6,)}
    torch.testing.assert_close(program.module()(x), model(x))


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="layout must be one of factors, halves, dense, got 'small'"):
        export_program(rf.Linear(6, 6, config=rf.CP(max_rank=2)), torch.randn(2, 6), layout="small")


def test_halves_stand_in_where_a_module_reads_the_weight():
    """Attention takes the weight and bias of its output layer, and does not call it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = rf.tensorize_(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), rf.CP(4)).eval()
    x = torch.randn(2, 5, 64)
    program = export_program(model, x, layout="halves")
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)
