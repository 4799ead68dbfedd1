"""Ctrl-C where several processes run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignored_by_new_processes() -> Iterator[None]:
    """Ctrl-C is the parent's business; a process takes over what is ignored when it starts."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
