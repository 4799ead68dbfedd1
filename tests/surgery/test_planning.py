"""The plan against what tensorize_ really makes, and against the counts of the paper."""

import json

import pytest
import torch
from models import CASES, gpt2, mlp
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import CP, TT, TTM, Tucker
from rankfold.counts_table import report
from rankfold.surgery.planning import plan
from rankfold.surgery.tensorize import tensorize_

FORMATS = [CP, Tucker, TT, TTM]


def learned(model: nn.Module) -> int:
    """What training really holds: all parameters, and λ."""
    variances = sum(m.variance.numel() for m in model.modules() if isinstance(m, BayesianTensor))
    return sum(p.numel() for p in model.parameters()) + variances


def mnist() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))


MATRIX = ((28, 28), (16, 32)), ((32, 16), (10,))
PAIRS = ((4, 7, 4, 7), (4, 4, 8, 4)), ((16, 32), (2, 5))


@pytest.mark.parametrize(
    ("config", "rank", "dims", "final", "training"),
    [
        (CP, 50, MATRIX, 8_622, 17_344),
        (Tucker, 20, MATRIX, 171_762, 343_664),
        (TT, 20, MATRIX, 26_562, 53_224),
        (TTM, 20, PAIRS, 29_242, 58_564),
    ],
)
def test_counts_of_the_paper(config, rank, dims, final, training):
    first, second = (config(rank, in_dims=inputs, out_dims=outputs) for inputs, outputs in dims)
    totals = plan(mnist(), None, overrides={"0": first, "2": second}).totals
    assert (totals.dense_parameters, totals.factor_parameters) == (407_050, final)
    assert totals.training_parameters == training
    assert (totals.dense_bytes, totals.final_bytes) == (4 * 407_050, 4 * final)


@pytest.mark.parametrize("config", FORMATS)
@pytest.mark.parametrize("inference", ["bayes", "map", "fixed"])
def test_plan_is_what_happens(config, inference):
    model = mnist()
    chosen = config(6, inference=inference)
    expected = plan(model, chosen, nn.Linear)
    assert expected.totals.dense_parameters == sum(p.numel() for p in model.parameters())
    tensorize_(model, chosen, nn.Linear)
    assert expected.totals.training_parameters == learned(model)
    for row, layer in zip(expected.rows, (model[0], model[2]), strict=True):
        means = [*layer.tensor.factors.mean, *layer.bias_vector.entries.mean]
        assert row.factor_parameters == sum(m.numel() for m in means)
        assert row.final_bytes == sum(m.numel() * m.element_size() for m in means)
        assert (row.format, row.ranks) == (layer.tensor.format.name, layer.tensor.format.ranks)
        assert (row.in_dims, row.out_dims) == (layer.tensor.format.inputs.dims, layer.tensor.format.outputs.dims)


@pytest.mark.parametrize("name", CASES)
def test_plan_is_what_happens_to_whole_models(name):
    case = CASES[name]
    model = case.build()
    dense = sum(p.numel() for p in model.parameters())
    expected = plan(model, TTM(4), case.filter_fn)
    tensorize_(model, TTM(4), case.filter_fn)
    assert expected.totals.dense_parameters == dense
    assert expected.totals.training_parameters == learned(model)
    assert expected.totals.factor_parameters < dense


class NoOperations(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was called")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_nothing_is_allocated(name, device):
    with torch.device(device):
        model = CASES[name].build()
    with NoOperations():
        text = str(plan(model, TTM(4), CASES[name].filter_fn))
    assert "total" in text


def test_a_table_too_large_for_memory():
    row = plan(nn.Sequential(nn.Embedding(10**12, 128, device="meta")), TTM(16, order=8)).rows[0]
    assert row.dense_bytes == 512 * 10**12
    assert row.final_bytes < 10**6


def test_a_layer_that_would_grow_stays_dense_unless_chosen():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(4, 4))
    by_default, chosen = plan(model, CP(4)).rows, plan(model, CP(4), nn.Linear).rows
    assert [row.action for row in by_default] == ["tensorize", "dense"]
    assert [row.action for row in chosen] == ["tensorize", "tensorize"]
    assert by_default[1].note == "stays dense: would grow from 16 to 32 weights"
    assert chosen[1].note.startswith("grows from 16 to 32 weights")
    assert by_default[1].factor_parameters == by_default[1].dense_parameters == 20


