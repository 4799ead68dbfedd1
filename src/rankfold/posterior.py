"""What is learned about a set of arrays: a Gaussian for every entry, or a point.

The arrays are the factors of a tensor, or a bias. Both posteriors share one interface, so that the
Bayesian, MAP and fixed-rank modes differ only in which of them a layer owns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfold.gaussian import Variance, Weight, as_tensors, cross_entropy, end_to_end, kl_divergence, reparametrize

# Posterior standard deviations start at this fraction of the scale of what they belong to.
INITIAL_STD_RATIO = 0.1


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
    def kl(self, variances: Sequence[Variance]) -> Tensor:
        """``KL(q(u) ‖ N(0, v))`` in nats, given the prior variances ``v`` of every array: broadcastable, or a number.

        For a point, whose KL is infinite, the part that depends on it: ``−log N(u | 0, v)`` without
        ½ log 2π.
        """

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
        log_std = torch.tensor(std).log().item()
        self.log_std = nn.ParameterList(
            torch.full_like(mean, log_std, dtype=at_least_float32(mean.dtype)) for mean in self.mean
        )

    def sample(self, generator: torch.Generator | None = None) -> list[Tensor]:
        log_stds = arrays_in(self.log_std)
        return reparametrize(arrays_in(self.mean), log_stds, standard_normal(log_stds, generator))

    def second_moments(self) -> list[Tensor]:
        log_stds = arrays_in(self.log_std)
        means = [mean.to(log_std.dtype) for mean, log_std in zip(arrays_in(self.mean), log_stds, strict=True)]
        return list(torch._foreach_addcmul(torch._foreach_exp(torch._foreach_mul(log_stds, 2.0)), means, means))

    def kl(self, variances: Sequence[Variance]) -> Tensor:
        return kl_divergence(arrays_in(self.mean), arrays_in(self.log_std), variances)

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

    def kl(self, variances: Sequence[Variance]) -> Tensor:
        moments = self.second_moments()
        priors = as_tensors(variances, moments[0].detach())
        return cross_entropy(moments, priors, torch._foreach_reciprocal(priors))

    def parameter_lists(self) -> tuple[nn.ParameterList, ...]:
        return (self.mean,)


def drawn(posteriors: Sequence[FactorPosterior]) -> list[list[Tensor]]:
    """What each posterior gives by itself, with the same noise; if all are to be sampled, in one go."""
    sampled = [q for q in posteriors if isinstance(q, GaussianPosterior) and q.training]
    if len(sampled) < len(posteriors):
        return [posterior() for posterior in posteriors]
    means = [mean for q in sampled for mean in arrays_in(q.mean)]
    log_stds = [arrays_in(q.log_std) for q in sampled]
    noise = end_to_end([standard_normal(group) for group in log_stds])
    samples = iter(reparametrize(means, [log_std for group in log_stds for log_std in group], noise))
    return [[next(samples) for _ in group] for group in log_stds]


def joint_kl(pairs: Sequence[tuple[FactorPosterior, Sequence[Variance]]], weight: Weight | None = None) -> Tensor:
    """The sum of the KLs of posteriors, each with its prior variances, times ``weight``.

    All Gaussian ones of a device are taken in one go.
    """
    gaussian: dict[torch.device, list[tuple[GaussianPosterior, Sequence[Variance]]]] = {}
    points = []
    for posterior, variances in pairs:
        if isinstance(posterior, GaussianPosterior):
            gaussian.setdefault(arrays_in(posterior.mean)[0].device, []).append((posterior, variances))
        else:
            points.append(posterior.kl(variances))
    terms = []
    for device, group in gaussian.items():
        means = [mean for q, _ in group for mean in arrays_in(q.mean)]
        log_stds = [log_std for q, _ in group for log_std in arrays_in(q.log_std)]
        priors = [variance for _, v in group for variance in v]
        terms.append(kl_divergence(means, log_stds, priors, weight and weight.to(device)))
    if points:
        nats = sum_of(points)
        terms.append(nats if weight is None else weight.to(nats.device).times(nats))
    return sum_of(terms)


def arrays_in(parameters: nn.ParameterList) -> list[Tensor]:
    """All arrays of a list; iterating over it would look each one up by its name, at some cost in every step."""
    arrays: list[Any] = list(parameters._parameters.values())
    # parametrized ones, and those of the replicas of nn.DataParallel, are kept elsewhere
    return arrays if len(arrays) == len(parameters) else list(parameters)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype for λ and log-stds beside factors of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


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
