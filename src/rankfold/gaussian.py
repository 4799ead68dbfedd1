"""Sampling Gaussian arrays and their KL divergence, over many arrays at once.

Both are a handful of entrywise formulas over all factors of a layer. Written entry by entry through
autograd they would cost dozens of small operations a step; here each is one function with its gradient
in closed form, in multi-tensor operations. On CUDA the KL with its gradient is one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankfold.kernels import launch, slices

# A prior variance for every entry of an array, broadcastable to it, or one number for all.
Variance = Tensor | float


class Weight(NamedTuple):
    """``β / N``: how much the KL counts in the objective. β is a 0-dim tensor, which may change on its device."""

    beta: Tensor
    num_data: int

    def times(self, nats: Tensor) -> Tensor:
        return nats * (self.beta / self.num_data)

    def to(self, device: torch.device) -> Weight:
        return Weight(self.beta.to(device), self.num_data)


def reparametrize(means: Sequence[Tensor], log_stds: Sequence[Tensor], noise: Tensor) -> list[Tensor]:
    """Samples ``u = μ + σ z`` for noise ``z`` of all arrays, end to end; differentiable in μ and log σ."""
    if torch.compiler.is_compiling():  # the compiler fuses the plain formula by itself
        parts = taken_apart(noise, log_stds)
        return _like([m + r.exp() * z for m, r, z in zip(means, log_stds, parts, strict=True)], means)
    samples: tuple[Tensor, ...] = _Reparametrize.apply(noise, *means, *log_stds)  # type: ignore[no-untyped-call]
    return list(samples)


def kl_divergence(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    variances: Sequence[Variance],
    weight: Weight | None = None,
) -> Tensor:
    """``Σ KL(N(μ, σ²) ‖ N(0, v))`` in nats over all entries of all arrays, times ``weight``.

    ``variances`` are constants, one for each array: a number, or a tensor of as many dimensions, broadcastable to it.
    """
    priors = as_tensors(variances, log_stds[0])
    tensors = (*means, *log_stds, *priors)
    nats: Tensor
    if slices.usable(means, log_stds) and all(prior.numel() == max(prior.shape, default=1) for prior in priors):
        try:
            nats = _SliceKL.apply(len(means), weight, *tensors)  # type: ignore[no-untyped-call]
            return nats
        except Exception as error:  # whatever stops a compiler or a launch must not stop the user
            launch.give_up(error)
    nats = _KLDivergence.apply(len(means), *tensors)  # type: ignore[no-untyped-call]
    return nats if weight is None else weight.times(nats)


def as_tensors(variances: Sequence[Variance], like: Tensor) -> list[Tensor]:
    """Variances as tensors of the dtype and on the device of ``like``; equal numbers become one tensor."""
    numbers = dict.fromkeys(v for v in variances if not isinstance(v, Tensor))
    constants = {number: like.new_full((1,), number) for number in numbers}
    return [v if isinstance(v, Tensor) else constants[v] for v in variances]


class _Reparametrize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, noise: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        means, log_stds = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        deviations = end_to_end(log_stds).exp().mul_(noise)  # σ z
        ctx.save_for_backward(deviations)
        parts = taken_apart(deviations, means)
        # not views of one row: autograd would be slower with all that is made of them
        return tuple(_like(torch._foreach_add(parts, _like(means, parts)), means))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # ∂u/∂μ = 1, ∂u/∂log σ = σ z
        (deviations,) = ctx.saved_tensors
        by_mean = end_to_end(grads)
        return (None, *taken_apart(by_mean, grads), *taken_apart(by_mean * deviations, grads))


class _SliceKL(torch.autograd.Function):
    """The same as :class:`_KLDivergence`, in one kernel that finds the gradient along with the value."""

    @staticmethod
    def forward(ctx: Any, count: int, weight: Weight | None, *tensors: Tensor) -> Tensor:
        means, log_stds, variances = _thirds(tensors, count)
        nats, gradient = slices.kl(means, log_stds, variances, weight)
        ctx.save_for_backward(gradient)
        ctx.shapes, ctx.dtype = [mean.shape for mean in means], means[0].dtype
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (gradient,) = ctx.saved_tensors
        by_mean, by_log_std = (gradient * grad).chunk(2)
        sizes = [shape.numel() for shape in ctx.shapes]
        parts = (*by_mean.to(ctx.dtype).split(sizes), *by_log_std.split(sizes))
        found = [part.view(shape) for part, shape in zip(parts, ctx.shapes * 2, strict=True)]
        return (None, None, *found, *[None] * len(sizes))


class _KLDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensor:
        means, log_stds, variances = _thirds(tensors, count)
        means = _like(means, log_stds)
        noise = torch._foreach_exp(torch._foreach_mul(log_stds, 2.0))  # σ²
        precisions = torch._foreach_reciprocal(variances)
        ctx.save_for_backward(*means, *noise, *precisions)
        ctx.count = count
        moments = torch._foreach_addcmul(noise, means, means)  # μ² + σ²
        # Σ ½ (μ² + σ²)/v + ½ log v − log σ − ½
        size = sum(mean.numel() for mean in means)
        return cross_entropy(moments, variances, precisions) - _sum(log_stds) - 0.5 * size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        # ∂KL/∂μ = μ / v, ∂KL/∂log σ = σ² / v − 1
        means, noise, precisions = _thirds(ctx.saved_tensors, ctx.count)
        weights = torch._foreach_mul(precisions, grad)
        by_mean = [mean * weight for mean, weight in zip(means, weights, strict=True)]
        negative = -grad
        by_log_std = [torch.addcmul(negative, n, weight) for n, weight in zip(noise, weights, strict=True)]
        return (None, *by_mean, *by_log_std, *[None] * ctx.count)


def cross_entropy(moments: Sequence[Tensor], variances: Sequence[Tensor], precisions: Sequence[Tensor]) -> Tensor:
    """``−Σ E[log N(u | 0, v)] = Σ ½ E[u²]/v + ½ log v``, without ½ log 2π, given E[u²] and 1/v."""
    weighted = [moment * precision for moment, precision in zip(moments, precisions, strict=True)]
    sums = torch.stack(torch._foreach_norm(weighted, 1))  # of numbers that are not negative
    repeats = [moment.numel() / variance.numel() for moment, variance in zip(moments, variances, strict=True)]
    return 0.5 * (sums.sum() + _sum(torch._foreach_mul(torch._foreach_log(list(variances)), repeats)))


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """The entries of all tensors in one row; those of a lone tensor may be its own."""
    return torch._C._nn.flatten_dense_tensors(list(tensors))


def taken_apart(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The row in parts that are shaped like these tensors: views of it."""
    return list(torch._C._nn.unflatten_dense_tensors(row, list(like)))


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).sum()


def _thirds(tensors: Sequence[Tensor], count: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return list(tensors[:count]), list(tensors[count : 2 * count]), list(tensors[2 * count :])


def _like(tensors: Sequence[Tensor], examples: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in the dtypes of the examples."""
    dtypes = [example.dtype for example in examples]
    return [t if t.dtype == dtype else t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=True)]
