"""Where a number lies on an axis, and which numbers to write beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

_WANTED_TICKS = 4


@final
@dataclass(frozen=True)
class Scale:
    """Maps ``low … high`` to ``start … end`` on the page, straight or by logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value.

        >>> Scale(0, 10, 100, 0)(2.5), Scale(1, 100, 0, 50, log=True)(10)
        (75.0, 25.0)
        """
        low, high, at = (map(math.log10, (self.low, self.high, value))) if self.log else (self.low, self.high, value)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round numbers within the range."""
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high)


def scale_of(values: Sequence[float], start: float, end: float, *, log: bool = False, zero: bool = False) -> Scale:
    """A scale that has room for all values, up to round ends; ``zero`` makes it begin at 0 if nothing is below."""
    low, high = min(values), max(values)
    if log:
        return Scale(10 ** math.floor(math.log10(low)), 10 ** (math.floor(math.log10(high)) + 1), start, end, log=True)
    low = min(low, 0.0) if zero else low
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    step = _step(high - low)
    return Scale(step * math.floor(low / step), step * math.ceil(high / step - 1e-9), start, end)


def linear_ticks(low: float, high: float) -> list[float]:
    """A few round numbers from ``low`` to ``high``.

    >>> linear_ticks(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    step = _step(high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(n * step, digits) for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, all or every other, as many as there is room for.

    >>> log_ticks(1, 1000)
    [1.0, 10.0, 100.0, 1000.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**n for n in range(first, last + 1, max(1, math.ceil((last - first) / (_WANTED_TICKS + 1))))]


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that a few of them make up the span."""
    rough = span / _WANTED_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return power * min((1, 2, 5, 10), key=lambda factor: abs(factor * power - rough))
