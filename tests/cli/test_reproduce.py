"""The commands reproduce and table, end to end on tiny images."""

import io
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data.criteo.fake import fake_lines
from experiments.tiny import write_data, write_table
from full_disk import short_of_space
from rich.console import Console
from typer.testing import CliRunner

from rankfold.cli.main import app
from rankfold.cli.reproduce_screen import Board
from rankfold.experiments import memory_check, training
from rankfold.experiments.planning import Schedule
from rankfold.experiments.progress import Epoch, Moment
from rankfold.experiments.results import Run
from rankfold.experiments.runner import Event
from rankfold.experiments.spec import Spec

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduce")
    write_data(folder / "data")
    write_table(folder / "experiments", formats=("ttm",))
    return folder


@pytest.fixture
def invoke(folder, tmp_path):
    """Run a command with all folders in place; results are the test's own."""

    def call(command, *arguments):
        places = ["--experiments", folder / "experiments", "--results", tmp_path / "results"]
        if command == "reproduce":
            places += ["--runs", tmp_path / "runs", "--data", folder / "data", "--no-verify", "--device", "cpu"]
        return CliRunner().invoke(app, [command, "tiny", *map(str, [*arguments, *places])])

    return call


@pytest.fixture
def criteo(tmp_path):
    """Run rows of DLRM on a file of this name, beside the stored results."""

    def call(name, *rows, verify=True):
        for file in (name, "criteo-kaggle-extra.tsv"):
            (tmp_path / file).write_bytes(b"\n".join(fake_lines(14)))
        stored = ["--experiments", EXPERIMENTS, "--results", EXPERIMENTS.parent / "results", "--device", "cpu"]
        options = ["--seeds", "1", "--runs", tmp_path / "runs", "--data", tmp_path / name, *stored]
        options += [] if verify else ["--no-verify"]
        return CliRunner().invoke(app, ["reproduce", "dlrm", *rows, *map(str, options)])

    return call


def test_results_of_other_data_are_no_results_of_these(criteo, monkeypatch):
    """A dense network that does not fit is refused, where there would be nothing to do with a result."""
    monkeypatch.setattr(memory_check, "memory_of", lambda device: 16e9)
    assert "Nothing to do: 1 run has a result in" in criteo("criteo-kaggle-w261-sample.tsv", "dense").output
    for name, verify in (("train.txt", True), ("mine.tsv", False), ("criteo-kaggle-w261-sample.tsv", False)):
        refused = criteo(name, "dense", "ttm-fr", verify=verify)
        assert refused.exit_code == 2
        said = " ".join(refused.output.replace("│", " ").split())
        assert "rows that train the dense network (dense) need at least 17 GB for its 4,322,224,385 parameters" in said
        assert "cpu has 16 GB; name the rows to run: ttm-fr" in said


@pytest.mark.parametrize(
    ("name", "verify", "expected"),
    [
        # 12 of the 14 rows train
        (
            "mine.tsv",
            False,
            "mine.tsv: there are 12 rows to train on, fewer than one batch of 128; name a file of more rows",
        ),
        ("train.txt", True, "train.txt has 14 rows, expected 45,840,617; give --no-verify"),
    ],
)
def test_a_wrong_file_is_named_once_before_the_first_run(name, verify, expected, criteo):
    refused = criteo(name, "ttm-fr", "tt-fr", verify=verify)
    assert refused.exit_code == 2
    assert (
        "".join(refused.output.replace("│", " ").split()).count("".join(expected.split())) == 1
    )  # lines break anywhere
    assert "ttm-fr-seed0" not in refused.output


def test_data_that_are_named_must_be_there(tmp_path):
    stored = ["--experiments", str(EXPERIMENTS), "--results", str(EXPERIMENTS.parent / "results")]
    refused = CliRunner().invoke(
        app, ["reproduce", "dlrm", "ttm-fr", "--seeds", "1", "--data", str(tmp_path / "none.txt"), *stored]
    )
    assert refused.exit_code == 2
    assert "none.txtdoesnotexist" in "".join(refused.output.replace("│", " ").split())  # lines break anywhere


