"""A progress bar for preparing the data, on one line of a terminal; elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO, final

from rankfold.data.criteo.preparing import Progress

_WIDTH = 24


@final
class ProgressBar:
    """Call it with every :class:`Progress`.

    >>> ProgressBar(sys.stdout)(Progress("writing", 0.5, 1000, 2.0))
    Criteo, writing  ############............   50 %         1,000 rows      500 rows/s     2 s left
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._seconds_between = 0.1 if self._stream.isatty() else 5.0
        self._last = -float("inf")

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._last >= self._seconds_between or progress.share >= 1.0:
            self._last = now
            if self._stream.isatty():
                print(f"\r{line(progress)}", end="\n" if progress.share >= 1.0 else "", file=self._stream, flush=True)
            else:
                print(line(progress), file=self._stream, flush=True)


def line(progress: Progress) -> str:
    """The bar as text."""
    filled = round(_WIDTH * progress.share)
    rate = progress.rows / max(progress.seconds, 1e-9)
    left = progress.seconds * (1.0 - progress.share) / max(progress.share, 1e-9)
    return (
        f"Criteo, {progress.stage:8} {'#' * filled}{'.' * (_WIDTH - filled)} {100 * progress.share:4.0f} % "
        f"{progress.rows:13,} rows {rate:8,.0f} rows/s {left:5.0f} s left"
    )
