"""Ctrl-C, SIGTERM and a closed terminal (SIGHUP) let the work under way come to a good end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rankfold.experiments.interrupts import STOP_SIGNALS


def patience(number: int) -> str:
    """What is said when a signal has come.

    >>> patience(signal.SIGTERM)
    'Stopping when a checkpoint is written; another SIGTERM stops at once.'
    """
    return f"Stopping when a checkpoint is written; {at_once(number)}."


def at_once(number: int) -> str:
    """How not to wait, after a signal.

    >>> at_once(signal.SIGINT)
    'Ctrl-C again stops at once'
    """
    return f"{'Ctrl-C again' if number == signal.SIGINT else 'another SIGTERM'} stops at once"


@contextmanager
def stop_requests(notice: Callable[[int], str] = lambda number: "") -> Iterator[list[int]]:
    """Within this context the signals to stop are noted in a list instead of raised, so that no step is cut in two.

    A second one is raised: whoever asks twice does not want to wait. A terminal that is closed asks twice by itself,
    through the shell too. At the first one its ``notice`` is written.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if requests and signal.Signals(number).name == "SIGHUP":
            return
        requests.append(number)
        if len(requests) > 1:
            raise KeyboardInterrupt
        with suppress(OSError):  # straight to stderr: a print under way cannot be interrupted by another
            os.write(2, notice(number).encode())

    with _handled_by(note):
        yield requests


@contextmanager
def stop_at_once() -> Iterator[list[int]]:
    """Within this context all signals to stop are raised as Ctrl-C is, and noted in a list."""
    requests: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        raise KeyboardInterrupt

    with _handled_by(stop):
        yield requests


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in _listened_to()}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def _listened_to() -> list[int]:
    """The signals to stop, but those that ``nohup`` has set to be ignored; a shell does that to Ctrl-C of its own."""
    return [n for n in STOP_SIGNALS if n == signal.SIGINT or signal.getsignal(n) is not signal.SIG_IGN]


@contextmanager
def nothing_written_yet() -> Iterator[None]:
    """Within this context Ctrl-C stops at once, and says that there is nothing to clear up."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped before anything was written; give the same command to start again.", err=True)
        raise typer.Exit(exit_code([])) from None


def above_cursor(*parts: RenderableType) -> Group:
    """A live display with an empty line at its end, where a terminal shows ``^C``.

    At the end of a full line it would move the cursor down, and the display would be drawn again one line too low.
    """
    return Group(*parts, Text())


def exit_code(requests: Sequence[int]) -> int:
    """What a shell expects of a command that was stopped: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.

    >>> exit_code([signal.SIGINT]), exit_code([signal.SIGTERM])
    (130, 143)
    """
    return 128 + (requests[-1] if requests else signal.SIGINT)