def test_one_row_is_run_once_and_shown(invoke, tmp_path):
    first = invoke("reproduce", "ttm-ard-lu", "--seeds", "2")
    assert first.exit_code == 0, first.output
    assert "✓ ttm-ard-lu-seed1  accuracy" in first.output
    assert "2 runs have results" in first.output
    file = tmp_path / "results" / "tiny" / "ttm-ard-lu-seed1.json"
    written = file.stat().st_mtime_ns
    second = invoke("reproduce", "ttm-ard-lu", "--seeds", "2")
    assert second.exit_code == 0
    assert "Nothing to do: all 2 runs have results" in second.output
    assert file.stat().st_mtime_ns == written
    result = json.loads(file.read_text())
    shown = invoke("table")
    assert shown.exit_code == 0
    *_, command, _ = second.output.split("`")
    assert CliRunner().invoke(app, shlex.split(command)[1:]).output == shown.output
    assert f"{result['parameters']['training']:,}" in shown.output
    assert "| TTM    | ARD-LU" in invoke("table", "--format", "markdown").output


def test_the_table_goes_into_a_file(invoke, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n")
    assert "there are no results" in invoke("table", "--write", readme).stderr
    invoke("reproduce", "ttm-fr", "--seeds", "1")
    refused = invoke("table", "--write", readme)
    assert refused.exit_code == 2
    assert "<!-- table tiny: begin, generated -->" in refused.output
    readme.write_text("<!-- table tiny: begin, generated -->\n<!-- table tiny: end -->\n")
    assert "now up to date" in invoke("table", "--write", readme).output
    assert "already up to date" in invoke("table", "--write", readme).output
    assert "| TTM    | FR" in readme.read_text()


def test_a_single_run_is_not_spoken_of_as_several(invoke):
    assert "1 run has a result, in" in invoke("reproduce", "ttm-fr", "--seeds", "1").output
    assert "Nothing to do: 1 run has a result in" in invoke("reproduce", "ttm-fr", "--seeds", "1").output


@pytest.mark.parametrize("module", ["rankfold", "rankfold.cli"])
def test_the_package_is_the_command(module):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert "reproduce" in done.stdout


def test_a_failure_gives_exit_code_1_and_its_reason(invoke, tmp_path):
    file = tmp_path / "results" / "tiny" / "ttm-fr-seed0.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    result = invoke("reproduce", "ttm-fr", "--seeds", "1")
    assert result.exit_code == 1
    assert "ttm-fr-seed0.json is damaged" in result.output
    assert file.read_text() == "{"


def test_a_run_that_fails_is_named_once(invoke, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no luck")

    monkeypatch.setattr("rankfold.experiments.runner.perform", fail)
    result = invoke("reproduce", "ttm-fr", "--seeds", "1")
    assert result.exit_code == 1
    assert result.output.count("no luck") == 1
    assert "0 runs have results, 1 failed" in result.output


def test_ctrl_c_gives_exit_code_130(invoke, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankfold.experiments.runner.perform", stop)
    result = invoke("reproduce", "ttm-fr", "--seeds", "1")
    assert result.exit_code == 130
    assert "Stopped at once; results, and checkpoints that were written before, are kept." in result.output
    assert "Give the same command again to go on" in " ".join(result.output.split())


def test_what_a_run_asks_of_the_machine_is_said_first(tmp_path, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankfold.experiments.runner.perform", stop)
    places = ["--experiments", EXPERIMENTS, "--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    arguments = ["reproduce", "dlrm-planted", "tt-fr", "--device", "cpu", *places]
    said = " ".join(CliRunner().invoke(app, list(map(str, arguments))).output.split())
    assert said.startswith("Every run makes 64 million rows first, which take 10.6 GB")


@pytest.mark.parametrize("option", ["--results", "--runs"])
def test_folders_that_cannot_be_written_are_named_before_the_first_run(option, folder, tmp_path):
    (tmp_path / "file").touch()
    places = {"--experiments": folder / "experiments", "--data": folder / "data"}
    places |= {"--results": tmp_path / "results", "--runs": tmp_path / "runs", option: tmp_path / "file" / "x"}
    arguments = [str(part) for pair in places.items() for part in pair]
    result = CliRunner().invoke(app, ["reproduce", "tiny", "ttm-fr", "--no-verify", *arguments])
    assert result.exit_code == 2
    words = " ".join(result.output.replace("│", " ").split())
    assert f"Invalid value for {option}:" in words
    assert "not a folder); choose another place" in words


def test_a_disk_that_is_full_is_the_reason_of_a_failure(invoke):
    with short_of_space(10_000):
        result = invoke("reproduce", "ttm-ard-lu", "--seeds", "1")
    assert result.exit_code == 1
    assert "✗ ttm-ard-lu-seed0  NotWritten: " in result.output
    assert "cannot be written (File too large)" in " ".join(result.output.split())


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_leaves_checkpoints_from_which_the_same_command_goes_on(folder, tmp_path, monkeypatch, jobs):
    write_table(tmp_path / "experiments", formats=("ttm",))
    spec = tmp_path / "experiments" / "tiny" / "ttm-fr.toml"
    spec.write_text(spec.read_text().replace("epochs = 2", "epochs = 500", 1))
    note = Board.note

    def note_and_press_once_all_have_an_epoch(board, event, *, live=False):
        line = note(board, event, live=live)
        if not board.stop_requests and [epoch is None for epoch in board.latest.values()] == [False] * jobs:
            signal.raise_signal(signal.SIGINT)
        return line

    monkeypatch.setattr(Board, "note", note_and_press_once_all_have_an_epoch)
    command = ["reproduce", "tiny", "ttm-fr", "--seeds", str(jobs), "--jobs", str(jobs), "--no-verify"]
    places = {
        "--data": folder / "data",
        **{f"--{name}": tmp_path / name for name in ("experiments", "results", "runs")},
    }
    command += ["--device", "cpu", *(str(part) for place in places.items() for part in place)]
    first = CliRunner().invoke(app, command)
    kept = [_epoch_of_checkpoint(tmp_path / "runs" / "tiny" / f"ttm-fr-seed{seed}") for seed in range(jobs)]
    second = CliRunner().invoke(app, command)
    assert (first.exit_code, second.exit_code) == (130, 130)
    assert "Stopped; results and checkpoints are kept. Give the same command again to go on" in " ".join(
        first.output.split()
    )
    assert "going on" not in first.output
    for seed in range(jobs):
        assert f"ttm-fr-seed{seed}  going on at epoch {kept[seed] + 1}" in second.output


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_that_nobody_listens_to_leave_checkpoints(folder, tmp_path, jobs):
    write_table(tmp_path / "experiments", formats=("ttm",))
    spec = tmp_path / "experiments" / "tiny" / "ttm-fr.toml"
    spec.write_text(spec.read_text().replace("epochs = 2", "epochs = 500", 1))
    command = ["reproduce", "tiny", "ttm-fr", "--seeds", str(jobs), "--jobs", str(jobs), "--no-verify"]
    command += ["--experiments", "experiments", "--data", str(folder / "data"), "--device", "cpu"]
    command = [sys.executable, "-m", "rankfold_command", *command]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    kept = "results and checkpoints are kept. Give the same command again to go on."
    assert (process.returncode, said) == (1, f"error: standard output was closed; {kept}\n")
    for seed in range(jobs):
        assert _epoch_of_checkpoint(tmp_path / "runs" / "tiny" / f"ttm-fr-seed{seed}") > 0


@pytest.mark.parametrize(("folder_kept", "said"), [(True, ""), (False, ", but there is none of a-seed0: too large")])
def test_what_has_no_checkpoint_is_named(folder_kept, said):
    run = Run("ngram", "a", Spec("ard", "tt"))
    board = Board(Schedule([run], {run.name: []}))
    board.note(Event(run, is_kept=folder_kept))
    assert board.kept.startswith(f"; results and checkpoints are kept{said}")


def test_a_run_that_is_stopped_after_its_numbers_broke_has_failed(invoke, monkeypatch):
    def break_and_press(self, listener):
        with torch.no_grad():
            next(self.model.parameters()).fill_(torch.nan)
        signal.raise_signal(signal.SIGINT)
        within(self, listener)

    within = training.Training._within_epoch
    monkeypatch.setattr(training, "MOMENT_SECONDS", 0.0)
    monkeypatch.setattr(training.Training, "_within_epoch", break_and_press)
    failed = invoke("reproduce", "ttm-fr", "--seeds", "1")
    assert failed.exit_code == 1
    assert "NumericalFault: a parameter became NaN or infinite by step 1" in failed.output
    assert "checkpoints are kept" not in failed.output


def _epoch_of_checkpoint(folder):
    (checkpoint,) = (folder / "train").iterdir()
    return int(checkpoint.name.split("-")[1])  # "epoch-0003", or "epoch-0003-step-000000017" within the fourth


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("num_runs", [1, 4])
@pytest.mark.parametrize("ranks", [{"a": [50], "b": [49]}, {str(n): [16] * 6 for n in range(9)}])
def test_the_live_display_cuts_no_figure_off(width, num_runs, ranks):
    runs = [Run("mnist", "tucker-ard-hc", Spec("ard", "tucker", epochs=120, seed=seed)) for seed in range(num_runs)]
    plan = Schedule(runs, {run.name: [] for run in runs})
    board = Board(plan)
    for run in runs:
        plan.take()
        board.note(Event(run, epoch=Epoch("train", 101, 0.1234, 0.9458, 123_456.0, 1.25, 171_762, ranks, 1.0)))
    console = Console(width=width, file=io.StringIO())
    console.print(board)
    shown = console.file.getvalue()
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for figure in ("101/120", "0.1234", "123,456", "1.25", "171,762"):
        assert shown.count(figure) == num_runs
    assert shown.count("16·16·16·16·16·16") == (9 * num_runs if len(ranks) == 9 else 0)
    assert shown.count("50  49") == (num_runs if len(ranks) == 2 else 0)
    assert ("━" in shown) == (width == 140)
    if num_runs == 4 and len(ranks) == 2 and width >= 100:  # one line each
        assert sum("seed" in line for line in shown.splitlines()) == 4


@pytest.mark.parametrize("width", [60, 100, 140])
def test_the_live_display_shows_how_far_a_long_epoch_is(width):
    run = Run("dlrm", "tt-ard-lu", Spec("ard", "tt", epochs=1))
    plan = Schedule([run], {run.name: []})
    board = Board(plan)
    plan.take()
    assert board.note(Event(run, moment=Moment("train", 1, 300, 1200))) is None  # it has not been silent for long
    board.start -= 60.0
    console = Console(width=width, file=io.StringIO())
    console.print(board)
    shown = console.file.getvalue()
    assert "0/1 + 25%" in shown
    assert "about 3:00 min left" in shown
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize(
    ("spec", "moment", "stage", "shown", "left"),
    [
        # 49.5 of 100 epochs are left, and the minute was for a quarter of one
        (Spec("ard", "tt", epochs=100), Moment("train", 51, 500, 1000, 250), "train", "50/100 + 50%", "198:00 min"),
        # the dense network was there, and 5 of 10 epochs too
        (
            Spec("tc-mr", "tt", epochs=100, fine_tune_epochs=10),
            Moment("fine-tune", 6, 500, 1000),
            "fine-tune",
            "5/10 + 50%",
            "9:00 min",
        ),
    ],
)
def test_a_run_that_goes_on_is_shown_where_it_is(spec, moment, stage, shown, left):
    run = Run("tiny", "a", spec)
    plan = Schedule([run], {run.name: []})
    board = Board(plan)
    plan.take()
    board.note(Event(run))
    board.note(Event(run, moment=moment))
    board.start -= 60.0
    console = Console(width=120, file=io.StringIO())
    console.print(board)
    assert stage in console.file.getvalue()
    assert shown in console.file.getvalue()
    assert f"about {left} left" in console.file.getvalue()


def test_the_part_of_an_epoch_before_an_interruption_counts_for_no_rate():
    run = Run("tiny", "a", Spec("ard", "tt", epochs=3))
    plan = Schedule([run], {run.name: []})
    board = Board(plan)
    plan.take()
    board.note(Event(run, moment=Moment("train", 1, 760, 1000, before=750)))
    board.note(Event(run, epoch=Epoch("train", 1, 1.0, 0.5, 9.0, 1.0, 10, {}, 240.0)))
    board.start -= 60.0
    assert board.seconds_left == pytest.approx(2 * 240.0, rel=1e-3)


def test_where_there_is_no_terminal_a_long_epoch_has_a_line_a_minute():
    run = Run("dlrm", "tt-tc-or", Spec("tc-or", "tt", oracle="tt-ard-lu", epochs=3, fine_tune_epochs=2))
    board = Board(Schedule([run], {run.name: []}))
    moment = Moment("fine-tune", 2, 1500, 3000)
    board._silence._last -= 61.0
    line = f"{run.name}  fine-tune  epoch 2/2, step 1,500 of 3,000"
    assert [board.note(Event(run, moment=moment)) for _ in range(3)] == [line, None, None]


@pytest.mark.parametrize(("number", "how"), [(signal.SIGINT, "Ctrl-C again"), (signal.SIGTERM, "another SIGTERM")])
def test_the_live_display_says_how_not_to_wait(number, how):
    board = Board(Schedule([], {}))
    board.stop_requests.append(number)
    console = Console(width=120, file=io.StringIO())
    console.print(board)
    assert f"; stopping when checkpoints are written, {how} stops at once" in console.file.getvalue()


@pytest.mark.parametrize(("of", "shown"), [("network", "parameters 7,175"), ("layers", "tensorized layers 7,175")])
def test_parameters_of_some_layers_are_not_taken_for_those_of_the_network(of, shown):
    run = Run("dlrm", "tt-fr", Spec("fr", "tt", epochs=1))
    result = {
        "metrics": {"posterior_mean": {"accuracy": 0.77, "nll_nats": 0.49}},
        "parameters": {"of": of, "final": 7175},
        "ranks": {"after": {}},
        "timing": {"training_seconds": 1.0},
    }
    assert shown in Board(Schedule([run], {run.name: []})).note(Event(run, result=result))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_data_are_prepared_ends_it_as_it_does_later(number, code, invoke, monkeypatch):
    monkeypatch.setattr("rankfold.cli.reproduce._check_files", lambda plan, places: signal.raise_signal(number))
    result = invoke("reproduce", "ttm-fr")
    assert result.exit_code == code
    assert "Give the same command again to go on." in result.output


def test_outside_a_clone_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "mnist"])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "experiments holds no tables; run it in a clone of the repository, or give --experiments" in said


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["mnist", "ttm-xx"], "ttm-xx"),
        (["mnits"], "mnits"),
        (["mnist", "ttm-fr", "--seeds", "0"], "--seeds"),
        (["mnist", "ttm-fr", "--device", "tpu"], "tpu"),
        (["mnist", "ttm-fr", "--data", "nowhere"], "nowhere"),
        (["synthetic", "--data", "nowhere"], "the synthetic study makes labels of its own for MNIST's"),
    ],
)
def test_a_wrong_request_gives_exit_code_2(arguments, named, tmp_path):
    places = ["--experiments", str(EXPERIMENTS), "--results", str(tmp_path)]
    result = CliRunner().invoke(app, ["reproduce", *arguments, *places])
    assert result.exit_code == 2
    assert named in result.output
