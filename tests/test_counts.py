"""The counts of the paper's tables, with the corrected tensor settings, and of models of our own."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold.bayesian_tensor import BayesianTensor, replace_data
from rankfold.bayesian_vector import BayesianVector
from rankfold.counts import accounting, training_parameters
from rankfold.counts_table import bytes_text, ranks_text, report

INFERENCE = ("bayes", "map", "fixed")
FORMATS = (rf.CP, rf.Tucker, rf.TT, rf.TTM)


# The paper's tables ---------------------------------------------------------------------------------

SPLIT = {"in_dims": (28, 28), "out_dims": (16, 32)}, {"in_dims": (32, 16), "out_dims": (10,)}
PAIRS = {"in_dims": (4, 7, 4, 7), "out_dims": (4, 4, 8, 4)}, {"in_dims": (16, 32), "out_dims": (2, 5)}
MNIST = {
    "CP": ([rf.CP(50, **dims) for dims in SPLIT], 8_622, 17_344),
    "Tucker": ([rf.Tucker(20, **dims) for dims in SPLIT], 171_762, 343_664),
    "TT": ([rf.TT(20, **dims) for dims in SPLIT], 26_562, 53_224),
    "TTM": ([rf.TTM(20, **dims) for dims in PAIRS], 29_242, 58_564),
}


@pytest.mark.parametrize("name", MNIST)
def test_mnist_rows(name):
    (first, second), fixed, bayes = MNIST[name]
    num_ranks = bayes - 2 * fixed
    for inference, training in (("fixed", fixed), ("map", fixed + num_ranks), ("bayes", bayes)):
        model = nn.Sequential(
            rf.Linear(784, 512, config=replace(first, inference=inference)),
            nn.ReLU(),
            rf.Linear(512, 10, config=replace(second, inference=inference)),
        )
        total = accounting(model).total
        assert total.dense_parameters == 407_050
        assert total.training_parameters == total.training_parameters_at_start == training
        assert total.final_parameters == fixed
        assert_counts_what_exists(model)


WORDS = {"in_dims": (5, 8, 25, 25), "out_dims": (4, 8, 8)}
NLP = {
    "CP": (rf.CP(100, **WORDS), 8_300, 16_700),
    "Tucker": (rf.Tucker(5, **WORDS), 78_540, 157_115),
    "TT": (rf.TT(20, **WORDS), 28_260, 56_640),
    "TTM": (rf.TTM(20, in_dims=(5, 5, 5, 5, 6, 8), out_dims=(2, 2, 2, 2, 4, 4)), 22_440, 44_980),
}


@pytest.mark.parametrize("name", NLP)
def test_nlp_rows(name):
    config, fixed, bayes = NLP[name]
    tables = {i: tensor_of(replace(config, inference=i), 25_000, 256) for i in INFERENCE}
    assert accounting(tables["bayes"]).total.dense_parameters == 6_400_000
    assert accounting(tables["bayes"]).total.training_parameters == bayes
    assert accounting(tables["fixed"]).total.training_parameters == fixed
    assert {accounting(table).total.final_parameters for table in tables.values()} == {fixed}


ROWS = (10_131_227, 2_202_608, 8_351_593, 5_461_306, 7_046_547)
MODES = ((200, 220, 250), (125, 130, 136), (200, 200, 209), (166, 175, 188), (200, 200, 200))
WHOLE = [{"in_dims": modes, "out_dims": (128,)} for modes in MODES]
DLRM = {
    "CP": ([rf.CP(r, **d) for r, d in zip((350, 306, 333, 326, 335), WHOLE, strict=True)], 1_141_597, 2_284_844),
    "Tucker": ([rf.Tucker(r, **d) for r, d in zip((22, 20, 22, 21, 22), WHOLE, strict=True)], 1_131_212, 2_262_852),
    "TT": ([rf.TT(24, **dims) for dims in WHOLE], 1_135_752, 2_271_864),
    "TTM": ([rf.TTM(16, in_dims=modes, out_dims=(4, 4, 8)) for modes in MODES], 1_130_048, 2_260_256),
}


@pytest.mark.parametrize("name", DLRM)
def test_dlrm_rows(name):
    configs, fixed, bayes = DLRM[name]
    formats = [config.build(rows, 128) for config, rows in zip(configs, ROWS, strict=True)]
    assert sum(training_parameters(format, "fixed") for format in formats) == fixed
    assert sum(training_parameters(format, "bayes") for format in formats) == bayes
    tables = nn.ModuleList(tensor_of(config, rows, 128) for config, rows in zip(configs, ROWS, strict=True))
    total = accounting(tables).total
    assert total.dense_parameters == 4_248_739_968
    assert (total.training_parameters, total.final_parameters) == (bayes, fixed)
    assert total.compression == pytest.approx(4_248_739_968 / fixed)


def test_cifar_dense_row_counts_the_running_statistics():
    with torch.device("meta"):
        layers, channels = [], 3
        for width in (64, 64, 128, 128, 128, 128):
            layers += [nn.Conv2d(channels, width, 3), nn.BatchNorm2d(width)]
            channels = width
        for inputs, outputs in ((8192, 1536), (1536, 512)):
            layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs)]
        model = nn.Sequential(*layers, nn.Linear(512, 10))
    account = accounting(model)
    assert account.total.dense_parameters + account.num_buffers == 13_942_602
    assert account.num_buffers == 2 * (64 + 64 + 4 * 128 + 1536 + 512)
    assert account.layers == ()


# Models of our own ----------------------------------------------------------------------------------


def tensor_of(config, rows, columns):
    return BayesianTensor(config.build(rows, columns), config, 0.1)


def assert_counts_what_exists(model):
    """In training a model holds its parameters and λ, nothing else."""
    tensors = [m for m in model.modules() if isinstance(m, BayesianTensor)]
    held = [*model.parameters(), *(tensor.variance for tensor in tensors)]
    total = accounting(model).total
    assert total.training_parameters == sum(t.numel() for t in held)
    assert total.training_bytes == sum(t.numel() * t.element_size() for t in held)


def mixed_model(config=None, **options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        rf.Linear(144, 30, config=config or rf.TTM(5), **options),
        nn.Linear(30, 3),
    )


def cut(tensor, ranks):
    """Keep the first ranks of every group."""
    keep = [torch.arange(rank) for rank in ranks]
    for parameters in tensor.factors.parameter_lists():
        for parameter, data in zip(parameters, tensor.format.restrict(list(parameters), keep), strict=True):
            replace_data(parameter, data.detach().clone())
    variance = torch.cat([v[k] for v, k in zip(tensor.variances(), keep, strict=True)]) if tensor.has_prior else None
    tensor.set_ranks(tensor.format.with_ranks(ranks), tensor.variance if variance is None else variance)


@pytest.mark.parametrize("inference", INFERENCE)
@pytest.mark.parametrize("config", FORMATS)
def test_counts_equal_what_exists_before_and_after_a_cut(config, inference):
    model = mixed_model(config(5, inference=inference))
    assert_counts_what_exists(model)
    before = accounting(model)
    tensor = model[3].tensor
    cut(tensor, [2 + n % 2 for n in range(len(tensor.format.ranks))])
    after = accounting(model)
    assert_counts_what_exists(model)
    assert after.total.training_parameters_at_start == before.total.training_parameters
    assert after.total.training_parameters < before.total.training_parameters
    assert after.total.final_parameters == 40 + 8 + 93 + 30 + sum(mean.numel() for mean in tensor.factors.mean)
    assert after.total.dense_parameters == 40 + 8 + 93 + 144 * 30 + 30 == before.total.dense_parameters
    assert after.other.final_parameters == 40 + 8 + 93
    assert after.num_buffers == 8
    (layer,) = after.layers
    assert (layer.name, layer.type, layer.format) == ("3", "Linear", tensor.format.name)
    assert (layer.ranks_before, layer.ranks) == (tensor.max_ranks, tensor.format.ranks)
    assert layer.ranks_before != layer.ranks


def test_bytes_follow_the_dtype_and_log_stds_stay_float32():
    whole, half = accounting(mixed_model()).total, accounting(mixed_model().to(torch.bfloat16)).total
    assert whole.final_bytes == 4 * whole.final_parameters == 2 * half.final_bytes
    assert whole.dense_bytes == 4 * whole.dense_parameters == 2 * half.dense_bytes
    assert_counts_what_exists(mixed_model().to(torch.bfloat16))
    assert half.training_bytes > whole.training_bytes // 2


def test_a_shared_tensor_counts_once():
    first, second = (rf.Linear(12, 12, config=rf.CP(3)) for _ in range(2))
    second.tie_(first.tensor, transposed=True)
    model = nn.Sequential(first, second, first)
    account = accounting(model)
    assert_counts_what_exists(model)
    assert account.total.dense_parameters == 144 + 12 + 12
    assert [layer.shared_with for layer in account.layers] == [None, "0"]
    assert account.layers[1].counts.final_parameters == 12
    bare = rf.Linear(12, 12, bias=False, config=rf.CP(3))
    bare.tie_(first.tensor, transposed=False)
    assert accounting(nn.Sequential(first, bare)).layers[1].counts.compression is None
    assert "shared with 0" in report(model)


def test_parts_that_belong_to_no_layer_are_counted():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = tensor_of(rf.TT(3), 12, 12)
            self.bias = BayesianVector(torch.zeros(12), 0.1, rf.TT(3))
            self.scale = nn.Parameter(torch.ones(2))

    account = accounting(Cell())
    assert_counts_what_exists(Cell())
    assert [(layer.name, layer.type) for layer in account.layers] == [("recurrent", "BayesianTensor")]
    assert account.other.training_parameters == 2 * 12 + 2
    assert account.other.final_parameters == 12 + 2


RECURRENT = {
    "LSTM": lambda: nn.LSTM(12, 20, num_layers=2, proj_size=8, bidirectional=True),
    "GRU": lambda: nn.GRU(12, 20),
    "RNN": lambda: nn.RNN(12, 20, nonlinearity="relu", bias=False),
}


@pytest.mark.parametrize("inference", INFERENCE)
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_layer_is_counted_weight_by_weight(kind, inference):
    dense = RECURRENT[kind]()
    model = nn.ModuleDict({"memory": rf.Recurrent(dense, rf.TT(3, inference=inference))})
    account = accounting(model)
    assert_counts_what_exists(model)
    weights = [name for name, p in dense.named_parameters() if p.dim() == 2]
    assert [layer.name for layer in account.layers] == [f"memory.{name}" for name in weights]
    assert {layer.type for layer in account.layers} == {kind}
    for layer, name in zip(account.layers, weights, strict=True):
        bias = dict(dense.named_parameters()).get(name.replace("weight", "bias"))
        expected = dense.get_parameter(name).numel() + (0 if bias is None else bias.numel())
        assert layer.counts.dense_parameters == expected
    assert account.other.dense_parameters == 0
    assert "other layers" not in report(model)
    assert accounting(model["memory"]).layers[0].name == "weight_ih_l0"


def test_map_layers_have_a_column_of_their_own_name():
    bayes, by_map = (rf.Linear(12, 6, config=rf.CP(3, inference=mode)) for mode in ("bayes", "map"))
    headers = [report(nn.Sequential(*layers)).splitlines()[0] for layers in ([bayes], [by_map], [bayes, by_map])]
    assert ["−log prior" in header for header in headers] == [False, True, False]
    assert ["KL (nats)" in header for header in headers] == [True, False, True]
    assert "−log prior" not in report(bayes)
    assert "note: −log prior is a density's, known up to a constant, and can be negative" in report(by_map)
    assert "note: of MAP layers KL stands for −log prior;" in report(nn.Sequential(bayes, by_map))


def test_a_model_on_the_meta_device_is_counted_without_its_values():
    model = mixed_model()
    expected = accounting(model).total
    account = accounting(model.to("meta"))
    assert account.total == expected
    assert (account.layers[0].kl_nats, account.layers[0].variance_range) == (None, None)


def test_kl_and_variances_are_those_of_the_layer():
    layer = rf.Linear(12, 6, config=rf.Tucker(3))
    entry = accounting(layer).layers[0]
    assert entry.kl_nats == pytest.approx((layer.tensor.kl() + layer.bias_vector.kl()).item())
    assert entry.variance_range == (float(layer.tensor.variance.min()), float(layer.tensor.variance.max()))
    fixed = accounting(rf.Linear(12, 6, config=rf.Tucker(3, inference="fixed"))).layers[0]
    assert (fixed.kl_nats, fixed.variance_range, fixed.num_updates, fixed.collapsed) == (None, None, None, False)


def test_dict_and_json_say_the_same():
    account = accounting(mixed_model())
    plain = account.as_dict()
    assert json.loads(account.to_json()) == plain
    assert plain["total"]["final_parameters"] == account.total.final_parameters
    assert plain["total"]["compression"] == account.total.compression
    assert plain["layers"][0]["ranks"] == list(account.layers[0].ranks)
    assert plain["layers"][0]["counts"]["compression"] == account.layers[0].counts.compression


def test_numbers_that_json_cannot_hold_become_null_and_a_warning():
    model = mixed_model()
    with torch.no_grad():
        model[3].tensor.factors.mean[0][0] = torch.nan
    account = accounting(model)
    assert json.loads(account.to_json())["layers"][0]["kl_nats"] is None
    assert any("3: its KL is nan" in warning for warning in account.warnings)


# What needs attention -------------------------------------------------------------------------------


def test_report_says_when_variances_were_never_updated():
    line = "warning: λ was never updated: call ranks.step() after optimizer.step()"
    model = nn.Sequential(rf.Linear(12, 6, config=rf.CP(3)), rf.Linear(6, 4, config=rf.CP(3)))
    assert line in report(model).splitlines()
    model[0].tensor.update_variance(0.9)
    assert "warning: λ of 1 was never updated: call ranks.step() after optimizer.step()" in report(model).splitlines()
    model[1].tensor.update_variance(0.9)
    assert "never updated" not in report(model)
    assert "never updated" not in report(rf.Linear(12, 6, config=rf.CP(3, inference="fixed")))


@pytest.mark.parametrize("inference", ["bayes", "map"])
def test_warnings_of_rank_1_and_of_collapse(inference):
    layer = rf.Linear(12, 6, config=rf.TT(4, in_dims=(3, 4), out_dims=(6,), inference=inference))
    layer.tensor.update_variance(0.9)
    assert accounting(layer).warnings == ()
    cut(layer.tensor, (3, 1))
    (warning,) = accounting(layer).warnings
    assert warning.startswith("the model: its 2nd rank fell from 4 to 1; lower kl_weight")
    with torch.no_grad():
        layer.tensor.factors.mean[1].mul_(1e-12)
        layer.tensor.factors.mean[2].mul_(1e-12)
    for _ in range(30):
        layer.tensor.update_variance(0.9)
    (warning,) = accounting(layer).warnings
    assert "collapsed: its weights are practically zero" in warning
    assert accounting(layer).layers[0].collapsed


def test_every_rank_that_fell_to_1_is_named():
    model = nn.Sequential(rf.Linear(12, 6, config=rf.CP(5)), rf.Linear(24, 6, config=rf.Tucker(3, in_dims=(2, 3, 4))))
    for layer, ranks in zip(model, ([1], [1, 2, 1, 1]), strict=True):
        layer.tensor.update_variance(0.9)
        cut(layer.tensor, ranks)
    first, second = accounting(model).warnings
    assert first.startswith("0: its rank fell from 5 to 1;")
    assert second.startswith(
        "1: its 1st rank fell from 3 to 1, its 3rd rank fell from 3 to 1, its 4th rank fell from 3 to 1;"
    )


def test_a_rank_that_was_1_from_the_start_is_no_news():
    layer = rf.Linear(12, 6, config=rf.CP(1))
    layer.tensor.update_variance(0.9)
    assert accounting(layer).warnings == ()


def test_report_is_an_aligned_table():
    model = mixed_model(rf.TTM(5, in_dims=(12, 12), out_dims=(5, 6)))
    cut(model[3].tensor, (2,))
    text = report(model)
    lines = text.splitlines()
    assert isinstance(text, str)
    assert repr(text) == text
    header, row, other, total = lines[0], lines[2], lines[3], lines[5]
    assert "TTM 12·12 x 5·6" in row
    assert "5→2" in row
    assert f"{2 * (5 * 60 + 5 * 72 + 30) + 5:,}→{2 * (2 * 60 + 2 * 72 + 30) + 2:,}" in row
    assert other.startswith("other layers")
    assert total.startswith("total")
    for title in ("dense", "final", "ratio", "size"):  # numbers end where their title ends
        end = header.index(title) + len(title)
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in (row, other, total))
    assert lines[6] == "buffers, not counted above: 8 numbers"


def test_report_of_a_dense_model():
    assert "7,850" in report(nn.Linear(784, 10))


def test_small_texts():
    assert ranks_text((50,), (31,)) == "50→31"
    assert ranks_text((20, 20), (20, 1)) == "20 20→1"
    assert [bytes_text(n) for n in (1023, 1024, 5 * 1024**2, 3 * 1024**4)] == [
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3,072.0 GiB",
    ]
