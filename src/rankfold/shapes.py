"""Folding: an integer becomes modes, a flat index becomes mode indices.

A matrix with ``I`` rows is folded into a tensor by writing ``I = I_1 · I_2 ⋯ I_d``.
Sizes that do not factor well (10,131,227 rows, 50,257 words, any prime) are padded:
``I <= I_1 ⋯ I_d``, and the padded rows are never read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import TypeGuard

import torch.nn.functional as F
from torch import Tensor

# Weights of the folding score: a mode sum 10 % above the ideal is worth 1 % of padding,
# and an exact fold is preferred over a slightly better balanced padded one.
_PADDING_WEIGHT = 10.0
_ANY_PADDING_COST = 0.1


@dataclass(frozen=True)
class Folding:
    """``size`` entries arranged in modes ``dims``, row-major, padded to ``prod(dims)``.

    >>> Folding(7, (2, 4)).padded_size
    8
    """

    size: int
    dims: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(self.dims))
        if not is_positive_integer(self.size):
            raise ValueError(f"a size to fold must be a positive integer, got {self.size!r}")
        if not self.dims or any(not is_positive_integer(n) for n in self.dims):
            raise ValueError(f"dims must be positive integers, got {self.dims}")
        object.__setattr__(self, "size", int(self.size))
        object.__setattr__(self, "dims", tuple(map(int, self.dims)))
        if self.padded_size < self.size:
            raise ValueError(
                f"dims {self.dims} hold {self.padded_size} entries, but {self.size} are needed; "
                f"make their product at least {self.size}, or leave dims out to fold automatically"
            )
        if self.padded_size > 2 * self.size:
            raise ValueError(
                f"dims {self.dims} hold {self.padded_size} entries, more than twice the {self.size} "
                f"needed; use smaller dims, or leave dims out to fold automatically"
            )

    @property
    def padded_size(self) -> int:
        return math.prod(self.dims)

    @property
    def padding(self) -> float:
        """The share of entries that exist only as padding, relative to ``size``."""
        return self.padded_size / self.size - 1.0

    def pad(self, x: Tensor) -> Tensor:
        """Rows (…, size) with zeros behind them, (…, padded_size)."""
        extra = self.padded_size - self.size
        return F.pad(x, (0, extra)) if extra else x

    def fold(self, x: Tensor) -> Tensor:
        """Rows (B, size) as tensors (B, *dims), padded with zeros where that is more."""
        return self.pad(x).reshape(-1, *self.dims)

    def unfold(self, x: Tensor) -> Tensor:
        """Tensors (B, *dims) as rows (B, size), without their padding."""
        flat = x.reshape(-1, self.padded_size)
        return flat if self.padded_size == self.size else flat[:, : self.size]

    def unravel(self, index: Tensor) -> list[Tensor]:
        """Split a flat ``index`` (any shape) into one index per mode, most significant first.

        The first mode gets all that is left, so that an index beyond the end is one there, too.
        """
        parts = []
        for n in reversed(self.dims[1:]):
            parts.append(index % n)
            index = index // n
        return [index, *reversed(parts)]


def is_integer(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an integer, NumPy's included; ``True`` is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_positive_integer(value: object) -> TypeGuard[int]:
    """Whether ``value`` is an integer of at least 1, NumPy's included; ``True`` is not.

    Where it is kept, take ``int(value)``: NumPy's have few digits and do not turn into JSON.
    """
    return is_integer(value) and int(value) > 0


def check_positive(**numbers: object) -> None:
    """Refuse what is no positive integer, by its name."""
    for name, value in numbers.items():
        if not is_positive_integer(value):
            raise ValueError(f"{name} must be a positive integer, got {value!r}")


def is_number(value: object) -> TypeGuard[float]:
    """Whether ``value`` is a plain number; NaN and infinity are, ``True`` and a tensor are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def fold(size: int, order: int, max_padding: float = 0.05, dims: Sequence[int] | None = None) -> Folding:
    """Fold ``size`` into ``order`` balanced modes with at most ``max_padding`` padding.

    Modes come in ascending order. Explicit ``dims`` are checked and taken as they are.

    >>> fold(784, 2).dims
    (28, 28)
    """
    if dims is not None:
        return Folding(size, tuple(dims))
    if not is_positive_integer(size):
        raise ValueError(f"a size to fold must be a positive integer, got {size!r}")
    if not is_positive_integer(order):
        raise ValueError(f"order must be a positive integer, got {order!r}")
    if not 0 <= max_padding <= 1:
        raise ValueError(f"max_padding must lie between 0 and 1 (0.05 allows 5 %), got {max_padding!r}")
    return Folding(size, _best_modes(size, order, max_padding))


@lru_cache(maxsize=4096)
def _best_modes(size: int, order: int, max_padding: float) -> tuple[int, ...]:
    """The ascending modes of least score; depth-first, the balanced ones first."""
    largest = math.floor(size * (1.0 + max_padding) + 1e-9)
    ideal_sum = order * size ** (1.0 / order)
    # (1, …, 1, size) always exists, so there is always an answer within the limit.
    best = (1,) * (order - 1) + (size,)
    best_score = sum(best) / ideal_sum - 1.0

    def search(chosen: tuple[int, ...], product: int) -> None:
        nonlocal best, best_score
        left = order - len(chosen)
        remaining = -(-size // product)
        if left == 1:
            candidate = tuple(sorted((*chosen, remaining)))
            padding = product * remaining / size - 1.0
            score = sum(candidate) / ideal_sum - 1.0 + _PADDING_WEIGHT * padding + _ANY_PADDING_COST * (padding > 0)
            if score < best_score - 1e-12:
                best, best_score = candidate, score
            return
        smallest, balanced = chosen[-1] if chosen else 1, remaining ** (1.0 / left)
        for mode in range(max(smallest, math.ceil(balanced)), smallest - 1, -1):
            rest = (left - 1) * (remaining / mode) ** (1.0 / (left - 1))
            hopeless = (sum(chosen) + mode + rest) / ideal_sum - 1.0 >= best_score
            if hopeless and mode <= balanced:
                break  # smaller modes are less balanced still
            grown = product * mode
            # whatever follows, the padded size is a multiple of the product so far
            if not hopeless and -(-size // grown) * grown <= largest:
                search((*chosen, mode), grown)

    search((), 1)
    return best
