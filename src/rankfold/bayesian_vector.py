"""A bias with its weak normal prior and, in the Bayesian mode, a normal posterior."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from rankfold.config import TensorConfig
from rankfold.gaussian import Variance
from rankfold.posterior import FactorPosterior, GaussianPosterior, PointPosterior, joint_kl


@final
class BayesianVector(nn.Module):
    """A bias ``b`` with prior ``N(0, σ₀²)``.

    Args:
        mean: its initial value.
        std: the initial posterior standard deviation, used in the Bayesian mode.
    """

    def __init__(self, mean: Tensor, std: float, config: TensorConfig) -> None:
        super().__init__()
        self.weak_std = config.weak_std
        self.inference = config.inference
        self.entries: FactorPosterior = (
            GaussianPosterior([mean], std) if config.inference == "bayes" else PointPosterior([mean])
        )

    def forward(self) -> Tensor:
        """A sample in training, the mean in eval."""
        entries: list[Tensor] = self.entries()
        return entries[0]

    @property
    def has_prior(self) -> bool:
        """Fixed-rank training has none."""
        return self.inference != "fixed"

    def kl(self) -> Tensor:
        """``KL(q(b) ‖ N(0, σ₀²))`` in nats; 0 for fixed-rank training."""
        if not self.has_prior:
            return torch.zeros((), device=self.entries.mean[0].device)
        return joint_kl([self.beside_prior()])

    def beside_prior(self) -> tuple[FactorPosterior, list[Variance]]:
        """The posterior of the entries, and their prior variance."""
        return self.entries, [self.weak_std**2]
