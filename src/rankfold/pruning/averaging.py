"""Time averages of the posterior, free of the optimizer's jitter.

A constant learning rate keeps shaking the means and log-stds of a dead slice, and over thousands
of entries that adds up to many nats. Averages over two successive windows of training, *a* and *b*,
cancel it: jitter is independent between windows, so ``μ_a μ_b`` estimates μ² without bias, where
``μ²`` itself would be too large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.flat import alike
from rankfold.posterior import GaussianPosterior, arrays_in


@dataclass(frozen=True)
class TwoWindows:
    """Averages of means and log-stds over two successive windows, one tensor per factor."""

    mean: tuple[list[Tensor], list[Tensor]]
    log_std: tuple[list[Tensor], list[Tensor]]

    @classmethod
    def now(cls, tensor: BayesianTensor) -> TwoWindows:
        """The current posterior as both windows: for a model whose training is over."""
        mean, log_std = ([values.detach() for values in side] for side in _current(tensor))
        return cls((mean, mean), (log_std, log_std))


@final
class WindowAverage:
    """Running averages of one tensor's posterior; nothing is read back to the host."""

    def __init__(self, tensor: BayesianTensor) -> None:
        self.tensor = tensor
        self.restart()

    def restart(self) -> None:
        """Forget everything; call it when the ranks have changed."""
        self.sums = [torch.zeros_like(values) for values in self._values()]
        self.previous: list[Tensor] | None = None
        self.count = torch.zeros((), device=self.sums[0].device, dtype=self.sums[0].dtype)
        self._one = torch.ones_like(self.count)

    def state(self) -> dict[str, Any]:
        """Copies of all that it holds, to go on with later."""
        previous = None if self.previous is None else [values.clone() for values in self.previous]
        return {"sums": [total.clone() for total in self.sums], "count": self.count.clone(), "previous": previous}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state` of a tensor of the same ranks."""
        device = self.count.device
        self.sums = [total.to(device, copy=True) for total in state["sums"]]
        self.count = state["count"].to(self.count, copy=True)
        self.previous = None if state["previous"] is None else [values.to(device) for values in state["previous"]]

    @torch.no_grad()
    def close_window(self) -> TwoWindows | None:
        """Start a new window; the last two closed ones, once there are two."""
        latest = [total / self.count for total in self.sums]
        previous, self.previous = self.previous, latest
        torch._foreach_zero_(self.sums)
        self.count.zero_()
        if previous is None:
            return None
        half = len(latest) // 2
        return TwoWindows((previous[:half], latest[:half]), (previous[half:], latest[half:]))

    def totals(self) -> list[Tensor]:
        """What an update adds to: the sums, and how many there are in them."""
        return [*self.sums, self.count]

    def summands(self) -> list[Tensor]:
        """What an update adds."""
        return [*self._values(), self._one]

    def _values(self) -> list[Tensor]:
        mean, log_std = _current(self.tensor)
        return mean + log_std


@torch.no_grad()
def update_all(averages: Iterable[WindowAverage]) -> None:
    """Take in the current posteriors of several tensors, in one operation for all that are on one device."""
    by_device: dict[torch.device, list[WindowAverage]] = {}
    for average in averages:
        by_device.setdefault(average.count.device, []).append(average)
    for group in by_device.values():
        torch._foreach_add_([t for a in group for t in a.totals()], [s for a in group for s in a.summands()])


def _current(tensor: BayesianTensor) -> tuple[list[Tensor], list[Tensor]]:
    posterior = tensor.factors
    if not isinstance(posterior, GaussianPosterior):
        raise TypeError("only Gaussian factors have a spread to average")
    mean, log_std = arrays_in(posterior.mean), arrays_in(posterior.log_std)
    return alike(mean, log_std), log_std
