"""Ctrl-C: what it shows, and what it leaves on the screen."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from rankfold.cli.stopping import above_cursor, exit_code, stop_at_once, stop_requests
from rankfold.cli.train_screen import screen
from rankfold.experiments.spec import Spec

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    ("module", "imported"), [("rankfold_command", "rankfold"), ("rankfold", "typer"), ("rankfold.cli", "typer")]
)
def test_during_imports_the_command_leaves_without_a_word(module, imported, tmp_path):
    """As a module of the package it runs only once the package itself is imported."""
    (tmp_path / imported).mkdir()
    (tmp_path / imported / "__init__.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    result = subprocess.run(
        [sys.executable, "-m", module, "demo"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("total", [8, 300])
@pytest.mark.parametrize("seconds", [0.1, 30.0])
def test_the_panel_fits_80_columns_and_ends_in_an_empty_line(total, seconds):
    """Where the cursor is, a terminal writes ^C; after a full line it would go on in the next one."""
    ranks = {"features.12": [20, 20, 20], "head": [4, 4]}
    record = {
        "epoch": total * 2 // 3,
        "seconds": seconds,
        "nll": 12.345,
        "kl_nats": 1.2e6,
        "beta": 1.25,
        "parameters": 12_345_678,
        "evaluation_accuracy": 0.5,
        "ranks": ranks,
    }
    run = SimpleNamespace(
        job=SimpleNamespace(spec=Spec("ard", "ttm", epochs=total), data=Path("photos"), model="cnn"),
        history=[record],
        before=SimpleNamespace(dense_parameters=540_201_123, final_parameters=22_345_678),
        data=SimpleNamespace(train=range(1000)),
        starting_ranks=ranks,
    )
    console = Console(width=80, file=io.StringIO())
    console.print(above_cursor(screen(run)))
    *panel, last = console.file.getvalue().splitlines()
    assert last == ""
    assert all(len(line) == 80 for line in panel)
    assert len(panel) == 2 + 2 + 1 + 1 + 3 + 1 + 5  # borders, margins, progress, gaps, terms and ranks: nothing wraps
    assert "s left" in panel[2]


def test_a_closed_terminal_asks_once_however_often_it_is_said():
    """Its shell passes the signal on, and the system sends it too."""
    with stop_requests() as requests:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert exit_code(requests) == 129
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_before_there_is_anything_to_keep_every_signal_stops_at_once():
    with stop_at_once() as requests, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert exit_code(requests) == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_nohup_is_not_undone():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as requests:
            signal.raise_signal(signal.SIGHUP)
        assert requests == []
    finally:
        signal.signal(signal.SIGHUP, before)
