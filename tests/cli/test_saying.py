"""Standard output that cannot be written is named in one line, with what to do."""

import errno
import os
import subprocess
import sys

import pytest
from jobs.made_up import table

from rankfold.cli import app as entry
from rankfold.cli.saying import Unheard, saying

FULL = "error: standard output cannot be written (No space left on device); send it elsewhere"


@pytest.fixture
def start(tmp_path):
    """Starts a command in a process of its own, on a table of its own."""
    table(tmp_path / "t.csv")

    def started(stdout, *arguments):
        command = [sys.executable, "-m", "rankfold_command", *arguments, "t.csv", "--target", "price"]
        environment = {**os.environ, "COLUMNS": "500", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True
        )

    return started


@pytest.mark.parametrize(
    ("command", "then"),
    [(("plan",), ""), (("train", "--quiet", "--epochs", "1"), "; the run is finished, all of it is in runs/t")],
)
def test_a_full_disk_is_named(command, then, start):
    with open("/dev/full", "w") as full, start(full, *command) as process:
        _, said = process.communicate()
    assert (process.returncode, said) == (1, f"{FULL}{then}\n")


def test_training_that_nobody_listens_to_keeps_a_checkpoint_and_says_how_to_go_on(start, tmp_path):
    with start(subprocess.PIPE, "train", "--epochs", "300", "--json") as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert said == "error: standard output was closed; go on with: rankfold train t.csv --out runs/t --resume\n"
    assert process.returncode == 1
    assert len(list((tmp_path / "runs" / "t" / "train").iterdir())) == 1


def test_a_closed_pipe_is_known_by_what_rich_makes_of_it():
    def leave():
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except BrokenPipeError:
            sys.exit(1)

    with pytest.raises(Unheard, match="standard output was closed"), saying():
        leave()
    with pytest.raises(SystemExit), saying():
        sys.exit(1)


def test_an_error_of_another_file_is_not_taken_for_one_of_standard_output(monkeypatch):
    def fail():
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr("rankfold.cli.main.app", fail)
    with pytest.raises(PermissionError):
        entry()
