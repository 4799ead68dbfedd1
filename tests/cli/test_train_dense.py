"""``rankfold train --dense``: the dense network beside the factors."""

import json
import os
import signal

import pytest
import torch
from jobs.made_up import clicks, images, table
from typer.testing import CliRunner

from rankfold.cli import train_output
from rankfold.cli.main import app
from rankfold.experiments import training
from rankfold.health import NumericalFault
from rankfold.jobs.job import DataOptions, learn
from rankfold.reporting.wording import percent


def run(*arguments):
    wide = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}
    return CliRunner(env=wide).invoke(app, [str(argument) for argument in arguments])


def record_of(folder):
    return json.loads((folder / "run.json").read_text())


def test_the_dense_network_learns_and_stands_beside_the_factors(tmp_path):
    data = table(tmp_path / "t.csv", drop=("price",), size=150)
    options = ("--target", "kind", "--epochs", 20, "--validation-share", 0.3, "--dense", "--out", tmp_path / "run")
    result = run("train", data, *options)
    assert result.exit_code == 0, result.output
    record = record_of(tmp_path / "run")
    dense, ours = record["dense_accuracy"], record["metrics"]["posterior_mean"]["accuracy"]
    assert dense > 0.9 > record["metrics"]["baseline"]["accuracy"]
    assert "dense, to compare with: epoch  20/20  NLL " in result.output
    rows = {line.split("  ")[1].strip(): line for line in result.output.splitlines() if line.startswith("  ")}
    assert rows["dense"].rstrip().endswith(f"{dense:.1%}")
    assert rows["factors, ranks found"].rstrip().endswith(f"{ours:.1%}")
    assert json.loads(run("report", tmp_path / "run", "--json").stdout)["dense_accuracy"] == dense
    page = tmp_path / "page.html"
    assert run("report", tmp_path / "run", "--out", page).exit_code == 0
    assert f"dense: {percent(dense)}" in page.read_text()