def test_a_layer_that_only_grows_in_training_is_pointed_out():
    model = nn.Sequential(nn.Linear(64, 10))
    assert learned(model) == 650
    for inference, note in (("bayes", "grows in training: 762 against 650 dense"), ("map", ""), ("fixed", "")):
        config = CP(14, in_dims=(8, 8), out_dims=(10,), inference=inference)
        row = plan(model, config).rows[0]
        assert (row.action, row.note) == ("tensorize", note)
    assert row.factor_parameters < 650
    assert learned(tensorize_(model, CP(14, in_dims=(8, 8), out_dims=(10,)))) == 762


def test_layers_tensorized_already_are_counted_as_what_they_are():
    model = mnist()
    expected = plan(model, TTM(5), nn.Linear).totals
    tensorize_(model, TTM(5), "0")
    partly = plan(model, TTM(5), nn.Linear)
    assert [(row.name, row.action) for row in partly.rows] == [("2", "tensorize"), ("0", "tensorized")]
    assert partly.totals == expected
    tensorize_(model, TTM(5), nn.Linear)
    done = plan(model, TTM(5))
    assert done.totals == expected
    assert done.other_parameters == 0
    assert "note: already tensorized, and left as they are: 0, 2" in str(done)


def test_tied_and_recurrent_layers_tensorized_already():
    for model, filter_fn in ((gpt2(), None), (nn.ModuleDict({"memory": nn.LSTM(40, 50)}), nn.LSTM)):
        expected = plan(model, TTM(4), filter_fn).totals
        tensorize_(model, TTM(4), filter_fn)
        with NoOperations():
            assert plan(model, TTM(4)).totals == expected


def test_layers_that_cannot_be_tensorized_are_named():
    model = nn.ModuleDict(
        {
            "attention": nn.ModuleList(nn.MultiheadAttention(32, 4) for _ in range(6)),
            "up": nn.ConvTranspose2d(4, 5, 3),
            "video": nn.Conv3d(2, 3, 3),
            "cell": nn.LSTMCell(6, 7),
            "head": nn.Linear(64, 64),
        }
    )
    result = plan(model, CP(2))
    assert result.notes == (
        "attention.0, attention.1, attention.2, attention.3 and 2 more: MultiheadAttention input projections (in_proj) "
        f"are not supported and stay dense, {6 * 33 * 96:,} parameters",
        f"up: ConvTranspose2d layers are not supported and stay dense, {4 * 5 * 9 + 5} parameters",
        f"video: Conv3d layers are not supported and stay dense, {2 * 3 * 27 + 3} parameters",
        f"cell: LSTMCell layers are not supported and stay dense, {28 * (6 + 7 + 2)} parameters",
    )
    assert "note: video: Conv3d layers are not supported" in str(result)


def test_ranks_are_written_as_the_report_writes_them():
    model = mnist()
    planned = str(plan(model, TTM(8), "0")).splitlines()[2]
    reported = str(report(tensorize_(model, TTM(8), "0"))).splitlines()[2]
    assert "TTM 4·4·7·7 x 8·4·4·4  8 8 8 " in planned
    assert "TTM 4·4·7·7 x 8·4·4·4  8 8 8 " in reported


def test_ranks_that_modes_cannot_use_are_pointed_out():
    config = Tucker(20, in_dims=(28, 28), out_dims=(16, 32))
    note = plan(nn.Sequential(nn.Linear(784, 512)), config).rows[0].note
    assert note == "rank 3 of 4: 20 exceeds what its modes can use (16)"


