"""Whole networks: a step is a real one, memory is what must be there, answers are those of the network."""

import math
import pickle
from dataclasses import asdict
from itertools import islice

import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold.bench.contender import BAYESIAN, DENSE_WITH_SGD, FIXED, Case, Contender
from rankfold.bench.fresh_process import Finished
from rankfold.bench.inference import ONNX, all_settings, networks, run_inference
from rankfold.bench.measure import peak_memory
from rankfold.bench.memory import WITH_SNAPSHOTS, run_dlrm, run_embedding
from rankfold.bench.networks import NETWORKS, found_ranks
from rankfold.bench.step import Training
from rankfold.config import TTM
from rankfold.experiments.task import Folding
from rankfold.models.dlrm import DLRM, tables_from

CPU = torch.device("cpu")


@pytest.fixture
def results(request):
    return request.config.rootpath / "results" / "mnist"


def test_a_timed_step_trains_every_parameter_and_the_rank_variances():
    torch.manual_seed(0)
    training = Training.of(NETWORKS["MNIST"].tensorized("TTM", "bayes"), CPU)
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    x, labels = torch.randn(8, 784), torch.randint(10, (8,))
    losses = [float(training.step(x, labels)) for _ in range(5)]
    assert losses[-1] < losses[0]
    changed = {name for name, value in training.model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name for name, _ in training.model.named_parameters()} <= changed
    assert sum(name.endswith("variance") for name in changed) == 2
    assert training.ranks.history == []  # nothing is cut while steps are timed


def test_found_ranks_are_those_of_the_result_file(results, tmp_path):
    model = NETWORKS["MNIST"].tensorized("CP", "fixed", found_ranks("CP", results))
    kept = rf.accounting(model).total.final_parameters
    assert kept == sum(p.numel() for p in model.parameters()) < 407_050
    with pytest.raises(FileNotFoundError, match=r"cp-ard-lu-seed0\.json is missing.*rankfold reproduce mnist"):
        found_ranks("CP", tmp_path)


def test_all_networks_of_a_format_answer_alike(results):
    models = networks({"TT": found_ranks("TT", results)})
    x = torch.randn(3, 784)
    torch.testing.assert_close(models["TT", "factors"](x), models["TT", "halves"](x))
    assert set(models) == {("dense", "dense"), ("TT", "factors"), ("TT", "halves")}


def test_no_network_is_timed_twice(results):
    """TTM has no halves: multiplied out or not, it is the same network."""
    models = networks({format: found_ranks(format, results) for format in ("CP", "Tucker", "TT", "TTM")})
    layouts = [(format, layout) for format in ("CP", "Tucker", "TT") for layout in ("factors", "halves")]
    assert list(models) == [("dense", "dense"), *layouts, ("TTM", "factors")]
    shapes = [tuple(p.shape for p in model.parameters()) for model in models.values()]
    assert len(set(shapes)) == len(shapes)


def test_compiled_networks_take_part_and_a_failure_is_a_note(results, monkeypatch):
    def compile(model, **_):
        if isinstance(model[0], nn.Linear):
            raise RuntimeError("no compiler\nsecond line")
        return model

    monkeypatch.setattr(torch, "compile", compile)
    models = networks({"TT": found_ranks("TT", results)})
    del models["TT", "halves"]
    (setting,) = all_settings((2,), (1,), CPU, compiled=True)
    rows = {(row.library, row.format): row for row in run_inference(models, setting, repeat=3)}
    assert rows["torch.compile", "dense"].note == "fails: RuntimeError: no compiler"
    assert rows["torch.compile", "TT"].answer.rounds == 3
    assert rows[ONNX, "TT"].parameters == sum(p.numel() for p in models["TT", "factors"].parameters())


SIZES, DIM = (40_000, 30), 8


def small_dlrm():
    with torch.device("meta"):
        return DLRM(SIZES, DIM, bottom=(8,), top=(8,), num_numbers=3)


