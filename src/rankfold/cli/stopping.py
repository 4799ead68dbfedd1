"""Ctrl-C, and the word to end that a machine sends (SIGTERM), let the work under way come to a good end."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Within this context the signals to stop are noted in a list instead of raised, so that no step is cut in two.

    A second one is raised: whoever asks twice does not want to wait.
    """
    requests: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        requests.append(number)
        if len(requests) > 1:
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_code(requests: Sequence[int]) -> int:
    """What a shell expects of a command that was stopped: 130 after Ctrl-C, 143 after SIGTERM.

    >>> exit_code([signal.SIGINT]), exit_code([signal.SIGTERM])
    (130, 143)
    """
    return 128 + (requests[-1] if requests else signal.SIGINT)
