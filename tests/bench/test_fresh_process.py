"""Memory of a process of its own: it is that of the call, and a call that fails says why."""

import os
import signal
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from rankfold.bench.fresh_process import ProcessFailed, in_fresh_process
from rankfold.cli.main import app
from rankfold.experiments.provenance import peak_resident_set

MIB = 2**20


def fill(mib):
    """Write to so much memory, and give it back."""
    return torch.ones(mib * MIB // 4).numel()


def threads():
    return torch.get_num_threads()


def refuse():
    raise ValueError("no such table")


def die(number):
    os.kill(os.getpid(), number)


def test_the_peak_is_that_of_the_call_and_not_of_the_process_that_asks():
    fill(1_000)
    assert peak_resident_set() > 1_000 * MIB
    # imports have a peak of their own, higher where Python has to compile them first, which the calls must pass
    little, much = (in_fresh_process(partial(fill, mib)) for mib in (400, 700))
    assert (little.value, much.value) == (400 * MIB // 4, 700 * MIB // 4)
    assert 400 * MIB < little.peak_bytes < 1_000 * MIB
    assert much.peak_bytes - little.peak_bytes == pytest.approx(300 * MIB, abs=30 * MIB)


def test_the_process_has_as_many_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert in_fresh_process(threads).value == 3


def test_a_call_that_fails_says_why():
    with pytest.raises(ProcessFailed, match=r"^the process that was to be measured failed: ValueError: no such table$"):
        in_fresh_process(refuse)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "exit code -9, perhaps because the machine has too little memory$"),
        (signal.SIGTERM, "exit code -15$"),
    ],
)
def test_a_process_that_is_ended_says_how(number, message):
    with pytest.raises(ProcessFailed, match=message):
        in_fresh_process(partial(die, number))


def test_the_command_passes_it_on_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_dlrm", lambda *_, **__: [in_fresh_process(refuse)])
    result = CliRunner().invoke(app, ["bench", "memory", "--only", "DLRM", "--out", str(tmp_path / "memory.json")])
    assert result.exit_code == 1
    assert result.stderr == "error: the process that was to be measured failed: ValueError: no such table\n"
