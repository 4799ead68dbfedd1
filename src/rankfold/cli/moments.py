"""Within an epoch: how far it is, in words, and how often that is said where there is no terminal."""

from __future__ import annotations

import time
from typing import final

from rankfold.experiments.progress import Moment

_SECONDS = 60.0  # between two lines of progress at the most


def moment_line(moment: Moment, epochs: int) -> str:
    """Where training is.

    >>> moment_line(Moment("train", 3, 1500, 3000), epochs=20)
    'epoch 3/20, step 1,500 of 3,000'
    """
    return f"epoch {moment.epoch}/{epochs}, step {moment.step:,} of {moment.steps:,}"


@final
class Silence:
    """Lasts a minute at the most."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def broken(self) -> None:
        """Something was said."""
        self._last = time.perf_counter()

    def is_long(self) -> bool:
        """Whether it is time to say something."""
        return time.perf_counter() - self._last >= _SECONDS