def small_folding(format):
    return Folding(4, {"tables.0": ((200, 200), (2, 4))}, 0.01)


def measured_here(training):
    """Without a process of its own, whose imports would hide what a small network takes."""
    counts = []
    peak = peak_memory(lambda: counts.append(pickle.loads(pickle.dumps(training))()), CPU)
    return Finished(counts[0], peak)


def test_memory_of_a_whole_network_covers_what_adam_keeps(monkeypatch):
    monkeypatch.setattr("rankfold.bench.memory.in_fresh_process", measured_here)
    rows = list(run_dlrm(["TTM"], CPU, dense=True, make=small_dlrm, foldings=small_folding, batch=16))
    modelled, dense, *trained = rows
    count = sum(p.numel() for p in small_dlrm().parameters())
    assert (modelled.how, modelled.peak_bytes) == ("modelled", 4 * 4 * count)
    assert (dense.library, dense.parameters) == (DENSE_WITH_SGD, count)
    assert 4 * count <= dense.peak_bytes < 8 * count  # the weights, and gradients of a few rows
    assert [row.library for row in trained] == [FIXED, BAYESIAN, WITH_SNAPSHOTS, BAYESIAN, WITH_SNAPSHOTS]
    for row in trained:
        assert (row.format, row.how) == ("TTM", "resident set")
        assert row.least_bytes == 16 * row.parameters
        assert row.least_bytes <= row.peak_bytes < dense.peak_bytes


def test_memory_of_tables_chosen_by_their_size_is_a_case_of_its_own(monkeypatch):
    monkeypatch.setattr("rankfold.bench.memory.in_fresh_process", measured_here)
    rows = list(run_dlrm(["TTM"], CPU, dense=False, make=small_dlrm, foldings=small_folding, batch=16))
    assert len({row.case for row in rows[:-2]}) == 1
    assert {row.case for row in rows[-2:]} == {"DLRM, every table of at least 10,000 rows in TTM of rank 8, batch 16"}
    model = rf.tensorize_(small_dlrm(), TTM(8, init_std=0.05), tables_from(10_000))
    assert {row.parameters for row in rows[-2:]} == {sum(p.numel() for p in model.parameters())}
    assert isinstance(model.tables[1], nn.Embedding)


def test_a_snapshot_is_a_copy_of_the_parameters_and_half_a_copy_of_the_moments(monkeypatch):
    monkeypatch.setattr("rankfold.bench.memory.in_fresh_process", measured_here)
    rows = list(run_dlrm(["TTM"], CPU, dense=False, make=small_dlrm, foldings=small_folding, batch=1))
    copied = rows[3].peak_bytes - rows[2].peak_bytes
    assert 4 * rows[3].parameters < copied < 1.2 * 4 * 2 * rows[3].parameters


def test_a_whole_network_on_a_cpu_is_a_process_of_its_own():
    rows = run_dlrm(["CP"], CPU, dense=False, make=small_dlrm, foldings=small_folding, batch=16)
    _, fixed = islice(rows, 2)
    assert fixed.how == "resident set"
    assert fixed.peak_bytes > 100 * 2**20  # torch alone


def test_memory_of_rows_is_at_least_output_and_gradients():
    def build():
        return rf.Embedding(8_000, 8, config=TTM(4, in_dims=(80, 100), out_dims=(2, 4), inference="fixed"))

    index = torch.randint(8_000, (50,))
    case = Case("rows", lambda device: index, (Contender(FIXED, "TTM", build), Contender("x", "CP", build, "left out")))
    row, skipped = run_embedding(case, CPU)
    assert row.least_bytes == 4 * 50 * 8 + 4 * sum(math.prod(s) for s in ((80, 2, 4), (4, 100, 4)))
    assert row.peak_bytes >= row.least_bytes
    assert asdict(skipped)["note"] == "left out"
