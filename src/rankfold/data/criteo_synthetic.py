"""Made-up clicks in the shape of Criteo, at full size, from a model that is known.

Categories have the cardinalities of the Kaggle file and Zipf frequencies fitted to real rows. Clicks are drawn
from a planted model whose five large tables have low rank in every tensor format, so that the best AUC anyone can
reach and the true ranks are known. Nothing of the size of a table is built, rows come in chunks, and every chunk
depends on the seed and its number alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.criteo import KAGGLE_SIZES, NUM_NUMBERS, Criteo

# Rows of a chunk: few enough to stay in a core's cache.
CHUNK = 1 << 14
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

# Standard deviation of the entries of planted factors, whose mean is 1.
_FACTOR_STD = 0.6

_Floats = NDArray[np.float64]
_Rows = NDArray[np.int32]


@final
@dataclass(frozen=True)
class Zipf:
    """Ranks 1 … size with probability ``∫ x^−s dx`` over ``[k − ½, k + ½]``, up to a constant.

    Close to ``k^−s``, and drawn by inverting the integral: no table, no rejection.
    """

    size: int
    exponent: float

    def draw(self, uniform: _Floats) -> NDArray[np.int64]:
        """Ranks, from 0, for numbers uniform on [0, 1)."""
        power = 1.0 - self.exponent
        total = uniform * self._integral(np.array(self.size + 0.5))
        # the inverse of ∫_½^x t^−s dt
        x = 0.5 * np.exp(np.log1p(power * total * 2.0**power) / power if power else total)
        return np.clip(np.floor(x - 0.5).astype(np.int64), 0, self.size - 1)

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


def _fit_exponent(rows: _Rows, size: int) -> float:
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


@final
@dataclass(frozen=True)
class Clicks:
    """Made-up rows, with the true probability of each click, (N,); the rest as in Criteo."""

    labels: NDArray[np.uint8]
    numbers: NDArray[np.float32]
    categories: _Rows
    probabilities: _Floats


@final
class PlantedClicks:
    """A planted model and the rows it makes.

    The logit is a constant, plus a linear part in the numbers, plus an effect of every value of the small
    categories, plus, from the embeddings of the five large ones, ``Σ_p ⟨e_p, u⟩ + Σ_{p<q} ⟨e_p, e_q⟩``, each part
    scaled to a spread of its own. The embedding of row ``(i₁, i₂, i₃)`` is ``Σ_r a_r(i₁) b_r(i₂) c_r(i₃) v_r`` with
    every ``v_r`` (128) a Kronecker product of unit vectors of 4, 4 and 8 entries. So every rank of the table is the
    true one in all four formats. The ``v_r`` are orthonormal and the same for all tables.

    Args:
        seed: of the model and of the rows.
        modes: (I_1, I_2, I_3) of every large table, by the number of its category, from 0.
        sizes: rows of the tables.
        exponents: of the Zipf frequencies.
        rank: of the large tables.
        small: categories of at most so many rows have effects; those between them and the large ones have none.
        spreads: standard deviations of the four parts of the logit.
        click_rate: share of clicks.

    >>> planted = PlantedClicks(0, {2: (200, 220, 250), 3: (125, 130, 136)})
    >>> chunk = next(planted.chunks(1000))
    >>> chunk.categories.shape, chunk.probabilities.shape
    ((1000, 26), (1000,))
    """

    def __init__(
        self,
        seed: int,
        modes: Mapping[int, tuple[int, ...]],
        *,
        sizes: Sequence[int] = KAGGLE_SIZES,
        exponents: Sequence[float] = EXPONENTS,
        rank: int = 4,
        small: int = 1000,
        spreads: tuple[float, float, float, float] = (0.5, 0.5, 1.0, 0.7),
        click_rate: float = 0.25,
    ) -> None:
        self.seed = seed
        self.rank = rank
        self.modes = dict(modes)
        self._laws = [Zipf(size, exponent) for size, exponent in zip(sizes, exponents, strict=True)]
        self._strides = [_coprime(size) for size in sizes]
        random = np.random.default_rng([seed, 0])
        self._slopes = random.standard_normal(NUM_NUMBERS)
        self._effects = {n: random.standard_normal(size) for n, size in enumerate(sizes) if size <= small}
        # entries of mean 1: every mode then has an effect of its own, and what is learned first leads to the rest
        self._factors = {
            n: [1.0 + _FACTOR_STD * random.standard_normal((size, rank)) for size in dims] for n, dims in modes.items()
        }
        self._directions = random.standard_normal(rank)
        self._scales, self._bias = np.ones(4), 0.0
        self._calibrate(np.array(spreads), click_rate)

    def chunks(self, num_rows: int, first_chunk: int = 1) -> Iterator[Clicks]:
        """So many rows, chunk by chunk; other rows come from chunks of other numbers."""
        for number, size in _numbered_sizes(num_rows, first_chunk):
            yield self._chunk(number, size)

    def rows(self, num_rows: int, first_chunk: int = 1) -> Clicks:
        """So many rows at once, made by all cores."""
        whole = Clicks(
            np.empty(num_rows, np.uint8),
            np.empty((num_rows, NUM_NUMBERS), np.float32),
            np.empty((num_rows, len(self._laws)), np.int32),
            np.empty(num_rows),
        )

        def make(number: int) -> None:
            here = slice((number - first_chunk) * CHUNK, (number - first_chunk + 1) * CHUNK)
            size = len(whole.labels[here])
            chunk = self._chunk(number, size)
            whole.labels[here], whole.numbers[here] = chunk.labels, chunk.numbers
            whole.categories[here], whole.probabilities[here] = chunk.categories, chunk.probabilities

        with ThreadPoolExecutor() as pool:  # numpy lets go of the interpreter while it computes
            list(pool.map(make, (number for number, _ in _numbered_sizes(num_rows, first_chunk))))
        return whole

    def probabilities(self, numbers: NDArray[np.float32], categories: _Rows) -> _Floats:
        """The true probability of a click, (N,)."""
        return _sigmoid(self._bias + self._parts(numbers, categories) @ self._scales)

    def embeddings(self, column: int, rows: _Rows) -> _Floats:
        """Coefficients (N, R) of rows of a large table in the basis ``v_1 … v_R``."""
        dims, factors = self.modes[column], self._factors[column]
        parts = np.unravel_index(rows, dims)
        # `take` lets other threads run, which indexing does not
        taken = [np.take(factor, part, axis=0) for factor, part in zip(factors, parts, strict=True)]
        return np.asarray(np.prod(taken, axis=0))

    # Inside ---------------------------------------------------------------------------------------

    def _chunk(self, number: int, num_rows: int) -> Clicks:
        random = np.random.default_rng([self.seed, 1, number])
        numbers, categories = self._inputs(random)
        probabilities = self.probabilities(numbers, categories)
        labels = (random.random(CHUNK) < probabilities).astype(np.uint8)
        return Clicks(labels[:num_rows], numbers[:num_rows], categories[:num_rows], probabilities[:num_rows])

    def _inputs(self, random: np.random.Generator) -> tuple[NDArray[np.float32], _Rows]:
        """Numbers and categories of a whole chunk."""
        zeros, means, stds = np.array(NUMBER_LAWS).T
        drawn = np.maximum(means + stds * random.standard_normal((CHUNK, NUM_NUMBERS)), 0.0)
        numbers = np.where(random.random((CHUNK, NUM_NUMBERS)) < zeros, 0.0, drawn).astype(np.float32)
        columns = [
            # spread over the table, so that frequent values are not neighbours: a bijection without a table
            (law.draw(random.random(CHUNK)) * stride + law.size // 3) % law.size
            for law, stride in zip(self._laws, self._strides, strict=True)
        ]
        return numbers, np.stack(columns, axis=1).astype(np.int32)

    def _parts(self, numbers: NDArray[np.float32], categories: _Rows) -> _Floats:
        """Numbers, small categories, large ones alone and large ones in pairs, unscaled: (N, 4)."""
        vectors = [self.embeddings(n, categories[:, n]) for n in self.modes]  # each (N, R)
        total = np.sum(vectors, axis=0)
        # Σ_{p<q} ⟨e_p, e_q⟩ = ½ (|Σ e_p|² − Σ |e_p|²)
        pairs = 0.5 * ((total**2).sum(1) - sum((v**2).sum(1) for v in vectors))
        effects = sum((np.take(e, categories[:, n]) for n, e in self._effects.items()), np.zeros(len(numbers)))
        return np.stack([numbers @ self._slopes, effects, total @ self._directions, pairs], axis=1)

    def _calibrate(self, spreads: _Floats, click_rate: float) -> None:
        """Scale every part to its spread, and set the constant for the click rate, on a chunk of its own."""
        parts = self._parts(*self._inputs(np.random.default_rng([self.seed, 1, 0])))
        self._scales = spreads / np.maximum(parts.std(0), 1e-12)
        logits = parts @ self._scales
        low, high = -logits.max() - 20.0, -logits.min() + 20.0
        for _ in range(60):
            self._bias = 0.5 * (low + high)
            too_many = _sigmoid(self._bias + logits).mean() > click_rate
            low, high = (low, self._bias) if too_many else (self._bias, high)


def _numbered_sizes(num_rows: int, first_chunk: int) -> list[tuple[int, int]]:
    """Number and rows of every chunk."""
    return [(n, min(CHUNK, num_rows - start)) for n, start in enumerate(range(0, num_rows, CHUNK), first_chunk)]


def _coprime(size: int) -> int:
    """A step that visits all ``size`` rows: about the golden section of them, without a common divisor."""
    step = max(1, round(0.618 * size))
    while math.gcd(step, size) > 1:
        step += 1
    return step


def _sigmoid(logits: _Floats) -> _Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))
