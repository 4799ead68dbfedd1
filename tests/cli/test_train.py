"""``rankfold train`` from data of every kind to a folder, and ``rankfold predict`` from that folder."""

import csv
import errno
import gzip
import json
import lzma
import math
import os
import signal
import sys
import zipfile
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from full_disk import short_of_space
from jobs.made_up import clicks, images, lines, planted_clicks, table
from typer.testing import CliRunner

import rankfold as rf
from rankfold.architecture import Architecture, rebuild
from rankfold.cli import app as entry
from rankfold.cli import train_output
from rankfold.cli.main import app
from rankfold.cli.train_screen import hints
from rankfold.cli.train_wording import under_way
from rankfold.experiments import training
from rankfold.jobs.job import read_preparation
from rankfold.jobs.objective import Objective
from rankfold.jobs.running import JobRun

PREDICTIONS = ("posterior_mean", "monte_carlo")
KINDS = ("images", "pixels", "classes", "quantity", "text", "clicks")


def run(*arguments):
    wide = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}  # paths of tests are long, and a narrow frame cuts them
    return CliRunner(env=wide).invoke(app, [str(argument) for argument in arguments])


def data_of(kind, folder, *, labelled=True):
    """Data of a kind, with the options that training on them needs."""
    match kind:
        case "images":
            return images(folder / "photos", labelled=labelled), []
        case "pixels":
            return images(folder / "pixels", labelled=labelled), ["--model", "mlp"]
        case "classes":
            drop = ("price",) if labelled else ("price", "kind")
            return table(folder / "things.csv", drop=drop), ["--target", "kind"]
        case "quantity":
            return table(folder / "prices.csv", drop=("kind",) if labelled else ("kind", "price")), [
                "--target",
                "price",
            ]
        case "text":
            return lines(folder / "reviews.txt", labelled=labelled), []
        case _:
            return clicks(folder / "train.txt", labelled=labelled), []


@pytest.fixture(scope="module", params=KINDS)
def finished(request, tmp_path_factory):
    """A run of two epochs, by its kind, and its output."""
    folder = tmp_path_factory.mktemp("runs")
    data, options = data_of(request.param, folder)
    result = run("train", data, *options, "--epochs", 2, "--out", folder / "run", "--max-rank", 3)
    assert result.exit_code == 0, result.output
    return request.param, folder / "run", data, result.output


def record_of(folder):
    return json.loads((folder / "run.json").read_text())


def model_of(folder):
    return rebuild(Architecture.read(folder / "model").make(), folder / "model").eval()


# The folder -------------------------------------------------------------------------------------------


def test_the_record_agrees_with_the_model_and_the_screen(finished):
    _, folder, _, output = finished
    record, model = record_of(folder), model_of(folder)
    assert record["parameters"]["final"] == rf.accounting(model).total.final_parameters
    assert record["ranks"]["after"] == record["history"][-1]["ranks"]
    assert [epoch["epoch"] for epoch in record["history"]] == [1, 2]
    for epoch in record["history"]:
        shapes = {name: [len(group) for group in groups] for name, groups in epoch["variances"].items()}
        assert shapes == epoch["ranks"]
        assert {"nll", "kl_nats", "beta", "parameters", "evaluation_nll"} <= epoch.keys()
    assert f"{record['parameters']['final']:,}" in output
    last, num_train = record["history"][-1], record["data"]["num_train"]
    assert f"epoch   2/2  NLL {last['nll']:.3f}  KL {last['kl_nats'] / num_train:.3f} nats per example" in output
    assert record["data"]["num_evaluation"] == round(
        0.1 * sum(record["data"][k] for k in ("num_train", "num_evaluation"))
    )


def test_the_folder_is_whole_and_can_be_reported(finished):
    _, folder, _, _ = finished
    assert {path.name for path in folder.iterdir()} >= {"run.json", "job.json", "preprocessing.json", "model", "events"}
    assert not (folder / "train").exists()
    assert any((folder / "events").iterdir())
    assert run("report", folder, "--out", folder / "page.html").exit_code == 0


def test_the_first_line_names_the_folder_and_a_guess(finished):
    kind, folder, _, output = finished
    first = output.splitlines()[0]
    assert first.startswith(f"{folder}: ")
    assert ("guessed from the target's numbers; --task classification changes it" in first) == (kind == "quantity")


def test_a_task_that_was_asked_for_is_no_guess(tmp_path):
    data = table(tmp_path / "t.csv")
    options = ("--target", "price", "--task", "regression", "--epochs", 1, "--out", tmp_path / "run")
    result = run("train", data, *options)
    assert result.exit_code == 0, result.output
    assert "guessed" not in result.output
    assert "1 epoch in" in result.output
    record = record_of(tmp_path / "run")
    last, scores = record["history"][-1], record["metrics"]["posterior_mean"]
    assert last["evaluation_rmse"] == pytest.approx(scores["rmse"], rel=1e-4)
    # in the unit of the target, with the noise that was fitted when training was over
    noise = scores["noise_std"]
    expected = math.log(noise) + 0.5 * math.log(2 * math.pi) + 0.5 * (scores["rmse"] / noise) ** 2
    assert scores["nll_nats"] == pytest.approx(expected, rel=1e-4)
    assert scores["nll_nats"] < last["evaluation_nll"] < scores["nll_nats"] + 1
    noisy = record["history"][-1]["nll"] - record["history"][-1]["evaluation_nll"]
    assert abs(noisy) < 1.0  # in one unit: prices vary by 11, whose logarithm is 2.4
    rmse = record["metrics"]["posterior_mean"]["rmse"]
    assert f", RMSE {rmse:.4g}, R² " in run("report", tmp_path / "run").output


def test_the_least_data_there_can_be_are_a_regression_too(tmp_path):
    """11 rows of 11 whole numbers; one row is held back, and has no R²."""
    data = tmp_path / "t.csv"
    data.write_text("x,y\n" + "".join(f"{n},{3 * n}\n" for n in range(11)))
    result = run("train", data, "--target", "y", "--epochs", 1, "--out", tmp_path / "run")
    assert "regression of 'y' (guessed" in result.output.splitlines()[0]
    assert "1 example held back" in result.output
    assert "R²" not in result.output
    data.write_text("x,y\n4,12\n")
    predicted = run("predict", tmp_path / "run", data, "--out", tmp_path / "p.csv")
    assert "1 prediction in" in predicted.output
    assert "R²" not in predicted.output
    assert run("report", tmp_path / "run", "--out", tmp_path / "page.html").exit_code == 0


