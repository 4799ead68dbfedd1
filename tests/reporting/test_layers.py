import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import rankfold as rf
from rankfold.counts import accounting
from rankfold.experiments import mnist
from rankfold.reporting.layers import layers_of, sums_of
from rankfold.reporting.reading import read_run
from rankfold.reporting.saved import file_sizes, run_folder, saved_model

RESULTS = Path(__file__).parents[2] / "results"
RUN = read_run(RESULTS / "mnist" / "ttm-ard-lu-seed0.json")


@pytest.mark.parametrize("row", ["ttm-ard-lu", "cp-tc-or", "tucker-fr", "tt-ard-hc-map"])
def test_the_layers_of_a_table_add_up_to_what_the_run_counted(row):
    run = read_run(RESULTS / "mnist" / f"{row}-seed0.json")
    layers = layers_of(run, None)
    assert sum(layer.after for layer in layers) == run.final_parameters
    assert sum(layer.dense for layer in layers) == run.dense_parameters
    assert [list(layer.ranks) for layer in layers] == list(run.ranks_after.values())


class Tied(nn.Module):
    """A table of words that also reads the words off; the bias of that is its own."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(512, 64), nn.LayerNorm(64), nn.Linear(64, 512)
        self.head.weight = self.table.weight


def test_tied_layers_are_counted_once_and_say_with_whom():
    kept = json.loads(accounting(rf.tensorize_(Tied(), rf.TTM(4))).to_json())
    ranks = {entry["name"]: entry["ranks"] for entry in kept["layers"]}
    parameters = {"dense": 512 * 64 + 512 + 128, "training": 1, "final": kept["total"]["final_parameters"]}
    more = {"layers": kept["layers"], "parameters": parameters, "ranks": {"before": ranks, "after": ranks}}
    run = replace(RUN, record={**RUN.record, **more})
    layers = layers_of(run, None)
    assert [layer.shared_with for layer in layers] == [None, "table"]
    assert layers[1].after == 512
    other, total = sums_of(run, layers)
    assert (other.after, other.dense) == (128, 128)
    assert (total.after, total.before, total.dense) == (parameters["final"],) * 2 + (parameters["dense"],)


@pytest.mark.parametrize("row", ["cp-ard-lu", "tucker-ard-lu", "tt-ard-lu", "ttm-ard-lu"])
def test_shapes_of_the_factors_hold_the_parameters(row):
    run = read_run(RESULTS / "mnist" / f"{row}-seed0.json")
    for layer, bias in zip(layers_of(run, None), (512, 10), strict=True):
        assert sum(map(math.prod, layer.factor_shapes)) == layer.after - bias


def _record_of_a_model():
    """A model with ranks cut by hand, its run, and what is true of it."""
    configs = {
        name: rf.TTM(
            ranks, in_dims=mnist.FOLDINGS["ttm"].layers[name][0], out_dims=mnist.FOLDINGS["ttm"].layers[name][1]
        )
        for name, ranks in RUN.ranks_after.items()
    }
    model = rf.tensorize_(mnist.classifier(), None, overrides={n: replace(c) for n, c in configs.items()})
    for name, before in RUN.ranks_before.items():
        model.get_submodule(name).tensor.max_ranks = tuple(before)
    return model


def test_the_saved_model_the_record_and_the_task_tell_the_same(tmp_path):
    model = _record_of_a_model()
    rf.save(model, tmp_path / "model")
    by_task = layers_of(RUN, None)
    by_saved = layers_of(RUN, saved_model(tmp_path / "model"))
    kept = json.loads(accounting(model).to_json())["layers"]
    by_record = layers_of(replace(RUN, record={**RUN.record, "layers": kept}), None)
    for task, saved, record in zip(by_task, by_saved, by_record, strict=True):
        for field in ("name", "format", "dense", "before", "after"):
            assert getattr(task, field) == getattr(saved, field) == getattr(record, field), field
        assert tuple(task.in_dims) == tuple(saved.in_dims) == tuple(record.in_dims)
        assert task.compression == pytest.approx(task.dense / task.after)


def test_lambdas_of_a_saved_model_come_rank_by_rank(tmp_path):
    model = _record_of_a_model()
    rf.save(model, tmp_path / "model")
    saved = saved_model(tmp_path / "model")
    for name, groups in saved.variances.items():
        expected = model.get_submodule(name).tensor.variances()
        assert groups == [values.tolist() for values in expected]


def test_a_table_that_changed_or_is_unknown_leaves_the_ranks():
    other = replace(RUN, record={**RUN.record, "parameters": {**RUN.record["parameters"], "final": 4_071}})
    unknown = replace(RUN, record={**RUN.record, "table": "nobody knows"})
    for run in (other, unknown):
        layers = layers_of(run, None)
        assert [layer.format for layer in layers] == [None, None]
        assert [list(layer.ranks) for layer in layers] == list(RUN.ranks_after.values())


def test_a_damaged_model_beside_a_run_is_left_out(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "rankfold.json").write_text("{")
    (folder / "model.safetensors").write_bytes(b"nothing")
    assert saved_model(folder) is None
    assert saved_model(tmp_path) is None


def test_models_of_results_are_found_where_reproduce_leaves_them(tmp_path):
    folder = tmp_path / "runs" / "quick" / "mnist" / "a-seed0"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"12345")
    run = replace(RUN, file=tmp_path / "results" / "quick" / "mnist" / "a-seed0.json")
    assert run_folder(run) == folder
    assert file_sizes(folder) == {"model.onnx": 5}
    assert run_folder(replace(RUN, file=tmp_path / "elsewhere.json")) is None
