"""Every method from its file to its JSON, on tiny images."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from experiments.tiny import NUM_TEST, NUM_TRAIN

import rankfold as rf
from rankfold.experiments.methods import Workshop, train
from rankfold.experiments.mnist import TASK, classifier, load_data
from rankfold.experiments.planning import Request, schedule
from rankfold.experiments.progress import Listener, StopAsked
from rankfold.experiments.provenance import COMMIT_VARIABLE, git_commit
from rankfold.experiments.results import read_result
from rankfold.experiments.run import perform
from rankfold.experiments.runner import execute
from rankfold.experiments.spec import Spec, read_rows

CPU = torch.device("cpu")
FORMATS = ("cp", "tucker", "tt", "ttm")
DENSE_PARAMETERS = 407_050


def reproduce(places, *rows, **options):
    request = Request("tiny", rows, seeds=1, **options)
    plan, events = schedule(request, places), []
    execute(plan, request.places(places), CPU, 1, events.append)
    return plan, events


@pytest.mark.parametrize("name", FORMATS)
def test_every_method_of_a_format_runs_to_its_result(name, places):
    rows = [row for row in read_rows(places.experiments / "tiny") if row.startswith(f"{name}-")]
    plan, _ = reproduce(places, *rows)
    assert plan.failures == {}
    results = {file.stem.removesuffix("-seed0"): read_result(file) for file in (places.results / "tiny").iterdir()}
    assert set(results) == {"dense", *rows}
    for row, result in results.items():
        check_result(row, result, name)
    oracle, compressed = results[f"{name}-ard-lu"], results[f"{name}-tc-or"]
    assert compressed["ranks"]["after"] == oracle["ranks"]["after"]
    assert compressed["parameters"]["final"] == oracle["parameters"]["final"]
    dense = [{**epoch, "seconds": 0} for epoch in results["dense"]["history"]]
    for row in ("tc-mr", "tc-or"):
        before = [{**epoch, "seconds": 0} for epoch in results[f"{name}-{row}"]["history"][:2]]
        assert before == dense
    assert len(list((places.runs / "tiny" / "shared").iterdir())) == 1  # trained once


def check_result(row, result, format):
    metrics = result["metrics"]
    assert result["row"] == row
    assert result["seed"] == result["spec"]["seed"] == 0
    assert result["parameters"]["dense"] == DENSE_PARAMETERS
    assert result["history"][-1]["parameters"] == result["parameters"]["final"]
    assert result["history"][-1]["ranks"] == result["ranks"]["after"]
    assert result["data"]["num_train"] == NUM_TRAIN
    assert result["data"]["num_evaluation"] == result["data"]["num_unfamiliar"] == NUM_TEST
    assert set(result["versions"]) == {"rankfold", "torch", "python"}
    assert result["timing"]["training_seconds"] > 0
    assert result["peak_memory"]["process_bytes"] > 2**20
    assert 0 <= metrics["posterior_mean"]["accuracy"] <= 1
    assert ("monte_carlo" in metrics) == ("ard" in row and "map" not in row)
    if "monte_carlo" in metrics:
        hard = metrics["hard_image"]
        assert len(hard["pixels"]) == 784
        assert sum(hard["mean"]) == pytest.approx(1.0, abs=1e-3)
        assert torch.tensor(hard["draws"]).mean(0).tolist() == pytest.approx(hard["mean"], abs=2e-4)
        assert 0 <= metrics["monte_carlo"]["auroc_mutual_information"] <= 1
    if row == "dense" or "-tc-" in row:
        assert result["parameters"]["training"] == DENSE_PARAMETERS
    else:
        spec = Spec(**result["spec"])
        inference = "fixed" if spec.method == "fr" else spec.inference
        model = rf.tensorize_(classifier(), None, overrides=TASK.tensor_configs(spec, inference))
        assert result["parameters"]["training"] == sum(p.numel() for p in model.parameters()) + sum(
            layer.tensor.variance.numel() for layer in (model.layer1, model.layer2)
        )
        assert result["spec"]["format"] == format


def test_the_model_that_is_left_gives_the_accuracy_that_is_reported(places, data_folder):
    reproduce(places, "ttm-ard-lu")
    result = read_result(places.results / "tiny" / "ttm-ard-lu-seed0.json")
    model = rf.tensorize_(classifier(), None, overrides=TASK.tensor_configs(Spec(**result["spec"]), "bayes"))
    rf.load(model, places.runs / "tiny" / "ttm-ard-lu-seed0" / "model").eval()
    test = load_data("test", CPU, data_folder, verify=False).evaluation
    accuracy = (model(test.inputs[0]).argmax(1) == test.labels).double().mean()
    assert float(accuracy) == result["metrics"]["posterior_mean"]["accuracy"]


def test_an_interrupted_run_has_the_metrics_of_an_uninterrupted_one(places):
    run = schedule(Request("tiny", ["ttm-ard-hc"], seeds=1), places).waiting[0]
    whole = perform(run, places, CPU)
    run.file(places).unlink()

    def stop(epoch):
        raise StopAsked

    with pytest.raises(StopAsked):
        perform(run, places, CPU, Listener(stop))
    assert not run.file(places).exists()
    seen = []
    resumed = perform(run, places, CPU, Listener(seen.append))
    assert len(seen) == 1
    for key in ("metrics", "ranks", "parameters"):
        assert json.dumps(resumed[key]) == json.dumps(whole[key])


def test_a_run_that_is_stopped_while_it_is_evaluated_does_not_train_again(places, monkeypatch):
    run = schedule(Request("tiny", ["ttm-fr"], seeds=1), places).waiting[0]

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rankfold.experiments.mnist.classification", stop)
        with pytest.raises(KeyboardInterrupt):
            perform(run, places, CPU)
    seen = []
    result = perform(run, places, CPU, Listener(seen.append))
    assert seen == []
    assert len(result["history"]) == 2
    assert sorted(path.name for path in run.folder(places).iterdir()) == ["model"]


def test_the_validation_split_never_looks_at_the_test_images(places, data_folder):
    whole = load_data("test", CPU, data_folder, verify=False)
    part = load_data("validation", CPU, data_folder, verify=False)
    assert len(part.evaluation) == NUM_TRAIN // 12
    together = torch.cat([part.train.inputs[0], part.evaluation.inputs[0]])
    assert sorted(together.sum(1).tolist()) == sorted(whole.train.inputs[0].sum(1).tolist())
    again = load_data("validation", CPU, data_folder, verify=False)
    assert torch.equal(part.evaluation.inputs[0], again.evaluation.inputs[0])
    plan, _ = reproduce(places, "cp-fr", validation=True)
    assert plan.failures == {}
    assert not (places.results / "tiny").exists()
    result = read_result(places.results / "validation" / "tiny" / "cp-fr-seed0.json")
    assert result["spec"]["split"] == "validation"
    assert result["data"]["num_evaluation"] == NUM_TRAIN // 12


def test_oracle_ranks_that_are_missing_are_asked_for(places):
    request = Request("tiny", ["cp-tc-or"], seeds=1)
    run = request.run("cp-tc-or", read_rows(places.experiments / "tiny")["cp-tc-or"], 0, "mnist")
    with pytest.raises(FileNotFoundError, match="rankfold reproduce tiny cp-ard-lu"):
        perform(run, places, CPU)
    data = load_data("test", CPU, places.data, verify=False)
    with pytest.raises(ValueError, match="needs the ranks that cp-ard-lu found"):
        train(run.spec, Workshop(TASK, data, Path("unused"), Path("unused")))


def test_without_fashion_mnist_there_is_no_auroc(data_folder, tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "mnist").symlink_to(data_folder / "mnist")
    data = load_data("test", CPU, tmp_path / "alone", verify=False)
    assert data.unfamiliar is None


def test_the_commit_comes_from_git_or_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "file").write_text("one")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["add", "file"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    clean = git_commit(tmp_path)
    (tmp_path / "file").write_text("two")
    assert (len(clean["hash"]), clean["dirty"], git_commit(tmp_path)["dirty"]) == (40, False, True)
    monkeypatch.setenv(COMMIT_VARIABLE, "0123abcd")
    assert git_commit(tmp_path) == {"hash": "0123abcd", "dirty": None}
