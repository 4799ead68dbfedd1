"""Priors on the rank variances λ, each with the closed form of the second half step.

For one rank with ``D`` governed entries of total second moment ``M = Σ μ² + σ²``, the part of the
objective that depends on its λ is

    D/2 · log λ + M / (2λ) − log p(λ)

and ``best_variance`` is its exact minimiser. As in the method's definition, the densities are those
of √λ taken as functions of λ, without the Jacobian of the change of variable.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rankfold.shapes import is_number

# λ never falls below this: a standard deviation of 1e-8 is zero for every purpose.
VARIANCE_FLOOR = 1e-16

# The default η of the half-Cauchy prior, in units of the factors' initial standard deviation.
ETA_PER_FACTOR_STD = 0.05


class ShrinkagePrior(ABC):
    """A density on λ that puts most of its mass near zero."""

    @abstractmethod
    def best_variance(self, second_moment: Tensor, count: Tensor) -> Tensor:
        """The λ that minimises the objective, given M and D; all of shape (R,)."""

    @abstractmethod
    def penalty(self, variance: Tensor) -> Tensor:
        """``−log p(λ)`` up to a constant, per rank, in nats; (R,) to (R,)."""

    @abstractmethod
    def at_scale(self, factor_std: float) -> ShrinkagePrior:
        """This prior with its open settings fixed for factors of initial std ``factor_std``."""


@final
@dataclass(frozen=True)
class LogUniform(ShrinkagePrior):
    """``p(λ) ∝ λ^(−1/2)``: improper and free of parameters. The default.

    >>> LogUniform().best_variance(torch.tensor([6.0]), torch.tensor([5.0]))  # M / (D + 1), shape (R,)
    tensor([1.])
    """

    def best_variance(self, second_moment: Tensor, count: Tensor) -> Tensor:
        # λ* = M / (D + 1)
        return (second_moment / (count + 1.0)).clamp(min=VARIANCE_FLOOR)

    def penalty(self, variance: Tensor) -> Tensor:
        return 0.5 * variance.log()

    def at_scale(self, factor_std: float) -> LogUniform:
        return self


@final
@dataclass(frozen=True)
class HalfCauchy(ShrinkagePrior):
    """``p(λ) ∝ (1 + λ/η²)^(−1)``; η hardly matters for the ranks that are found.

    λ* lies between ``M / (D + 2)``, for small η, and ``M / D``. To find fewer ranks, or more, use ``kl_weight`` of
    :class:`~rankfold.RankDetermination`.

    Args:
        eta: the scale η. ``None`` takes one constant times the factors' initial standard deviation,
            so that the same setting suits layers of every size.

    >>> HalfCauchy(eta=1.0).best_variance(torch.tensor([6.0]), torch.tensor([5.0]))  # shape (R,)
    tensor([1.])
    """

    eta: float | None = None

    def __post_init__(self) -> None:
        if self.eta is not None and not (is_number(self.eta) and 0 < self.eta < math.inf):
            raise ValueError(f"eta must be positive and finite (or None for the default), got {self.eta!r}")
        if self.eta is not None:  # kernels and files know no number of NumPy's, and kernels take integers for constants
            object.__setattr__(self, "eta", float(self.eta))

    @property
    def squared_eta(self) -> float:
        """η², once it is known."""
        if self.eta is None:
            raise ValueError("this HalfCauchy has no eta yet; give one, or use at_scale(factor_std)")
        return self.eta**2

    def best_variance(self, second_moment: Tensor, count: Tensor) -> Tensor:
        # (D+2) λ² + (D η² − M) λ − M η² = 0, so with b = D η² − M
        # λ* = (√(b² + 4 (D+2) M η²) − b) / (2 (D+2)) = 2 M η² / (b + √(b² + 4 (D+2) M η²));
        # each form cancels where the other does not.
        scale = self.squared_eta
        b = count * scale - second_moment
        root = (b.square() + 4.0 * (count + 2.0) * second_moment * scale).sqrt()
        for_positive_b = 2.0 * second_moment * scale / (b.abs() + root).clamp(min=VARIANCE_FLOOR**2)
        for_negative_b = (root + b.abs()) / (2.0 * (count + 2.0))
        return torch.where(b > 0, for_positive_b, for_negative_b).clamp(min=VARIANCE_FLOOR)

    def penalty(self, variance: Tensor) -> Tensor:
        return (variance / self.squared_eta).log1p()

    def at_scale(self, factor_std: float) -> HalfCauchy:
        return self if self.eta is not None else HalfCauchy(ETA_PER_FACTOR_STD * factor_std)
