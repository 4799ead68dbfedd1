"""How often the values of Criteo's columns come, as laws to draw from, and how these are fitted to real rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.criteo import KAGGLE_SIZES, Criteo

# p(k) ∝ k^−s for the k-th most frequent value: s of every category, by `fit_exponents` from 137,139 real rows.
EXPONENTS = (
    *(1.648, 0.931, 0.949, 0.972, 2.034, 1.440, 0.744, 1.837, 2.940, 1.168, 0.778, 0.957, 0.763),
    *(1.481, 0.792, 0.957, 1.260, 0.863, 1.694, 0.748, 0.957, 2.300, 1.369, 1.022, 1.505, 1.486),
)
# Share of zeros, and mean and standard deviation of the others, of the 13 numbers log(1 + x): by `fit_numbers`.
NUMBER_LAWS = (
    *((0.685, 1.512, 0.826), (0.276, 2.898, 1.955), (0.217, 2.159, 1.184), (0.257, 1.799, 0.834)),
    *((0.045, 7.416, 2.771), (0.273, 3.637, 1.559), (0.258, 2.116, 1.201), (0.114, 2.302, 0.950)),
    *((0.074, 3.662, 1.520), (0.714, 0.762, 0.174), (0.267, 1.216, 0.663), (0.940, 1.132, 0.739)),
    (0.264, 1.846, 0.882),
)

_Floats = NDArray[np.float64]


@final
@dataclass(frozen=True)
class Zipf:
    """Ranks 1 … size with probability ``∫ x^−s dx`` over ``[k − ½, k + ½]``, up to a constant.

    Close to ``k^−s``, and drawn by inverting the integral: no table, no rejection.
    """

    size: int
    exponent: float

    def draw(self, uniform: Tensor) -> Tensor:
        """Ranks, from 0, in int64, for numbers uniform on [0, 1) in float64."""
        power = 1.0 - self.exponent
        total = float(self._integral(np.array(self.size + 0.5)))
        # the inverse of ∫_½^x t^−s dt: log 2x = log(1 + (1 − s) 2^(1 − s) ∫) / (1 − s), or ∫ if s is 1
        logs = uniform * (total * power * 2.0**power if power else total)
        if power:
            logs.log1p_().div_(power)
        # x − ½, rounded down
        return logs.expm1_().mul_(0.5).long().clamp_(max=self.size - 1)

    def collision(self) -> float:
        """``Σ p²``, the probability that two draws are the same."""
        whole = min(self.size, 1000)  # one by one; after them, by ranges over which p hardly changes
        edges = np.concatenate([np.arange(whole) + 0.5, np.geomspace(whole + 0.5, self.size + 0.5, 4000)])
        mass = np.diff(self._integral(np.unique(edges))) / self._integral(np.array(self.size + 0.5))
        return float((mass**2 / np.diff(np.unique(edges))).sum())

    def _integral(self, x: _Floats) -> _Floats:
        """``∫_½^x t^−s dt``."""
        power = 1.0 - self.exponent
        logs = np.log(2.0 * x)
        return np.asarray(np.expm1(power * logs) / (power * 2.0**power) if power else logs)


def fit_exponents(data: Criteo, sizes: Sequence[int] = KAGGLE_SIZES) -> list[float]:
    """Exponents with which two draws are the same value as often as two of the rows, to three digits.

    That share can be estimated without bias from rows that show only a part of all values. ``data`` must be
    prepared with a vocabulary, where different values have different rows.
    """
    return [round(_fit_exponent(data.categories[:, n].numpy(), size), 3) for n, size in enumerate(sizes)]


def _fit_exponent(rows: NDArray[np.int32], size: int) -> float:
    counts = np.bincount(rows).astype(float)
    collision = (counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1))
    low, high = 0.0, 8.0
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if Zipf(size, middle).collision() < collision else (low, middle)
    return 0.5 * (low + high)


def fit_numbers(data: Criteo) -> list[tuple[float, float, float]]:
    """Share of zeros, and mean and standard deviation of the others, of every number; to three digits."""
    columns = [column[column > 0] for column in data.numbers.double().unbind(1)]
    return [
        (round(1.0 - len(column) / len(data), 3), round(float(column.mean()), 3), round(float(column.std()), 3))
        for column in columns
    ]
