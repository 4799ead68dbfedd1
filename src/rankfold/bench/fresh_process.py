"""The memory of a whole program: a call gets a Python process of its own, which says in the end how large it was."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Generic, TypeVar, final

import torch

from rankfold.experiments.interrupts import ignored_by_new_processes
from rankfold.experiments.provenance import peak_resident_set

_T = TypeVar("_T")


@final
class ProcessFailed(RuntimeError):
    """The process has no answer; the message says why."""


@final
@dataclass(frozen=True)
class Finished(Generic[_T]):
    """What a call returned, and the largest that its process ever was, Python and torch included."""

    value: _T
    peak_bytes: int


def in_fresh_process(call: Callable[[], _T]) -> Finished[_T]:
    """Make the call in a new Python process, with as many threads as torch has here.

    Args:
        call: it is pickled, and so is what it returns.
    """
    context = multiprocessing.get_context("spawn")  # a fork would start with the memory of this process
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, call, torch.get_num_threads()), daemon=True)
    with ignored_by_new_processes([signal.SIGINT]):
        process.start()
    theirs.close()
    try:
        answer: Finished[_T] | str = ours.recv()
    except EOFError:
        process.join()
        answer = _last_words(process.exitcode)
    finally:
        process.terminate()
        process.join()
        ours.close()
    if isinstance(answer, str):
        raise ProcessFailed(f"the process that was to be measured failed: {answer}")
    return answer


def _answer(connection: Connection, call: Callable[[], object], threads: int) -> None:
    """What the new process does."""
    torch.set_num_threads(threads)
    try:
        connection.send(Finished(call(), peak_resident_set()))
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")


def _last_words(exit_code: int | None) -> str:
    """Why a process has not answered.

    >>> _last_words(-9)
    'it ended with exit code -9, perhaps because the machine has too little memory'
    """
    reason = ", perhaps because the machine has too little memory" if exit_code == -signal.SIGKILL else ""
    return f"it ended with exit code {exit_code}{reason}"
