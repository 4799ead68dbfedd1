"""What is learned about a set of arrays: a Gaussian for every entry, or a point.

The arrays are the factors of a tensor, or a bias. Both posteriors share one interface, so that the
Bayesian, MAP and fixed-rank modes differ only in which of them a layer owns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfold.flat import alike
from rankfold.gaussian import (
    Variance,
    Weight,
    at_least_float32,
    kl_divergence,
    kl_with_gradient,
    reparametrize,
)

# Posterior standard deviations start at this fraction of the scale of what they belong to.
INITIAL_STD_RATIO = 0.1


# A posterior, and the prior variances of its arrays.
Beside = tuple["FactorPosterior", Sequence[Variance]]


class FactorPosterior(nn.Module, ABC):
    """A factorised distribution over arrays; sampled in training mode, its mean in eval mode."""

    mean: nn.ParameterList

    def forward(self) -> list[Tensor]:
        return self.sample() if self.training else arrays_in(self.mean)

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        """One reparametrised draw, ``u = μ + σ z``."""

    @abstractmethod
    def second_moments(self) -> list[Tensor]:
        """``E[u²] = μ² + σ²`` of every entry, in at least float32."""

    @abstractmethod
    def parameter_lists(self) -> tuple[nn.ParameterList, ...]:
        """Every list of parameters shaped like the arrays; pruning cuts all of them alike."""


@final
class GaussianPosterior(FactorPosterior):
    """``q(u) = N(μ, σ²)`` independently for every entry, with ``log σ`` as the parameter.

    Args:
        means: the initial means.
        std: the initial standard deviation of every entry.
    """

    def __init__(self, means: Iterable[Tensor], std: float) -> None:
        super().__init__()
        self.mean = nn.ParameterList(means)
        log_std = torch.tensor(std, device="cpu").log().item()
        self.log_std = nn.ParameterList(
            torch.full_like(mean, log_std, dtype=at_least_float32(mean.dtype)) for mean in self.mean
        )

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        log_stds = arrays_in(self.log_std)
        return reparametrize(arrays_in(self.mean), log_stds, standard_normal(log_stds, generator))

    def second_moments(self) -> list[Tensor]:
        log_stds = arrays_in(self.log_std)
        means = alike(arrays_in(self.mean), log_stds)
        return list(torch._foreach_addcmul(torch._foreach_exp(torch._foreach_mul(log_stds, 2.0)), means, means))

    def parameter_lists(self) -> tuple[nn.ParameterList, ...]:
        return (self.mean, self.log_std)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GaussianPosterior:
        super()._apply(sparing(fn, self.log_std), recurse)  # type: ignore[no-untyped-call]
        return self


@final
class PointPosterior(FactorPosterior):
    """All mass on one point: MAP and fixed-rank training."""

    def __init__(self, means: Iterable[Tensor]) -> None:
        super().__init__()
        self.mean = nn.ParameterList(means)

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        return arrays_in(self.mean)

    def second_moments(self) -> list[Tensor]:
        return [mean.to(at_least_float32(mean.dtype)).square() for mean in arrays_in(self.mean)]

    def parameter_lists(self) -> tuple[nn.ParameterList, ...]:
        return (self.mean,)


def drawn(posteriors: Sequence[FactorPosterior]) -> list[list[Tensor]]:
    """What each posterior gives; if all are to be sampled, in one go."""
    sampled = [q for q in posteriors if isinstance(q, GaussianPosterior) and q.training]
    if len(sampled) < len(posteriors):
        return [posterior() for posterior in posteriors]
    means = [mean for q in sampled for mean in arrays_in(q.mean)]
    log_stds = [log_std for q in sampled for log_std in arrays_in(q.log_std)]
    samples = iter(reparametrize(means, log_stds, standard_normal(log_stds)))
    return [list(islice(samples, len(q.mean))) for q in sampled]


def joint_kl(pairs: Sequence[Beside], weight: Weight | None = None) -> Tensor:
    """The sum of the KLs of posteriors, each with its prior variances, times ``weight``."""
    return sum_of(kl_divergence(*group, weight) for group in _together(pairs))


@torch.no_grad()
def joint_kl_with_gradient(pairs: Sequence[Beside], weight: Weight) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The same, all parameters of the posteriors, and its gradient by each of them."""
    terms, parameters, gradients = [], [], []
    for means, log_stds, variances in _together(pairs):
        nats, gradient = kl_with_gradient(means, log_stds, variances, weight)
        terms.append(nats)
        parameters += means + log_stds
        gradients += gradient
    return sum_of(terms), parameters, gradients


def _together(pairs: Sequence[Beside]) -> Iterable[tuple[list[Tensor], list[Tensor], list[Variance]]]:
    """Means, log-stds and prior variances of all posteriors of one kind, device and dtype, to be taken in one go."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor], list[Variance]]] = {}
    for posterior, variances in pairs:
        means = arrays_in(posterior.mean)
        group = groups.setdefault((type(posterior), means[0].device, means[0].dtype), ([], [], []))
        group[0].extend(means)
        if isinstance(posterior, GaussianPosterior):
            group[1].extend(arrays_in(posterior.log_std))
        group[2].extend(variances)
    return groups.values()


def arrays_in(parameters: nn.ParameterList) -> list[Tensor]:
    """All arrays of a list; iterating over it would look each one up by its name, at some cost in every step."""
    arrays: list[Any] = list(parameters._parameters.values())
    # parametrized ones, and those of the replicas of nn.DataParallel, are kept elsewhere
    return arrays if len(arrays) == len(parameters) else list(parameters)


def sparing(fn: Callable[[Tensor], Tensor], precise: Iterable[Tensor]) -> Callable[[Tensor], Tensor]:
    """``fn`` of ``Module._apply``, but keeping the ``precise`` tensors and their gradients in at least float32."""
    spared = {id(kept) for tensor in precise for kept in (tensor, tensor.grad)}

    def convert(tensor: Tensor) -> Tensor:
        converted = fn(tensor)
        dtype = at_least_float32(converted.dtype)
        lowered = converted.dtype != dtype
        return tensor.to(converted.device, dtype) if lowered and id(tensor) in spared else converted

    return convert


def sum_of(terms: Iterable[Tensor]) -> Tensor:
    """The sum of 0-dim tensors, at least one, on the device of the first."""
    first, *others = terms
    return torch.stack([first, *(other.to(first.device) for other in others)]).sum() if others else first


def standard_normal(like: Sequence[Tensor], generator: torch.Generator | None = None) -> Tensor:
    """Noise for arrays like these, end to end."""
    size, first = sum(tensor.numel() for tensor in like), like[0]
    place = first.device if generator is None else generator.device
    return torch.randn(size, generator=generator, dtype=first.dtype, device=place).to(first.device)
