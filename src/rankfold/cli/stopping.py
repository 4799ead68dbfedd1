"""Ctrl-C that lets the work under way come to a good end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # what a shell expects of a command stopped by Ctrl-C


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Within this context Ctrl-C is noted in a list instead of raised, so that no step is cut in two.

    A second one is raised: whoever asks twice does not want to wait.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield requests
    finally:
        signal.signal(signal.SIGINT, previous)
