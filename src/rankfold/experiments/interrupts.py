"""The signals that ask to stop, where several processes run."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Ctrl-C, what a machine sends before it ends a process, and a terminal that is closed, which Windows does not tell.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ignored_by_new_processes(signals: Sequence[int] = STOP_SIGNALS) -> Iterator[None]:
    """To stop is the parent's business; a process takes over what is ignored when it starts."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