def test_it_is_the_same_network_and_the_examples_held_back(tmp_path):
    """With hardly any learning rate its accuracy is that of the network as it was made."""
    data = images(tmp_path / "photos", per_class=40)
    options = ("--epochs", 1, "--lr", 1e-12, "--seed", 3, "--validation-share", 0.4, "--dense", "--quiet")
    assert run("train", data, *options, "--out", tmp_path / "run").exit_code == 0
    model, learned = learn(data, None, DataOptions(validation_share=0.4))
    network = learned.preparation.network(model)
    torch.manual_seed(3)
    dense = network.make(**network.options).train()
    held = torch.from_numpy(learned.validation)
    train = torch.from_numpy(learned.train)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(300_000)
        order = torch.randperm(len(train), generator=generator)
        size = record_of(tmp_path / "run")["spec"]["batch_size"]
        for batch in order[: len(order) // size * size].split(size):  # statistics of batch norms
            dense(*(x[train][batch] for x in learned.examples.inputs))
        answers = dense.eval()(*(x[held] for x in learned.examples.inputs)).argmax(1)
    expected = float((answers == learned.examples.labels[held]).double().mean())
    assert record_of(tmp_path / "run")["dense_accuracy"] == pytest.approx(expected)


def test_a_stop_while_it_is_trained_loses_nothing_of_the_factors(tmp_path, monkeypatch):
    data = table(tmp_path / "t.csv", drop=("price",))
    options = ("--target", "kind", "--epochs", 4, "--dense")
    assert run("train", data, *options, "--quiet", "--out", tmp_path / "whole").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.dense_line", lambda *_: os.kill(os.getpid(), signal.SIGINT) or "")
        stopped = run("train", data, *options, "--out", tmp_path / "parts")
    assert stopped.exit_code == 130
    assert "Stopped while the dense network was trained; all epochs of the factors are kept." in stopped.output
    command = stopped.output[stopped.output.index("rankfold train") :].split()
    resumed = run(*command[1:])
    assert resumed.exit_code == 0, resumed.output
    assert "All epochs are done. The dense network is trained from its first epoch." in resumed.output
    whole, parts = record_of(tmp_path / "whole"), record_of(tmp_path / "parts")
    for key in ("dense_accuracy", "ranks", "parameters", "metrics"):
        assert parts[key] == whole[key]


def test_it_is_told_of_and_stopped_within_a_long_epoch(tmp_path, monkeypatch):
    data = table(tmp_path / "t.csv", drop=("price",))
    line = train_output.moment_line

    def press_after_two_steps(moment, epochs):
        if (moment.stage, moment.epoch, moment.step) == ("dense", 1, 2):
            os.kill(os.getpid(), signal.SIGINT)
        return line(moment, epochs)

    monkeypatch.setattr(training, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr("rankfold.cli.moments._SECONDS", 0.0)
    monkeypatch.setattr(train_output, "moment_line", press_after_two_steps)
    stopped = run("train", data, "--target", "kind", "--epochs", 1, "--dense", "--out", tmp_path / "run")
    assert stopped.exit_code == 130
    assert "dense, to compare with: epoch 1/1, step 2 of 13" in stopped.output
    assert "step 3 of 13" not in stopped.output.partition("dense, to compare with")[2]
    assert "Stopped while the dense network was trained; all epochs of the factors are kept." in stopped.output


def test_it_may_be_asked_for_when_a_run_goes_on(tmp_path, monkeypatch):
    data = table(tmp_path / "t.csv", drop=("price",))
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.progress_line", lambda _: os.kill(os.getpid(), signal.SIGINT) or "")
        assert run("train", data, "--target", "kind", "--epochs", 3, "--out", tmp_path / "run").exit_code == 130
    assert run("train", data, "--out", tmp_path / "run", "--resume", "--dense").exit_code == 0
    assert 0.0 <= record_of(tmp_path / "run")["dense_accuracy"] <= 1.0


def test_without_it_nothing_dense_is_trained(tmp_path):
    data = table(tmp_path / "t.csv", drop=("price",))
    result = run("train", data, "--target", "kind", "--epochs", 1, "--json", "--out", tmp_path / "run")
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == ["epoch", "result"]
    assert "dense_accuracy" not in record_of(tmp_path / "run")
    both = run("train", data, "--target", "kind", "--epochs", 1, "--json", "--dense", "--out", tmp_path / "both")
    events = [json.loads(line) for line in both.stdout.splitlines()]
    assert [event["event"] for event in events] == ["epoch", "dense epoch", "result"]
    assert events[-1]["dense_accuracy"] == record_of(tmp_path / "both")["dense_accuracy"]


def test_a_dense_network_that_fails_is_a_warning(tmp_path, monkeypatch):
    def fail(*_):
        raise NumericalFault("the NLL of the dense network became NaN or infinite in epoch 1")

    monkeypatch.setattr("rankfold.jobs.running.dense_accuracy", fail)
    data = table(tmp_path / "t.csv", drop=("price",))
    result = run("train", data, "--target", "kind", "--epochs", 1, "--dense", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "in epoch 1, so there is nothing to compare with" in result.output
    assert record_of(tmp_path / "run")["dense_accuracy"] is None
    assert not (tmp_path / "run" / "failure.json").exists()


def test_it_is_refused_where_there_is_no_accuracy(tmp_path):
    quantity = run("train", table(tmp_path / "t.csv", drop=("kind",)), "--target", "price", "--dense")
    assert quantity.exit_code == 2
    assert "--dense compares accuracies, which a regression of 'price' has not; leave it out" in quantity.output


def test_small_tables_of_clicks_have_a_dense_network_and_large_ones_none(tmp_path, monkeypatch):
    command = ("train", clicks(tmp_path / "train.txt"), "--dense", "--epochs", 1, "--quiet", "--out")
    assert run(*command, tmp_path / "small").exit_code == 0
    assert 0.0 <= record_of(tmp_path / "small")["dense_accuracy"] <= 1.0
    monkeypatch.setattr("rankfold.jobs.criteo._ONE_PASS", 1)
    monkeypatch.setattr("rankfold.jobs.criteo.LARGE_TABLE", 1)
    large = run(*command, tmp_path / "large")
    assert large.exit_code == 2
    assert "--dense does not suit --model dlrm, whose dense tables may not fit memory; leave it out" in large.output
    assert not (tmp_path / "large").exists()
