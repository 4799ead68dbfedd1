"""Sampling Gaussian arrays and their KL divergence, over many arrays at once.

Both are a handful of entrywise formulas over all factors of a layer. Written entry by entry through
autograd they would cost dozens of small operations a step; here each is one function with its gradient
in closed form, in multi-tensor operations. On CUDA samples are one kernel, and the KL with its gradient is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankfold.flat import alike, end_to_end, taken_apart
from rankfold.kernels import launch, slices

# The prior variances of an array: one for each of its slices along an axis, as a tensor of as many dimensions, of which
# all others are of size 1; or one number for all entries.
Variance = Tensor | float


class Weight(NamedTuple):
    """``β / N``: how much the KL counts in the objective. β is a 0-dim tensor, which may change on its device."""

    beta: Tensor
    num_data: int

    def to(self, device: torch.device) -> Weight:
        return Weight(self.beta.to(device), self.num_data)


def reparametrize(means: Sequence[Tensor], log_stds: Sequence[Tensor], noise: Tensor) -> list[Tensor]:
    """Samples ``u = μ + σ z`` for noise ``z`` of all arrays, end to end; differentiable in μ and log σ."""
    # a compiler fuses the plain formula by itself, and torch.func can transform no other
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        parts = taken_apart(noise, log_stds)
        return alike([m + r.exp() * z for m, r, z in zip(means, log_stds, parts, strict=True)], means)
    samples: tuple[Tensor, ...] = _Reparametrize.apply(noise, *means, *log_stds)  # type: ignore[no-untyped-call]
    return list(samples)


def kl_divergence(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    variances: Sequence[Variance],
    weight: Weight | None = None,
) -> Tensor:
    """``Σ KL(N(μ, σ²) ‖ N(0, v))`` in nats over all entries of all arrays, times ``weight``.

    ``variances`` are constants, one for each array. Arrays without log-stds are points, for which it is the part that
    depends on them: ``−Σ log N(μ | 0, v)`` without ½ log 2π.
    """
    if torch._C._are_functorch_transforms_active():
        return _plain_kl(means, list(log_stds), as_tensors(variances, means[0]), weight)[0]
    nats: Tensor = _KLDivergence.apply(weight, len(means), len(log_stds), *means, *log_stds, *variances)  # type: ignore[no-untyped-call]
    return nats


def kl_with_gradient(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    variances: Sequence[Variance],
    weight: Weight | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """:func:`kl_divergence`, and its gradient by every mean, then by every log-std; to be called without autograd."""
    weight = weight and weight.to(means[0].device)
    if slices.usable(means, log_stds):
        found = launch.tried(slices.kl, means, log_stds, variances, weight)
        if found is not None:
            return found
    return _plain_kl(means, list(log_stds), as_tensors(variances, means[0]), weight)


def _plain_kl(
    means: Sequence[Tensor], log_stds: list[Tensor], variances: list[Tensor], weight: Weight | None
) -> tuple[Tensor, list[Tensor]]:
    precise = alike(means, log_stds or variances)
    precisions = torch._foreach_reciprocal(variances)
    if not log_stds:
        nats = _cross_entropy(torch._foreach_mul(precise, precise), variances, precisions)
    else:
        noise = torch._foreach_exp(torch._foreach_mul(log_stds, 2.0))  # σ²
        moments = torch._foreach_addcmul(noise, precise, precise)  # μ² + σ²
        # Σ ½ (μ² + σ²)/v + ½ log v − log σ − ½
        size = sum(mean.numel() for mean in means)
        nats = _cross_entropy(moments, variances, precisions) - end_to_end(log_stds).sum() - 0.5 * size
    share = torch.ones_like(nats) if weight is None else (weight.beta / weight.num_data).to(nats.dtype)
    weights = torch._foreach_mul(precisions, share)
    # ∂KL/∂μ = μ / v, ∂KL/∂log σ = σ² / v − 1
    gradient = alike([mean * w for mean, w in zip(precise, weights, strict=True)], means)
    if log_stds:
        gradient += [torch.addcmul(-share, n, w) for n, w in zip(noise, weights, strict=True)]
    return nats * share, gradient


def as_tensors(variances: Sequence[Variance], like: Tensor) -> list[Tensor]:
    """Variances as tensors on the device of ``like``, in at least float32; equal numbers become one tensor."""
    numbers = dict.fromkeys(v for v in variances if not isinstance(v, Tensor))
    constants = {number: like.new_full((1,), number, dtype=at_least_float32(like.dtype)) for number in numbers}
    return [v if isinstance(v, Tensor) else constants[v] for v in variances]


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype for λ and log-stds beside factors of ``dtype``."""
    return torch.promote_types(dtype, torch.float32)


class _Reparametrize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, noise: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        samples, deviations = _samples(tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :], noise)
        ctx.save_for_backward(deviations)
        return tuple(samples)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # ∂u/∂μ = 1, ∂u/∂log σ = σ z
        (deviations,) = ctx.saved_tensors
        by_log_std = taken_apart(deviations, grads)
        # gradients that lie as the means do become theirs as they are; DDP minds the strides of axes of size 1 as well
        as_they_are = all(grad.stride() == own.stride() for grad, own in zip(grads, by_log_std, strict=True))
        by_mean = grads if as_they_are else taken_apart(end_to_end(grads), grads)
        return (None, *by_mean, *torch._foreach_mul(by_log_std, by_mean))


def _samples(means: Sequence[Tensor], log_stds: Sequence[Tensor], noise: Tensor) -> tuple[list[Tensor], Tensor]:
    """``μ + σ z`` of every array, and all ``σ z`` end to end."""
    if slices.usable(means, log_stds):
        found = launch.tried(slices.sample, means, log_stds, noise)
        if found is not None:
            return found
    deviations = end_to_end(log_stds).exp().mul_(noise)
    parts = taken_apart(deviations, means)
    # not views of one row: autograd would be slower with all that is made of them
    return alike(torch._foreach_add(parts, alike(means, parts)), means), deviations


class _KLDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Weight | None, count: int, spreads: int, *inputs: Any) -> Tensor:
        means, log_stds, variances = inputs[:count], inputs[count : count + spreads], inputs[count + spreads :]
        nats, gradient = kl_with_gradient(means, log_stds, variances, weight)
        ctx.save_for_backward(*gradient)
        ctx.constants = len(variances)
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (None, None, None, *torch._foreach_mul(ctx.saved_tensors, grad), *[None] * ctx.constants)


def _cross_entropy(moments: Sequence[Tensor], variances: list[Tensor], precisions: Sequence[Tensor]) -> Tensor:
    """``−Σ E[log N(u | 0, v)] = Σ ½ E[u²]/v + ½ log v``, without ½ log 2π, given E[u²] and 1/v."""
    weighted = [moment * precision for moment, precision in zip(moments, precisions, strict=True)]
    sums = torch.stack(torch._foreach_norm(weighted, 1))  # of numbers that are not negative
    repeats = [moment.numel() / variance.numel() for moment, variance in zip(moments, variances, strict=True)]
    return 0.5 * (sums.sum() + end_to_end(torch._foreach_mul(torch._foreach_log(variances), repeats)).sum())