def test_padding_is_the_share_of_added_entries():
    row = plan(nn.Sequential(nn.Linear(11, 7)), CP(1, in_dims=(3, 4), out_dims=(2, 4))).rows[0]
    assert row.padding == pytest.approx(12 * 8 / (11 * 7) - 1)


def test_shared_weights_are_counted_once():
    rows = {row.name: row for row in plan(gpt2(), TTM(4)).rows}
    assert rows["transformer.wte"].dense_parameters == 101 * 32
    head = rows["lm_head"]
    assert (head.dense_parameters, head.factor_parameters, head.training_parameters, head.final_bytes) == (0, 0, 0, 0)
    assert head.note == "shares the tensor of transformer.wte, transposed"


def test_a_module_used_twice_is_one_row():
    model = mlp()
    model.append(model[3])
    rows = plan(model, CP(2), nn.Linear).rows
    assert [row.name for row in rows] == ["1", "3"]
    assert "also used as 4" in rows[1].note


def test_refusals_are_rows_too():
    model = nn.Sequential(nn.Embedding(500, 40, max_norm=1.0), nn.Linear(64, 64))
    refused = plan(model, CP(2)).rows[0]
    assert refused.action == "refused"
    assert refused.note.startswith("refused: max_norm is not supported, got 1.0")


def test_lazy_layers_have_no_size_yet():
    row = plan(nn.Sequential(nn.LazyLinear(5)), CP(2)).rows[0]
    assert row.note == "refused: it is lazy and has no shape yet; run the model once first"
    assert row.dense_parameters == 0


def test_text_is_an_aligned_table():
    lines = str(plan(mnist(), TTM(20))).splitlines()
    header, rule, first, second, _, total = lines[:6]
    assert header.split() == ["layer", "type", "format", "ranks", "padding", "dense", "training", "final"]
    assert set(rule) == {"-"}
    assert first.split()[-3:] == ["401,920", "38,684", "19,312"]
    assert total.split() == ["total", "407,050", "44,484", "22,202"]
    assert len({len(line) for line in (header, rule, first, second, total)}) == 1
    assert lines[6] == "size: 1.6 MiB dense, 86.7 KiB final"


def test_text_stays_narrow():
    layer = nn.Linear(2**16, 2**16, device="meta")
    name = "a_block_with_a_very_long_name"
    model = nn.ModuleDict({name: nn.ModuleDict({name: nn.ModuleDict({name: layer, "b": nn.Linear(2, 3)})})})
    config = TT(tuple(range(101, 110)), in_dims=(8, 8, 8, 8, 16), out_dims=(8, 8, 8, 8, 16))
    lines = str(plan(model, config, f"*{name}")).splitlines()
    assert max(map(len, lines)) <= 118
    assert any(line.startswith("…") for line in lines)


def test_text_says_when_nothing_would_happen():
    assert "no layer would be tensorized" in str(plan(nn.Sequential(nn.Linear(3, 3)), CP(9)))


def test_dict_and_json_hold_the_same():
    result = plan(mnist(), TTM(20))
    data = json.loads(result.to_json())
    assert data["totals"]["factor_parameters"] == 22_202
    assert data["rows"][0]["in_dims"] == [4, 4, 7, 7]
    assert data["rows"][0]["factor_parameters"] == result.as_dict()["rows"][0]["factor_parameters"] == 19_312
    assert data["other_parameters"] == 0


@pytest.mark.parametrize(("kind", "sizes"), [(nn.Linear, (0, 5)), (nn.Linear, (5, 0)), (nn.Embedding, (0, 5))])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_weights_stay_dense(kind, sizes):
    model = nn.Sequential(nn.Linear(64, 64), kind(*sizes))
    assert "1: stays dense: it has no weights" in str(plan(model, TT(4)))
    assert type(tensorize_(model, TT(4))[1]) is kind
    with pytest.raises(ValueError, match="it has no weights"):
        tensorize_(nn.Sequential(kind(*sizes)), TT(4), "0")
