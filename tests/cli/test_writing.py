"""What cannot be written is named with its option and a remedy, before anything is computed."""

import errno
from pathlib import Path

import pytest
from full_disk import short_of_space
from typer.testing import CliRunner

from rankfold.cli.main import app
from rankfold.cli.writing import not_written

RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def run(*arguments):
    wide = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}
    return CliRunner(env=wide).invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def nothing_is_computed(monkeypatch):
    def compute(*arguments):
        raise AssertionError("the place was not looked at first")

    for name in ("cli.demo.load_digits", "cli.bench_run.measure_ceilings", "cli.bench.run_steps"):
        monkeypatch.setattr(f"rankfold.{name}", compute)


@pytest.mark.parametrize(
    ("command", "option", "place"),
    [
        (("demo",), "--out", "x"),
        (("bench", "step"), "--out", "x/b.json"),
        (("figures", "fig5-priors"), "--out", "x"),
        (("table", "mnist", "--results", RESULTS, "--experiments", EXPERIMENTS), "--write", "t.md"),
        (("report", RESULTS / "mnist" / "dense-seed0.json"), "--out", "x.html"),
        (("report", RESULTS / "mnist" / "dense-seed0.json"), "--tensorboard", "x"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_with_its_option(command, option, place, tmp_path):
    (tmp_path / "file").touch()
    result = run(*command, option, tmp_path / "file" / place)
    assert result.exit_code == 2
    assert f"Invalid value for {option}: {tmp_path}/file" in result.output
    assert f"cannot be written ({tmp_path}/file is a file, not a folder); choose another place" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


def test_a_folder_that_is_a_file_is_called_one(tmp_path):
    (tmp_path / "file").touch()
    result = run("bench", "step", "--out", tmp_path / "file" / "b.json")
    assert (
        f"--out: {tmp_path}/file cannot be written (it is a file, not a folder); choose another place" in result.output
    )


def test_a_page_that_has_no_room_leaves_nothing(tmp_path):
    with short_of_space(10):
        result = run("report", RESULTS / "mnist" / "dense-seed0.json", "--out", tmp_path / "deep" / "x.html")
    assert result.exit_code == 2
    assert f"{tmp_path}/deep/x.html cannot be written (File too large)" in result.output
    assert not list((tmp_path / "deep").iterdir())


def test_of_a_full_disk_the_remedy_is_space():
    full = OSError(errno.ENOSPC, "No space left on device")
    said = not_written(Path("runs/mine"), full, ", then go on")
    assert said == "runs/mine cannot be written (No space left on device); free some space there, then go on"
