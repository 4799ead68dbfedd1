"""Made-up clicks in the shape of Criteo, at full size, from a model that is known.

Categories have the cardinalities of the Kaggle file and Zipf frequencies fitted to real rows. Clicks are drawn
from a planted model whose five large tables have low rank in every tensor format, so that the best AUC anyone can
reach and the true ranks are known. Nothing of the size of a table is built, rows come in chunks, and every chunk
depends on the seed and its number alone. Random numbers are drawn by the CPU and made into rows on any device; rows
of two devices differ only where exp and log are rounded differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import final

import numpy as np
import torch
from torch import Tensor

from rankfold.data.criteo import KAGGLE_SIZES, NUM_NUMBERS
from rankfold.data.criteo_laws import EXPONENTS, NUMBER_LAWS, Zipf

# Rows of a chunk: many, as a device takes hundreds of small operations for each; but a column stays in a core's cache.
CHUNK = 1 << 16

# Standard deviation of the entries of planted factors, whose mean is 1.
_FACTOR_STD = 0.6
# Categories of at most so many rows have effects; those between them and the large ones have none.
_SMALL = 1000
# Standard deviations of the four parts of the logit, and the share of clicks.
_SPREADS, _CLICK_RATE = (0.5, 0.5, 1.0, 0.7), 0.25
_CPU = torch.device("cpu")


@final
@dataclass(frozen=True)
class Clicks:
    """Made-up rows, with the true probability of each click, (N,); the rest as in Criteo."""

    labels: Tensor
    numbers: Tensor
    categories: Tensor
    probabilities: Tensor


@final
@dataclass(frozen=True)
class _Draws:
    """The random numbers of a chunk; those of a column lie side by side."""

    normal: Tensor  # (13, CHUNK), float32
    zero: Tensor  # (13, CHUNK), float32: uniform, decides about zeros
    category: Tensor  # (26, CHUNK), float64: uniform
    label: Tensor  # (CHUNK), float64: uniform

    def to(self, device: torch.device) -> _Draws:
        return _Draws(*(x.to(device, non_blocking=True) for x in (self.normal, self.zero, self.category, self.label)))


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
        rank: of the large tables.

    >>> planted = PlantedClicks(0, {2: (200, 220, 250), 3: (125, 130, 136)})
    >>> chunk = next(planted.chunks(1000))
    >>> chunk.categories.shape, chunk.probabilities.shape
    (torch.Size([1000, 26]), torch.Size([1000]))
    """

    def __init__(
        self,
        seed: int,
        modes: Mapping[int, tuple[int, ...]],
        *,
        sizes: Sequence[int] = KAGGLE_SIZES,
        rank: int = 4,
    ) -> None:
        for n, dims in modes.items():
            if n not in range(len(sizes)):
                raise ValueError(f"modes are given by the number of a category, 0 to {len(sizes) - 1}, got {n!r}")
            if math.prod(dims) < sizes[n]:
                raise ValueError(
                    f"the modes {tuple(dims)} of category {n} have fewer entries than its {sizes[n]:,} rows"
                )
        self.seed = seed
        self.rank = rank
        self.modes = dict(modes)
        self._laws = [Zipf(size, exponent) for size, exponent in zip(sizes, EXPONENTS, strict=True)]
        self._strides = [_coprime(size) for size in sizes]
        random = np.random.default_rng([seed, 0])

        def normal(*shape: int) -> Tensor:
            return torch.from_numpy(random.standard_normal(shape))

        self._slopes = normal(NUM_NUMBERS)
        self._effects = {n: normal(size) for n, size in enumerate(sizes) if size <= _SMALL}
        # entries of mean 1: every mode then has an effect of its own, and what is learned first leads to the rest
        self._factors = {n: [1.0 + _FACTOR_STD * normal(size, rank) for size in dims] for n, dims in modes.items()}
        self._directions = normal(rank)
        self._scales, self._bias = torch.ones(4, dtype=torch.float64), 0.0
        self._calibrate()

    def to(self, device: torch.device) -> PlantedClicks:
        """The model itself, moved to a device as a module would be."""
        self._slopes, self._directions = self._slopes.to(device), self._directions.to(device)
        self._effects = {n: effect.to(device) for n, effect in self._effects.items()}
        self._factors = {n: [factor.to(device) for factor in factors] for n, factors in self._factors.items()}
        self._scales = self._scales.to(device)
        return self

    def chunks(self, num_rows: int, first_chunk: int = 1, *, device: torch.device = _CPU) -> Iterator[Clicks]:
        """So many rows on a device, chunk by chunk; other rows come from chunks of other numbers."""
        self.to(device)
        for n, start in enumerate(range(0, num_rows, CHUNK), first_chunk):
            yield self._chunk(self._draw(n, device).to(device), min(CHUNK, num_rows - start))

    def rows(self, num_rows: int, first_chunk: int = 1, *, device: torch.device = _CPU) -> Clicks:
        """So many rows at once on a device, made by all cores."""
        self.to(device)
        whole = Clicks(
            torch.empty(num_rows, dtype=torch.uint8, device=device),
            torch.empty((num_rows, NUM_NUMBERS), dtype=torch.float32, device=device),
            torch.empty((num_rows, len(self._laws)), dtype=torch.int32, device=device),
            torch.empty(num_rows, dtype=torch.float64, device=device),
        )
        # a device is given the operations of one chunk after the other; cores work on a chunk each
        turn = nullcontext() if device.type == "cpu" else Lock()

        def make(start: int) -> None:
            here = slice(start, min(start + CHUNK, num_rows))
            draws = self._draw(first_chunk + start // CHUNK, device)
            with turn:
                chunk = self._chunk(draws.to(device), here.stop - start)
                whole.labels[here], whole.numbers[here] = chunk.labels, chunk.numbers
                whole.categories[here], whole.probabilities[here] = chunk.categories, chunk.probabilities

        with _pool_of_cores() as pool:
            list(pool.map(make, range(0, num_rows, CHUNK)))
        return whole

    def probabilities(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """The true probability of a click, (N,), on the device of the rows."""
        self.to(numbers.device)
        return torch.sigmoid_(self._parts(numbers, categories) @ self._scales + self._bias)

    def embeddings(self, column: int, rows: Tensor) -> Tensor:
        """Coefficients (N, R) of rows of a large table in the basis ``v_1 … v_R``."""
        product = self._slopes.new_ones((len(rows), self.rank))
        for factor in reversed(self._factors[column]):  # rows are counted with the last index fastest
            product *= factor.index_select(0, rows % len(factor))
            rows = rows // len(factor)
        return product

    # Inside ---------------------------------------------------------------------------------------

    def _draw(self, number: int, device: torch.device = _CPU) -> _Draws:
        """Draws of a chunk on the CPU, in memory from which the device copies fast."""
        random = np.random.default_rng([self.seed, 1, number])
        pinned = device.type == "cuda"
        normal, zero = torch.empty((2, NUM_NUMBERS, CHUNK), dtype=torch.float32, pin_memory=pinned)
        category = torch.empty((len(self._laws), CHUNK), dtype=torch.float64, pin_memory=pinned)
        label = torch.empty(CHUNK, dtype=torch.float64, pin_memory=pinned)
        random.standard_normal(dtype=np.float32, out=normal.numpy())
        random.random(dtype=np.float32, out=zero.numpy())
        random.random(out=category.numpy())
        random.random(out=label.numpy())
        return _Draws(normal, zero, category, label)

    def _chunk(self, draws: _Draws, num_rows: int) -> Clicks:
        numbers, categories = self._inputs(draws)
        probabilities = self.probabilities(numbers, categories)
        labels = (draws.label < probabilities).to(torch.uint8)
        return Clicks(labels[:num_rows], numbers[:num_rows], categories[:num_rows], probabilities[:num_rows])

    def _inputs(self, draws: _Draws) -> tuple[Tensor, Tensor]:
        """Numbers and categories of a whole chunk."""
        numbers = torch.empty_like(draws.normal)  # (13, CHUNK)
        for column, normal, uniform, (zeros, mean, std) in zip(
            numbers, draws.normal, draws.zero, NUMBER_LAWS, strict=True
        ):
            # a normal cut at zero, or zero
            torch.mul(normal, std, out=column).add_(mean).clamp_(min=0.0).mul_(uniform >= zeros)
        categories = torch.empty(draws.category.shape, dtype=torch.int32, device=draws.category.device)  # (26, CHUNK)
        for column, uniform, law, stride in zip(categories, draws.category, self._laws, self._strides, strict=True):
            # spread over the table, so that frequent values are not neighbours: a bijection without a table
            column.copy_(law.draw(uniform).mul_(stride).add_(law.size // 3).remainder_(law.size))
        return numbers.T, categories.T

    def _parts(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Numbers, small categories, large ones alone and large ones in pairs, unscaled: (N, 4)."""
        total, squares = self._slopes.new_zeros((len(numbers), self.rank)), self._slopes.new_zeros(len(numbers))
        for n in self.modes:
            vectors = self.embeddings(n, categories[:, n])  # (N, R)
            total += vectors
            squares += vectors.square_().sum(1)
        # Σ_{p<q} ⟨e_p, e_q⟩ = ½ (|Σ e_p|² − Σ |e_p|²)
        pairs = 0.5 * (total.square().sum(1) - squares)
        effects = torch.zeros_like(pairs)
        for n, effect in self._effects.items():
            effects += effect.index_select(0, categories[:, n])
        return torch.stack([numbers.double() @ self._slopes, effects, total @ self._directions, pairs], dim=1)

    def _calibrate(self) -> None:
        """Scale every part to its spread, and set the constant for the click rate, on a chunk of its own."""
        parts = self._parts(*self._inputs(self._draw(0)))
        self._scales = torch.tensor(_SPREADS, dtype=torch.float64) / parts.std(0, correction=0).clamp(min=1e-12)
        logits = parts @ self._scales
        low, high = -float(logits.max()) - 20.0, -float(logits.min()) + 20.0
        for _ in range(60):
            self._bias = 0.5 * (low + high)
            too_many = float(torch.sigmoid(self._bias + logits).mean()) > _CLICK_RATE
            low, high = (low, self._bias) if too_many else (self._bias, high)


@contextmanager
def _pool_of_cores() -> Iterator[ThreadPoolExecutor]:
    """Threads in which torch and numpy compute without the interpreter, and torch starts no threads of its own."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)  # what threads of later pools start with


def _coprime(size: int) -> int:
    """A step that visits all ``size`` rows: about the golden section of them, without a common divisor."""
    step = max(1, round(0.618 * size))
    while math.gcd(step, size) > 1:
        step += 1
    return step