def test_another_run_never_replaces_it(finished):
    kind, folder, data, _ = finished
    assert "holds a finished run" in text(run("train", data, *data_of(kind, folder.parent)[1], "--out", folder))
    assert "is finished" in text(run("train", data, "--out", folder, "--resume"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "prize"], "has no column 'prize', which --target names"),
        (["--target", "kind", "--model", "cnn"], "--model cnn does not suit"),
        (["--target", "kind", "--lr", -1], "--lr must be a positive number"),
        (["--target", "kind", "--validation-share", 1.5], "--validation-share must lie"),
    ],
)
def test_a_mistake_is_named_before_a_folder_that_is_taken(options, message, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert message in text(run("train", table(tmp_path / "t.csv"), *options, "--out", tmp_path / "mine"))


def test_data_of_the_same_name_are_told_whose_run_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, options = data_of("classes", tmp_path)
    assert run("train", data, *options, "--epochs", 1, "--quiet").exit_code == 0
    other = data.rename(tmp_path / "things.data.csv")
    refused = text(run("train", other, *options))
    assert f"runs/things holds a finished run of {data}; choose another folder with --out, such as --out" in refused
    assert "--out runs/things-2" in refused
    assert run("train", other, *options, "--epochs", 1, "--out", "runs/things-2").exit_code == 0


def test_a_folder_of_other_files_or_that_cannot_be_made_is_refused(tmp_path):
    data, options = data_of("classes", tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for out, message in (
        ("mine", "mine holds files that are no run"),
        ("mine/notes.txt/run", "notes.txt is a file, not a folder); choose another place"),
    ):
        result = run("train", data, *options, "--epochs", 1, "--out", tmp_path / out)
        assert result.exit_code == 2
        assert message in text(result)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_layer_that_collapsed_twice_is_named_once(finished):
    record = record_of(finished[1])
    layer = next(iter(record["ranks"]["after"]))
    twice = [f"{layer}.tensor collapsed: group [{group}] is dead" for group in (0, 1)]
    told = " ".join(hints({**record, "warnings": twice}))
    assert f"no use for {layer} (1 of {len(record['ranks']['after'])} layers" in told


def test_a_kl_weight_of_0_is_named_where_no_rank_was_cut(tmp_path):
    data, options = data_of("quantity", tmp_path)
    result = run("train", data, *options, "--epochs", 2, "--kl-weight", 0, "--out", tmp_path / "run")
    said = "No rank was cut: with --kl-weight 0 the prior counts for nothing, and ranks are not determined. Leave it"
    assert said in result.output
    record = record_of(tmp_path / "run")
    assert record["ranks"]["before"] == record["ranks"]["after"]
    light = {**record, "spec": {**record["spec"], "kl_weight": 0.1}}
    assert not any(said in hint for hint in hints(light))
    useless = {"metrics": {**record["metrics"], "posterior_mean": {"rmse": 1e9}}}
    assert "no better than always answering" in next(hints(light | useless))
    assert "try --kl-weight 0.025, or more --epochs." in next(hints(light | useless))
    assert next(hints(record | useless)).endswith(". Try more --epochs.")  # nothing is less than 0


def test_the_command_says_its_version():
    result = run("--version")
    assert result.exit_code == 0
    assert result.output == f"rankfold {rf.__version__}\n"


def test_a_rule_in_a_small_file_of_clicks_is_found(tmp_path):
    data = planted_clicks(tmp_path / "clicks.tsv")
    options = ("--model", "dlrm", "--epochs", 20, "--lr", 0.005, "--quiet", "--out", tmp_path / "run")
    assert run("train", data, *options).exit_code == 0
    record = record_of(tmp_path / "run")
    assert record["metrics"]["posterior_mean"]["auc"] > 0.78
    assert record["parameters"]["dense"] > 5 * record["parameters"]["final"]


def test_the_shell_completes_commands():
    typed = {"_RANKFOLD_COMPLETE": "complete_bash", "COMP_WORDS": "rankfold tra", "COMP_CWORD": "1"}
    assert CliRunner(env=typed).invoke(app, prog_name="rankfold").output.split() == ["train"]


# Predicting -------------------------------------------------------------------------------------------


def test_predictions_are_the_models(finished, tmp_path):
    """Against the network called by hand on data prepared by hand."""
    kind, folder, data, _ = finished
    result = run("predict", folder, data, "--samples", 0, "--out", tmp_path / "p.csv", "--json")
    assert result.exit_code == 0, result.output
    found = read_csv(tmp_path / "p.csv")
    examples = read_preparation(folder).read(data)
    with torch.no_grad():
        outputs = model_of(folder)(*examples.inputs).double()
    if kind == "quantity":
        target = read_preparation(folder).target
        expected = (outputs * target.std + target.mean).numpy()
        actual = [float(row["mean"]) for row in found]
    elif kind == "clicks":
        expected, actual = outputs.sigmoid().numpy(), [float(row["probability_1"]) for row in found]
    else:
        expected = outputs.softmax(1).max(1).values.numpy()
        actual = [float(row["probability"]) for row in found]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    spreads = [name for name in found[0] if name.startswith("std")]
    assert spreads == (["std"] if kind == "quantity" else [])  # of a quantity, the noise alone
    assert [row[next(iter(row))] for row in found] == list(examples.names)
    if kind != "quantity":
        right = np.mean([row["prediction"] == label for row, label in zip(found, labels_of(kind, data), strict=True)])
        scores = json.loads(result.output)["scores"]
        assert scores["accuracy"] == pytest.approx(right)
    if kind == "clicks":
        assert scores["auc"] == pytest.approx(share_of_pairs_in_order(actual, labels_of(kind, data)))


def share_of_pairs_in_order(probabilities, labels):
    """The AUC by its meaning: how often a click has a higher probability than what is none."""
    clicks, others = ([p for p, label in zip(probabilities, labels, strict=True) if label == which] for which in "10")
    return np.mean([(a > b) + 0.5 * (a == b) for a in clicks for b in others])


def read_csv(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def labels_of(kind, data):
    if kind in ("images", "pixels"):
        return [path.parent.name for path in sorted(data.rglob("*.png"), key=lambda p: (p.parent.name, p.name))]
    if kind == "classes":
        return [row["kind"] for row in read_csv(data)]
    return [line.split("\t")[0] for line in data.read_text().splitlines()]


def test_labels_may_be_missing_and_samples_spread(finished, tmp_path):
    kind, folder, _, _ = finished
    bare, _ = data_of(kind, tmp_path, labelled=False)
    result = run("predict", folder, bare, "--samples", 8, "--out", "-")
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == len(read_preparation(folder).read(bare))
    spread = "std_of_weights" if kind == "quantity" else "std"
    assert all(float(row[spread]) > 0 for row in rows)
    if kind == "quantity":
        assert all(float(row["std"]) > float(row["std_of_weights"]) for row in rows)
    again = run("predict", folder, bare, "--samples", 8, "--out", "-")
    assert again.stdout == result.stdout


def test_a_single_image_is_predicted_as_in_its_folder(finished, tmp_path):
    kind, folder, data, _ = finished
    if kind in ("images", "pixels"):
        one = run("predict", folder, data / "up" / "up3.png", "--samples", 0, "--out", "-").stdout.splitlines()[1]
        several = run("predict", folder, data, "--samples", 0, "--out", "-").stdout.splitlines()
        assert f"up/{one}" in several


def test_a_file_of_predictions_is_not_replaced_unasked(finished, tmp_path):
    _, folder, data, _ = finished
    out = tmp_path / "p.csv"
    out.write_text("mine")
    result = run("predict", folder, data, "--out", out)
    assert result.exit_code == 2
    assert out.read_text() == "mine"
    beyond = run("predict", folder, data, "--out", out / "p.csv")
    assert beyond.exit_code == 2
    assert "cannot be written" in text(beyond)
    with short_of_space(10):
        full = run("predict", folder, data, "--out", tmp_path / "full" / "p.csv")
    assert "p.csv cannot be written (File too large); choose another place" in text(full)
    assert not list((tmp_path / "full").iterdir())
    empty = tmp_path / "full"
    for folder_or_not, message in (
        (
            tmp_path / "nowhere",
            f"there is no folder {tmp_path / 'nowhere'}; name the folder of a run, as `rankfold train`",
        ),
        (out, f"{out} is a file; name the folder of a run, as"),
        (empty, f"{empty} is no folder of a run: it has no job.json; name the folder of a run, as"),
    ):
        assert message in text(run("predict", folder_or_not, data, "--out", out))
    assert run("predict", folder, data, "--out", out, "--overwrite", "--samples", 2).exit_code == 0


@pytest.mark.parametrize("names", [("good", "bad"), ("bad", "good")])
def test_a_text_without_a_known_word_gets_about_the_shares_of_the_classes(names, tmp_path):
    """Whichever class is the first by its name: ``names`` are those of three quarters of the texts, and of the rest."""
    frequent, rare = names
    words = {frequent: "fine great", rare: "poor dull"}
    labels = [rare if n % 4 == 0 else frequent for n in range(80)]
    data = tmp_path / "reviews.txt"
    data.write_text("".join(f"{label}\tword{n % 9} {words[label]}\n" for n, label in enumerate(labels)))
    assert run("train", data, "--quiet", "--epochs", 25, "--out", tmp_path / "run").exit_code == 0
    new = tmp_path / "new.txt"
    new.write_text("gibberish all over\nfine great\npoor dull\n")
    result = run("predict", tmp_path / "run", new, "--out", tmp_path / "p.csv", "--json")
    unknown, *known = read_csv(tmp_path / "p.csv")
    assert float(unknown[f"probability_{frequent}"]) == pytest.approx(0.75, abs=0.15)
    assert [row["prediction"] for row in known] == [frequent, rare]
    assert min(float(row["probability"]) for row in known) > 0.9
    figures = json.loads(result.output)
    assert figures["unknown"] == {"words": 1}
    assert figures["notes"] == ["1 of 3 lines hold no word that training knew"]


def test_values_that_training_did_not_see_are_counted(finished, tmp_path):
    kind, folder, _, _ = finished
    data, _ = data_of(kind, tmp_path)
    if kind == "classes":
        spoiled(spoiled(data, 4, "colour", "mauve"), 9, "colour", "teal")
        expected = [
            "colour: 2 of 60 rows hold a value that training did not see, or saw only once; they count as unknown"
        ]
    elif kind == "clicks":
        fields = [line.split("\t")[14:] for line in data.read_text().splitlines()]
        columns = list(zip(*([int(cell or "0", 16) for cell in row] for row in fields), strict=True))
        known = [{cell for cell, times in Counter(column[:108]).items() if times > 1} for column in columns]
        unknown = [sum(cell not in kept for cell in column) for kept, column in zip(known, columns, strict=True)]
        expected = [
            f"{sum(map(bool, unknown))} of 26 categories hold values that training did not see, or saw only once; they "
            f"count as unknown. category {int(np.argmax(unknown)) + 1} has the most, in {max(unknown)} of 120 lines"
        ]
    else:
        expected = []
    out = ("--out", tmp_path / "p.csv", "--samples", 0, "--overwrite")
    assert json.loads(run("predict", folder, data, *out, "--json").output)["notes"] == expected
    assert all(note in run("predict", folder, data, *out).output for note in expected)


# Interruption -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "number"), [("classes", signal.SIGINT), ("quantity", signal.SIGTERM), ("images", signal.SIGINT)]
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(kind, number, tmp_path, monkeypatch):
    data, options = data_of(kind, tmp_path)
    options = [*options, "--epochs", 8, "--lr", 0.03, "--kl-weight", 3, "--max-rank", 4, "--seed", 5]
    assert run("train", data, *options, "--quiet", "--out", tmp_path / "whole").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.progress_line", lambda run: _interrupt_after(run, 6, number))
        stopped = run("train", data, *options, "--out", tmp_path / "parts")
    assert stopped.exit_code == 128 + number
    assert "Stopped after 6 of 8 epochs; the checkpoint is kept." in stopped.output
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    command = stopped.output[stopped.output.index("rankfold train") :].split()
    assert run("predict", tmp_path / "parts", data).exit_code == 2
    resumed = run(*command[1:])
    assert resumed.exit_code == 0, resumed.output
    assert "Going on after epoch 6." in resumed.output
    whole, parts = record_of(tmp_path / "whole"), record_of(tmp_path / "parts")
    for key in ("spec", "ranks", "parameters", "metrics"):
        assert parts[key] == whole[key]
    assert [{**e, "seconds": 0} for e in parts["history"]] == [{**e, "seconds": 0} for e in whole["history"]]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_stopped_within_an_epoch_ends_as_one_that_was_not(as_json, tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    options = [*options, "--epochs", 4, "--batch-size", 16, "--seed", 5]
    assert run("train", data, *options, "--quiet", "--out", tmp_path / "whole").exit_code == 0
    show = train_output.Output.show_moment

    def press_after_two_steps(self, moment):
        if (moment.epoch, moment.step) == (2, 2):
            signal.raise_signal(signal.SIGINT)
        show(self, moment)

    with monkeypatch.context() as patch:
        patch.setattr(training, "MOMENT_SECONDS", 0.0)
        patch.setattr(train_output.Output, "show_moment", press_after_two_steps)
        stopped = run("train", data, *options, *["--json"] * as_json, "--out", tmp_path / "parts")
    assert stopped.exit_code == 130
    if as_json:
        said = json.loads(stopped.stdout.splitlines()[-1])
        assert (said["event"], said["epoch"], said["step"]) == ("stopped", 1, 2)
        assert said["resume"].startswith("rankfold train ")
    else:
        assert "Stopped within epoch 2 of 4; the checkpoint is kept." in stopped.output
    resumed = run("train", data, "--out", tmp_path / "parts", "--resume")
    assert "Going on after 2 steps of epoch 2." in resumed.output
    whole, parts = record_of(tmp_path / "whole"), record_of(tmp_path / "parts")
    for key in ("spec", "ranks", "parameters", "metrics"):
        assert parts[key] == whole[key]
    assert [{**e, "seconds": 0} for e in parts["history"]] == [{**e, "seconds": 0} for e in whole["history"]]


def test_a_run_that_is_stopped_after_its_numbers_broke_has_failed(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)

    def break_and_press(self, moment):
        with torch.no_grad():
            next(self.run.model.parameters()).fill_(torch.nan)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(training, "MOMENT_SECONDS", 0.0)
        patch.setattr(train_output.Output, "show_moment", break_and_press)
        failed = run("train", data, *options, "--batch-size", 16, "--out", tmp_path / "run")
    assert failed.exit_code == 1
    assert "training failed at step 1: numbers became NaN or infinite; try --lr" in failed.output
    assert (tmp_path / "run" / "failure.json").exists()
    assert "checkpoint is kept" not in failed.output


def _interrupt_after(run, epoch, number=signal.SIGINT):
    if len(run.history) == epoch:
        os.kill(os.getpid(), number)
    return ""


def test_ctrl_c_while_data_are_read_says_that_nothing_was_written(tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankfold.cli.train_options.learn", stop)
    stopped = run("train", tmp_path / "t.csv", "--out", tmp_path / "run")
    assert stopped.exit_code == 130
    assert stopped.output == "Stopped before anything was written; give the same command to start again.\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("number", "how", "seconds", "kept"),
    [
        (signal.SIGINT, "Ctrl-C again", 0.0, "Stopped at once; the checkpoint after epoch 2 is kept."),
        (
            signal.SIGTERM,
            "another SIGTERM",
            1e9,
            "Stopped at once, before there was a checkpoint; training begins again at epoch 1.",
        ),
    ],
)
def test_whoever_asks_twice_is_told_what_is_kept(number, how, seconds, kept, tmp_path, monkeypatch, capfd):
    data, options = data_of("classes", tmp_path)
    run_epoch = training.Training._run_epoch

    def press_twice_in_the_third(self, step, listener):
        if len(self.history) == 2:
            signal.raise_signal(number)
            signal.raise_signal(number)
        return run_epoch(self, step, listener)

    monkeypatch.setattr(training.Training, "_run_epoch", press_twice_in_the_third)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", seconds)
    stopped = run("train", data, *options, "--epochs", 8, "--out", tmp_path / "run")
    assert stopped.exit_code == 128 + number
    assert kept in stopped.output
    assert f"Go on with: rankfold train {data} --out {tmp_path / 'run'} --resume" in stopped.output
    assert capfd.readouterr().err == f"Stopping when a checkpoint is written; {how} stops at once.\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_without_room_for_events_a_run_is_finished_all_the_same(as_json, tmp_path, monkeypatch):
    def fail(folder, run):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rankfold.jobs.running.write_events", fail)
    data, options = data_of("classes", tmp_path)
    result = run("train", data, *options, "--epochs", 1, *["--json"] * as_json, "--out", tmp_path / "run")
    assert result.exit_code == 0
    events = tmp_path / "run" / "events"
    warning = f"There are no events for TensorBoard: {events} cannot be written (No space left on device); free some"
    assert warning in result.output
    if as_json:
        assert json.loads(result.stdout.splitlines()[-1])["event"] == "result"


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_after_the_result_is_written_does_not_ask_to_go_on(as_json, tmp_path, monkeypatch):
    def press_twice(folder, run):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("rankfold.jobs.running.write_events", press_twice)
    data, options = data_of("classes", tmp_path)
    stopped = run("train", data, *options, "--epochs", 2, *["--json"] * as_json, "--out", tmp_path / "run")
    assert stopped.exit_code == 130
    last = stopped.stdout.splitlines()[-1]
    if as_json:
        assert json.loads(last) == {"event": "stopped", "epoch": 2, "step": 0, "resume": None}
    else:
        assert last == f"Stopped, but the run is finished, all of it is in {tmp_path / 'run'}."


def test_an_error_after_the_result_is_written_does_not_ask_to_go_on(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JobRun, "_leave_events", fail)
    data, options = data_of("classes", tmp_path)
    failed = run("train", data, *options, "--epochs", 1, "--out", tmp_path / "run")
    assert failed.exit_code == 1
    assert f"free some space there; the run is finished, all of it is in {tmp_path / 'run'}" in failed.output
    assert "--resume" not in failed.output


def test_what_is_under_way_is_an_epoch_that_there_is():
    spec = SimpleNamespace(spec=SimpleNamespace(epochs=3))
    shown = [under_way(SimpleNamespace(history=[None] * done, job=spec)) for done in (0, 2, 3)]
    assert shown == ["epoch 1/3 is under way", "epoch 3/3 is under way", "all epochs are done"]


def test_what_is_said_of_a_stop_is_one_line_however_narrow_the_terminal(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    monkeypatch.setattr("rankfold.cli.train_output.progress_line", lambda run: _interrupt_after(run, epoch=1))
    command = ["train", data, *options, "--epochs", 3, "--out", tmp_path / "run"]
    stopped = CliRunner(env={"COLUMNS": "30"}).invoke(app, list(map(str, command)))
    assert "Stopped after 1 of 3 epochs; the checkpoint is kept." in stopped.output


def test_a_run_without_a_checkpoint_says_that_it_begins_again(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.progress_line", lambda run: sys.exit(9))
        assert run("train", data, *options, "--epochs", 2, "--out", tmp_path / "run").exit_code == 9
    resumed = run("train", data, "--out", tmp_path / "run", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "The run was stopped before its first checkpoint: it begins again, at epoch 1." in resumed.output


def test_on_a_full_disk_training_says_how_to_go_on(tmp_path):
    data, options = data_of("classes", tmp_path)
    with short_of_space(10_000):
        failed = run("train", data, *options, "--epochs", 2, "--quiet", "--out", tmp_path / "run")
    assert failed.exit_code == 1
    assert failed.output.startswith(f"error: {tmp_path / 'run'} cannot be written (File too large); ")
    assert "Traceback" not in failed.output
    assert run("train", data, "--out", tmp_path / "run", "--resume").exit_code == 0


def test_going_on_with_a_full_disk_loses_no_scores(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.progress_line", lambda run: _interrupt_after(run, epoch=2))
        assert run("train", data, *options, "--epochs", 3, "--out", tmp_path / "run").exit_code == 130
    lines_of_epochs = (tmp_path / "run" / "epochs.jsonl").read_bytes()
    with short_of_space(len(lines_of_epochs) - 1):
        failed = run("train", data, "--out", tmp_path / "run", "--resume")
    assert failed.exit_code == 1
    assert "cannot be written (File too large)" in failed.output
    assert (tmp_path / "run" / "epochs.jsonl").read_bytes() == lines_of_epochs


def test_a_run_that_was_killed_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """Epochs after the last checkpoint are trained again, and stand in the record once."""
    data, options = data_of("classes", tmp_path)
    options = [*options, "--epochs", 6, "--out", tmp_path / "run"]

    def kill(run):
        if len(run.history) == 4:
            raise SystemExit(9)
        return ""

    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.progress_line", kill)
        patch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
        writes = iter([True, True, False, False])
        write = training.Training._write_checkpoint
        patch.setattr(training.Training, "_write_checkpoint", lambda self: next(writes) and write(self))
        assert run("train", data, *options).exit_code == 9
    assert len((tmp_path / "run" / "epochs.jsonl").read_text().splitlines()) == 4
    result = run("train", data, "--out", tmp_path / "run", "--resume")
    assert "Going on after epoch 2." in result.output
    history = record_of(tmp_path / "run")["history"]
    assert [epoch["epoch"] for epoch in history] == [1, 2, 3, 4, 5, 6]
    assert all("variances" in epoch for epoch in history)


def test_a_run_that_was_killed_while_it_was_scored_has_the_scores_of_all_epochs(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    scored = []

    def die_at_the_third(self, *arguments):
        scored.append(None)
        return sys.exit(9) if len(scored) == 3 else scores(self, *arguments)

    scores = Objective.quick_scores
    with monkeypatch.context() as patch:
        patch.setattr(Objective, "quick_scores", die_at_the_third)
        patch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
        assert run("train", data, *options, "--epochs", 4, "--out", tmp_path / "run").exit_code == 9
    assert "Going on after epoch 2." in run("train", data, "--out", tmp_path / "run", "--resume").output
    assert all({"evaluation_accuracy", "variances"} <= set(epoch) for epoch in record_of(tmp_path / "run")["history"])


def test_resuming_insists_on_the_same_run(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    monkeypatch.setattr("rankfold.cli.train_output.progress_line", lambda run: _interrupt_after(run, epoch=1))
    assert run("train", data, *options, "--epochs", 4, "--out", tmp_path / "run").exit_code == 130
    again = ("train", data, "--out", tmp_path / "run")
    assert f"holds an unfinished run of {data}; go on with: rankfold train {data}" in text(run(*again, *options))
    assert "--epochs is 4" in text(run(*again, "--resume", "--epochs", 5))
    nothing = text(run("train", data, "--out", tmp_path / "other", "--resume"))
    assert f"there is no run in {tmp_path / 'other'} to go on with; leave --resume out to start it" in nothing
    for other in (images(tmp_path / "photos"), lines(tmp_path / "reviews.txt")):
        refused = text(run("train", other, "--out", tmp_path / "run", "--resume"))
        assert f"{tmp_path / 'run'} was trained on {data}, got {other}; name the data it was trained on" in refused
    first, *others = [line.split(",") for line in data.read_text().splitlines()]
    data.write_text("\n".join(map(",".join, [first, *([str(2 * float(row[0])), *row[1:]] for row in others)])))
    assert "is not what it was when the run" in text(run(*again, "--resume"))  # the same once standardised
    table(data, drop=("price",), seed=1)
    assert "is not what it was when the run" in text(run(*again, "--resume"))
    assert (tmp_path / "run" / "train" / "epoch-0001").is_dir()  # nothing is lost by trying


def test_a_damaged_checkpoint_is_named_with_a_remedy(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.train_output.progress_line", lambda run: _interrupt_after(run, epoch=1))
        assert run("train", data, *options, "--epochs", 3, "--out", tmp_path / "run").exit_code == 130
    checkpoint, again = (
        tmp_path / "run" / "train" / "epoch-0001",
        ("train", data, "--out", tmp_path / "run", "--resume"),
    )
    (tmp_path / "run" / "epochs.jsonl").write_bytes(b"\xff")  # no more than a line that is left out
    whole = (checkpoint / "state.pt").read_bytes()
    for content in (whole[:500], whole[: len(whole) // 2], b"", b"text"):
        (checkpoint / "state.pt").write_bytes(content)
        refused = text(run(*again))
        assert f"{checkpoint}/state.pt is damaged (" in refused
        assert f"); delete {checkpoint} to begin again at epoch 1" in refused
    (checkpoint / "state.pt").write_bytes(whole)
    for name in ("model.safetensors", "rankfold.json"):
        whole = (checkpoint / name).read_bytes()
        for content in (whole[: len(whole) // 2], b""):
            (checkpoint / name).write_bytes(content)
            refused = text(run(*again))
            assert f"{checkpoint / name} is " in refused
            assert f"; or delete {checkpoint} to begin again at epoch 1" in refused
        (checkpoint / name).unlink()
        assert f"; or delete {checkpoint} to begin again at epoch 1" in text(run(*again))
        (checkpoint / name).write_bytes(whole)
    assert "Going on after epoch 1." in run(*again).output


# Output for scripts -----------------------------------------------------------------------------------


def test_json_has_a_line_per_epoch_and_one_at_the_end(tmp_path):
    data, options = data_of("quantity", tmp_path)
    result = run("train", data, *options, "--epochs", 3, "--json", "--out", tmp_path / "run")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == ["epoch", "epoch", "epoch", "result"]
    assert events[1]["epoch"] == 2
    assert events[-1]["metrics"] == record_of(tmp_path / "run")["metrics"]
    quiet = run("train", data, *options, "--epochs", 3, "--json", "--quiet", "--out", tmp_path / "other")
    assert json.loads(quiet.stdout)["event"] == "result"  # nothing else


def text(result):
    """The output on one line, without frames."""
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


# What is wrong is named -------------------------------------------------------------------------------


def spoiled(data, row, column, cell):
    """A table with another cell; row 2 is the first below the names."""
    rows = [line.split(",") for line in data.read_text().splitlines()]
    rows[row - 1][rows[0].index(column)] = cell
    data.write_text("\n".join(map(",".join, rows)))
    return data


@pytest.mark.parametrize(
    ("row", "column", "cell", "message"),
    [
        (5, "width", "wide", "things.csv, row 5, column 'width': 'wide' is no finite number"),
        (5, "width", "1e308", "things.csv, row 5, column 'width': 1e308 is too large to compute with, over 1e+30"),
        (5, "kind", "", "things.csv, row 5, column 'kind' is empty or nan; fill in what is to be predicted"),
        (1, "kind", "sort", "has no column 'kind', which --target names; its columns are width, height, colour, sort"),
    ],
)
def test_a_bad_cell_is_named(row, column, cell, message, tmp_path):
    data = spoiled(table(tmp_path / "things.csv", drop=("price",)), row, column, cell)
    assert message in text(run("train", data, "--target", "kind", "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cells", [range(1, 7), [n / 7 for n in range(30)], range(1000, 1040)])
def test_a_mistake_among_the_numbers_to_predict_is_named(cells, tmp_path):
    """It is no class, unless it is said to be one, or is seen again among few numbers."""
    numbers = [*map(str, cells)] * 10
    data = tmp_path / "t.csv"
    data.write_text("\n".join(["a,price", *(f"{n % 7},{cell}" for n, cell in enumerate(numbers))]))
    refused = text(run("plan", spoiled(data, 9, "price", "oops"), "--target", "price"))
    assert "t.csv, row 9, column 'price': 'oops' is no finite number; nearly all others are; correct it, or" in refused
    assert run("plan", data, "--target", "price", "--task", "classification").exit_code == 0
    again = run("plan", spoiled(data, 20, "price", "oops"), "--target", "price")
    assert again.exit_code == (0 if len(cells) == 6 else 2), again.output


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n" + "1,x\n" * 20, ["--target", "b"], "has one class only, 'x'"),
        ("a,b\n" + "1,2\n" * 20, ["--target", "b", "--task", "regression"], "all numbers in column 'b' are 2"),
        (
            "a,b,c\n" + "1,x,2\n1,y,3\n" * 20,
            ["--target", "b", "--ignore", "c"],
            "has no column besides 'b' that the prediction could come from: --ignore leaves out 'c'; all training "
            "values of 'a' are the same or all differ. Add a column that tells the rows apart",
        ),
        ("b\n" + "x\ny\n" * 20, ["--target", "b"], "that the prediction could come from; add one"),
        ("a,b\n1,x\n2,y\n", ["--target", "b"], "has 2 examples, too few to learn from"),
        (
            "a,b\n" + "".join(f"{n},n{n}\n" for n in range(12)) + "5,z\n" * 3,
            ["--target", "b"],
            "t.csv: 12 of 13 classes have one example only",
        ),
        ("a,b\n1,x\n", ["--target", "b"], "has 1 example, too few to learn from"),
        ("", ["--target", "b"], "t.csv is empty; its first row must name the columns"),
        ("a,b\n", ["--target", "b"], "t.csv has no rows below the names of its columns"),
        ("a,b\n1,x\n2,y\n", [], "name the column to predict with --target; "),
        ("a,b\n1,x\n" * 9, ["--target", "b", "--ignore", "c"], "no column 'c', which --ignore names"),
        ("a,b\n1,x\n" * 9, ["--target", "b", "--model", "cnn"], "--model cnn does not suit"),
        ("a,b\n" + "1,x\n2,y\n" * 9, ["--target", "b", "--max-rank", 900], "--max-rank 900 makes no layer smaller"),
        ("a,b\n" + "1,x\n2,y\n" * 9, ["--target", "b", "--batch-size", 50], "--batch-size must be at most"),
        ("a,b\n" + "1,x\n2,y\n" * 9, ["--target", "b", "--validation-share", 1.5], "--validation-share must lie"),
        ("a,b\n" + "1,x\n2,y\n" * 9, ["--target", "b", "--lr", 0], "--lr must be a positive number, got 0.0"),
        ("a,b\n1,x\n" * 9, ["--target", "b", "--ignore", "b"], "--ignore leaves out 'b', the column to predict"),
        ("a,b\n1,x\n" * 9, ["--target", "b", "--categorical", "b"], "'b' is the one to predict; --task classification"),
        (
            "a,b\n1,x\n" * 9,
            ["--target", "b", "--ignore", "a", "--categorical", "a"],
            "--ignore leaves out 'a', which --categorical names too",
        ),
        ("a,b\n1,x\n" * 9, ["--model", "dlrm"], "t.csv, which is a table; use --model mlp"),
        ("a,b\n1,x\n" * 9, ["--target", "b", "--image-size", 32], "--image-size is the height and width that images"),
    ],
)
def test_a_table_that_cannot_be_learned_is_refused(content, options, message, tmp_path):
    data = tmp_path / "t.csv"
    data.write_text(content)
    assert message in text(run("train", data, *options, "--out", tmp_path / "run"))


@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_file_that_may_not_be_read_is_named_with_a_remedy(command, tmp_path, monkeypatch):
    data = table(tmp_path / "t.csv")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(type(data), "read_bytes", refuse)
    refused = text(run(command, data, "--target", "kind"))
    assert f"{data} cannot be read (Permission denied); change its permissions, or give another" in refused


def test_other_data_that_cannot_be_learned_are_refused(tmp_path):
    def refusal(data, *options):
        return text(run("train", data, *options, "--out", tmp_path / "run"))

    assert "there is no" in refusal(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "has no images" in refusal(tmp_path / "empty")
    assert "has images but no sub-folders" in refusal(images(tmp_path / "flat", labelled=False))
    broken = images(tmp_path / "broken")
    (broken / "up" / "up3.png").write_bytes(b"no image")
    assert "up3.png cannot be read as an image" in refusal(broken)
    assert "line 1 has no tab" in refusal(lines(tmp_path / "bare.txt", labelled=False))
    file = lines(tmp_path / "mixed.txt")
    file.write_text(file.read_text() + "without\n")
    assert "line 61 has no tab" in refusal(file)
    assert "the labels are missing" in refusal(clicks(tmp_path / "c.txt", labelled=False), "--model", "dlrm")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("images", ["--target", "x"], "--target names the column of a table that is predicted, but"),
        ("images", ["--ignore", "x"], "photos is a folder of images; leave --ignore out"),
        ("text", ["--task", "regression"], "reviews.txt is a text file of labelled lines; leave --task out"),
        ("text", ["--image-size", 32], "reviews.txt is a text file of labelled lines; leave --image-size out"),
        ("clicks", ["--categorical", "x"], "train.txt is a file in the Criteo format; leave --categorical out"),
    ],
)
def test_an_option_that_says_nothing_of_the_data_is_refused(kind, options, message, tmp_path):
    data, _ = data_of(kind, tmp_path)
    assert message in text(run("train", data, *options, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_new_data_that_do_not_fit_are_refused(finished, tmp_path):
    kind, folder, _, _ = finished
    data, _ = data_of(kind, tmp_path)

    def refusal(data):
        return text(run("predict", folder, data, "--out", tmp_path / "p.csv"))

    if kind in ("images", "pixels"):
        (data / "up").rename(data / "diagonal")
        assert "diagonal/up0.png: the class 'diagonal' was not there in training" in refusal(data)
        assert "there is no none.png; give an image, a folder of images, or" in refusal("none.png")
    elif kind == "classes":
        assert "row 4, column 'kind': the class 'odd' was not there in training" in refusal(
            spoiled(data, 4, "kind", "odd")
        )
        assert "has no column 'width', which training had" in refusal(table(data, drop=("width",)))
    elif kind == "quantity":
        assert "row 4, column 'height': 'tall' is no finite number" in refusal(spoiled(data, 4, "height", "tall"))
    elif kind == "text":
        data.write_text("so-so\tword1 word2\n")
        assert "line 1: the class 'so-so' was not there in training" in refusal(data)
    else:
        for line, found in (("1\t2", "2 fields"), ("1", "1 field")):
            data.write_text(f"{line}\n")
            assert f"no line in the Criteo format: {data}:1: it has {found}, expected 40" in refusal(data)
    assert "name the folder of a run" in text(run("predict", tmp_path / "nowhere", data))
    assert not (tmp_path / "p.csv").exists()


def test_training_that_fails_says_what_to_try(tmp_path):
    data, options = data_of("classes", tmp_path)
    result = run("train", data, *options, "--epochs", 3, "--lr", 1e6, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "training failed at step 8: numbers became NaN or infinite; try --lr 0.002, in another folder" in (
        result.output
    )
    assert not (tmp_path / "run" / "run.json").exists()
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert failure["step"] == 8
    assert "layers.0.weight" in failure["error"]
    again = ("train", data, "--out", tmp_path / "run")
    for command in ((*again, *options), (*again, "--resume"), ("predict", tmp_path / "run", data)):
        assert "failed at step 8; choose another --out, or delete the folder" in text(run(*command))


def test_an_nll_that_is_not_finite_is_a_failure(tmp_path, monkeypatch):
    data, options = data_of("classes", tmp_path)
    monkeypatch.setattr(Objective, "quick_scores", lambda *_: {"evaluation_nll": float("inf")})
    result = run("train", data, *options, "--epochs", 3, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "the NLL became NaN or infinite" in (tmp_path / "run" / "failure.json").read_text()


def test_a_model_that_learned_nothing_is_told_so(tmp_path):
    data, options = data_of("classes", tmp_path)
    result = run("train", data, *options, "--epochs", 1, "--lr", 1e-9, "--quiet", "--out", tmp_path / "run")
    metrics = record_of(tmp_path / "run")["metrics"]
    useless = min(metrics[kind]["nll_nats"] for kind in PREDICTIONS) >= metrics["baseline"]["nll_nats"]
    assert useless == ("no better than always answering" in result.output)
    assert "are rough" in result.output


def test_probabilities_may_be_better_than_the_shares_where_the_likeliest_class_never_changes(finished):
    kind, folder, _, _ = finished
    if kind != "clicks":
        return
    record = record_of(folder)
    baseline = record["metrics"]["baseline"]
    assert baseline["auc"] == 0.5
    for difference, useless in ((-0.01, False), (0.0, True)):
        scores = {"accuracy": baseline["accuracy"], "nll_nats": baseline["nll_nats"] + difference}
        said = " ".join(hints({**record, "metrics": {**dict.fromkeys(PREDICTIONS, scores), "baseline": baseline}}))
        nll = f"{baseline['nll_nats']:.3f}"
        expected = f"no better than always answering with the shares of the classes (NLL {nll} against {nll})"
        assert (expected in said) == useless


@pytest.mark.parametrize(
    ("missing", "extra"), [("pyarrow", "parquet"), ("PIL", "experiments"), ("torchmetrics", "experiments")]
)
def test_what_is_not_installed_is_named_before_training(missing, extra, tmp_path, monkeypatch):
    data = {"pyarrow": tmp_path / "t.parquet", "PIL": tmp_path / "photos"}.get(missing, tmp_path / "t.csv")
    images(tmp_path / "photos")
    table(tmp_path / "t.csv")
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for name in [n for n in sys.modules if n.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["rankfold", "train", str(data), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit, match=rf"needs {missing}; install it with: pip install 'rankfold\[{extra}\]'"):
        entry()
    assert not (tmp_path / "run").exists()


def european(folder, text="{a};{b};{label}"):
    """Rows with semicolons and decimal commas."""
    random = np.random.default_rng(0)
    rows = [
        text.format(a=f"{a:.4f}".replace(".", ","), b=f"{b:.4f}", label="yes" if a + b > 0 else "no")
        for a, b in random.normal(size=(60, 2))
    ]
    file = folder / "european.csv"
    file.write_text("\n".join(["a;b;y", *rows]) + "\n")
    return file


def test_numbers_with_commas_are_not_taken_for_names(tmp_path):
    file = european(tmp_path)
    result = run("plan", file, "--target", "y")
    assert result.exit_code == 2
    assert "row 2, column 'a': '0,1257' is no number for its comma; write decimal points" in text(result)
    kept = run("plan", file, "--target", "y", "--ignore", "a")
    assert kept.exit_code == 0, kept.output


@pytest.mark.parametrize("options", [[], ["--task", "regression"]])
def test_numbers_to_predict_with_commas_are_named(options, tmp_path):
    """Whichever task is asked for, and whether all of them have one or one alone."""
    refused = text(run("plan", european(tmp_path), "--target", "a", *options))
    assert "row 2, column 'a': '0,1257' is no number for its comma; write decimal points, and nothing" in refused
    assert "or give --task classification if they are classes" in refused
    data = table(tmp_path / "t.csv")
    data.write_text(data.read_text().replace(",", ";"))
    rows = data.read_text().splitlines()
    data.write_text("\n".join([*rows[:6], rows[6].rpartition(";")[0] + ";70,5", *rows[7:]]))
    refused = text(run("plan", data, "--target", "price", *options))
    assert "row 7, column 'price': '70,5' is no number for its comma; " in refused


def test_columns_that_are_left_out_are_named(tmp_path):
    file = european(tmp_path, "n{a};{b};{label}")
    result = run("plan", file, "--target", "y")
    assert result.exit_code == 0, result.output
    assert "left out, as all their values are the same or all differ: 'a'" in result.output


def test_images_in_no_sub_folder_are_counted(tmp_path):
    data, _ = data_of("images", tmp_path)
    options = ("--epochs", 1, "--out", tmp_path / "run")
    (data / "up" / "up3.png").rename(data / "z.png")
    assert "left out, as it is in no sub-folder: 'z.png'" in run("plan", data).output
    (data / "up" / "up4.png").rename(data / "a.PNG")
    said = "left out, as they are in no sub-folder: 2 images, the first is 'a.PNG'"
    result = run("train", data, *options)
    assert f"20 examples to train, 2 held back ({said})" in result.output
    assert read_preparation(tmp_path / "run").left_out == ("a.PNG", "z.png")
    predicted = run("predict", tmp_path / "run", data, "--out", tmp_path / "p.csv")
    assert f"{said}; give a folder without sub-folders to predict for them" in predicted.output
    alone = run("predict", tmp_path / "run", data / "up", "--out", tmp_path / "up.csv")
    assert alone.exit_code == 0
    assert "left out" not in alone.output


def test_images_cannot_be_made_huge(tmp_path):
    data, _ = data_of("images", tmp_path)
    assert "must be at most 4096, got '100000'" in text(run("plan", data, "--image-size", 100000))


def test_malformed_clicks_are_left_out_and_named(tmp_path):
    data = planted_clicks(tmp_path / "c.tsv", 100)
    good = data.read_text().splitlines()
    data.write_text("\n".join([*good[:3], "oops", *good[3:]]) + "\n")
    said = "left out, as it is malformed: line 4 (line 4: it has 1 field, expected 40"
    command = (data, "--model", "dlrm", "--epochs", 1, "--max-rank", 2)
    assert said in run("plan", *command).output
    trained = run("train", *command, "--out", tmp_path / "run")
    assert trained.output.count(said) == 1
    result = run("predict", tmp_path / "run", data, "--samples", 0, "--out", tmp_path / "p.csv")
    assert result.exit_code == 0
    assert said in result.output
    assert [int(row["line"]) for row in read_csv(tmp_path / "p.csv")] == [1, 2, 3, *range(5, 102)]


@pytest.mark.parametrize("kind", ["classes", "text", "clicks"])
@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_packed_files_are_read_as_they_are_unpacked(kind, ending, pack, tmp_path):
    data, options = data_of(kind, tmp_path)
    packed = tmp_path / f"{data.name}.{ending}"
    packed.write_bytes(pack(data.read_bytes()))
    plain, same = (run("plan", file, *options) for file in (data, packed))
    assert same.exit_code == 0, same.output
    assert same.output.replace(str(packed), str(data)) == plain.output
    packed.write_bytes(packed.read_bytes()[:-20])
    assert f"{packed} is cut short or altered (" in text(run("plan", packed, *options))


def test_other_packings_are_recognised(tmp_path):
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as opened:
        opened.write(table(tmp_path / "t.csv"))
    refused = text(run("plan", tmp_path / "t.zip", "--target", "kind"))
    assert "t.zip is packed by zip; unpack it first, or pack it by gzip or xz" in refused
    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    assert "is a packed Parquet file; unpack it first" in text(run("plan", tmp_path / "t.parquet.gz", "--target", "y"))
