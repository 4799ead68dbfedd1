"""The demonstration end to end: what it leaves behind is what it trained."""

import itertools
import json
import os
import signal
import struct
import sys

import pytest
import torch
from full_disk import short_of_space
from typer.testing import CliRunner

import rankfold as rf
from rankfold.checkpoint import load
from rankfold.cli import app as entry
from rankfold.cli.demo_screen import progress_lines
from rankfold.cli.main import app
from rankfold.data.digits import load_digits
from rankfold.demo import DemoRun, Settings, Snapshot, accuracy, classifier
from rankfold.schedule import WARMUP
from rankfold.tensorized_weights import current_ranks

DENSE_PARAMETERS = 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10


def run_demo(*options):
    return CliRunner().invoke(app, ["demo", *options])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    result = run_demo("--epochs", "10", "--seed", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    return out, result.output, json.loads((out / "demo.json").read_text())


def test_the_figures_agree_with_each_other_and_with_the_screen(finished):
    _, output, figures = finished
    assert figures["dense"]["parameters"] == DENSE_PARAMETERS
    assert figures["after"]["parameters"] < figures["before"]["parameters"] < DENSE_PARAMETERS
    assert figures["history"][-1]["parameters"] == figures["after"]["parameters"]
    assert figures["after"]["bytes"] == 4 * figures["after"]["parameters"]
    assert figures["dense"]["accuracy"] > 0.9
    assert figures["after"]["accuracy"] > 0.8
    assert f"{figures['after']['parameters']:,}" in output
    kl = figures["history"][-1]["kl_nats"] / len(load_digits().train_labels)
    assert f"epoch   10/10  NLL {figures['history'][-1]['nll']:.3f}  KL {kl:.3f} nats per image" in output


def test_only_networks_that_were_trained_to_the_end_have_an_accuracy(finished):
    _, output, figures = finished
    assert figures["before"].keys() == {"parameters", "bytes"}
    lines = {
        line.split("  ")[1].strip(): line for line in output.splitlines() if line.startswith(("  dense", "  fact"))
    }
    assert ["%" in lines[name] for name in ("dense", "factors, starting ranks", "factors, ranks found")] == [1, 0, 1]


def test_output_that_is_no_terminal_has_lines_of_80_characters(finished):
    for format in ("cp", "tucker", "tt", "ttm"):
        run = DemoRun(Settings(format=format), load_digits())
        worst = Snapshot(120, 100.0, 12.345, 123_456.0, 1.0, 1.0, 20_000, run.starting_ranks, {})
        run.history.append(worst)
        assert max(map(len, progress_lines(run).splitlines())) <= 80
    _, output, _ = finished
    assert max(map(len, output.split("The model is in")[0].splitlines())) <= 80


def test_ranks_fall_only_after_the_warm_up(finished):
    history = finished[2]["history"]
    for before, after in itertools.pairwise(history):
        fell = after["parameters"] < before["parameters"]
        assert after["parameters"] <= before["parameters"]
        assert not fell or after["epoch"] > WARMUP * 10


def test_the_saved_model_is_the_one_reported(finished):
    out, _, figures = finished
    model = rf.tensorize_(classifier(), Settings().config)
    load(model, out / "model")
    assert accuracy(model, load_digits()) == pytest.approx(figures["after"]["accuracy"])
    assert current_ranks(model) == figures["history"][-1]["ranks"]


def test_the_plot_is_a_png_of_some_size(finished):
    header = (finished[0] / "ranks.png").read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", header[16:24])) > 500


@pytest.mark.parametrize("format", ["cp", "tucker", "tt"])
def test_every_format_and_prior_runs_quietly(format, tmp_path):
    result = run_demo("--format", format, "--prior", "half-cauchy", "--epochs", "1", "--quiet", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "epoch" not in result.output.split("epochs in")[0]
    assert "ranks found" in result.output


def test_json_has_a_line_per_epoch_and_one_at_the_end(tmp_path):
    result = run_demo("--epochs", "2", "--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    *epochs, last = [json.loads(line) for line in result.stdout.splitlines()]
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert [{"event": "epoch", **epoch} for epoch in figures.pop("history")] == epochs
    assert last == {"event": "result", "folder": str(tmp_path), **figures}
    quiet = run_demo("--epochs", "2", "--json", "--quiet", "--out", str(tmp_path))
    assert json.loads(quiet.stdout)["event"] == "result"  # nothing else


def test_a_folder_is_a_demo_from_its_first_file_on(tmp_path, monkeypatch):
    """A disk that was full does not keep the same command from being given again."""
    with monkeypatch.context() as patch:
        patch.setattr("rankfold.cli.demo.save", lambda *_: (tmp_path / "new" / "full").write_text("x" * 10**6))
        with short_of_space(10**5):
            failed = run_demo("--epochs", "1", "--quiet", "--out", str(tmp_path / "new"))
    assert failed.exit_code == 2
    assert "File too large" in " ".join(failed.output.replace("│", " ").split())
    assert run_demo("--epochs", "1", "--quiet", "--out", str(tmp_path / "new")).exit_code == 0


def test_ctrl_c_keeps_what_was_done(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfold.cli.demo.progress_lines", lambda run: os.kill(os.getpid(), signal.SIGINT) or "")
    result = run_demo("--epochs", "9", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "Stopped after 1 of 9 epochs" in result.output
    assert json.loads((tmp_path / "demo.json").read_text())["epochs_done"] == 1
    assert (tmp_path / "model" / "model.safetensors").exists()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_ctrl_c_before_the_first_epoch_says_that_nothing_is_kept(options, tmp_path, monkeypatch):
    monkeypatch.setattr("rankfold.cli.demo.train_dense", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    result = run_demo("--out", str(tmp_path), *options)
    assert result.exit_code == 130
    said = result.stdout.strip()
    assert said == ('{"event": "stopped", "kept": false}' if options else "Stopped at once; nothing was kept yet.")
    assert not list(tmp_path.iterdir())


def test_only_an_earlier_demo_is_overwritten(tmp_path):
    options = ("--epochs", "1", "--quiet", "--out", str(tmp_path))
    (tmp_path / "mine.txt").write_text("mine")
    refused = run_demo(*options)
    assert refused.exit_code == 2
    assert "is no demo" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "mine.txt").unlink()
    assert [run_demo(*options).exit_code for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--format", "svd"], "svd"),
        (["--epochs", "0"], "--epochs"),
        (["--kl-weight", "-1"], "--kl-weight"),
        (["--rank", "3"], "--rank"),
    ],
)
def test_bad_options_are_named(options, named):
    result = run_demo(*options)
    assert result.exit_code == 2
    assert named in result.output


def test_the_same_seed_gives_the_same_run():
    data = load_digits()
    first, second = (next(DemoRun(Settings(epochs=2, seed=1), data).train()) for _ in range(2))
    assert first.nll == second.nll
    assert first.accuracy == second.accuracy


def test_the_split_is_fixed_balanced_and_disjoint():
    data = load_digits()
    images = torch.cat([data.train_images, data.test_images])
    assert images.shape == (1797, 64)
    assert 0.0 <= float(images.min()) < float(images.max()) <= 1.0
    counts = [labels.bincount() / len(labels) for labels in (data.train_labels, data.test_labels)]
    torch.testing.assert_close(counts[0], counts[1], atol=0.01, rtol=0.0)
    assert data.test_labels[:10].tolist() == load_digits().test_labels[:10].tolist()


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_command_says_what_to_install(missing, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == missing or n.startswith("rankfold.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit, match=r"pip install 'rankfold\[cli\]'"):
        entry()
