"""Samples, KL and half step 2 of many Gaussian arrays, each in one launch.

The plain twins are in :mod:`rankfold.gaussian` and :mod:`rankfold.bayesian_tensor`; here the same takes one Triton
kernel for a whole model, or a layer, where it would take several for every array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.flat import end_to_end, taken_apart
from rankfold.kernels import launch
from rankfold.kernels.slice_tables import Group, Shape, addresses_of, number_on, penalties_of, ranks_of, samples_of


def usable(means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> bool:
    """Whether kernels can run on these arrays: whole, without gaps, of one device, and fewer than 2³⁰ entries.

    Means are all float32 or all bfloat16, log-stds float32. They must be parameters, which stay where they are:
    addresses of what comes and goes would have to be brought to the device every time.
    """
    if not log_stds or torch.compiler.is_compiling() or not launch.usable(means[0]):
        return False
    tensors = (*means, *log_stds)
    lasting = {type(tensor) for tensor in tensors} == {nn.Parameter}  # nor spread over processes
    alike = len({tensor.device for tensor in tensors}) == len({mean.dtype for mean in means}) == 1
    single = {log_std.dtype for log_std in log_stds} == {torch.float32}
    whole = all(tensor.is_contiguous() for tensor in tensors)
    return lasting and alike and single and whole and sum(mean.numel() for mean in means) < 2**30


def sample(means: Sequence[Tensor], log_stds: Sequence[Tensor], noise: Tensor) -> tuple[list[Tensor], Tensor]:
    """``u = μ + σ z`` of every array, in one row of memory, and all ``σ z`` end to end."""
    from rankfold.kernels.slices_triton import slice_sample

    plan = samples_of(_shapes(means), means[0].dtype, means[0].device)
    row, deviations = means[0].new_empty(plan.length), torch.empty_like(noise)
    tensors = _addresses(means, log_stds), noise, plan.table, row, deviations
    launch.start(slice_sample, (len(plan.table), 1, 1), tensors, len(means), (), _options(means), plan.forms)
    parts = zip(means, plan.starts, strict=True)
    # by .data they are no views to autograd, which is slower with what is made of views
    return [row.as_strided(mean.shape, mean.stride(), start).data for mean, start in parts], deviations


def kl(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    variances: Sequence[Tensor | float],
    weight: tuple[Tensor, int] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The KL in nats, and its gradient by every mean, then by every log-std.

    With a weight ``β, N`` both are β/N as large.
    """
    from rankfold.kernels.slices_triton import slice_kl

    device = means[0].device
    priors = [v if isinstance(v, Tensor) else number_on(device, v) for v in variances]
    plan = penalties_of(_shapes(means), _shapes(priors), means[0].dtype, device)
    variance, size = end_to_end(priors), sum(mean.numel() for mean in means)
    beta, num_data = weight or (variance, 1)
    nats, gradient = log_stds[0].new_empty(len(plan.table)), log_stds[0].new_empty(2 * size)
    tensors = _addresses(means, log_stds), variance, plan.table, beta, nats, gradient
    options = {"WEIGHTED": weight is not None, **_options(means)}
    forms = plan.forms.setdefault(weight is not None, {})
    launch.start(slice_kl, (len(plan.table), 1, 1), tensors, len(means), (size, 1.0 / num_data), options, forms)
    return nats.sum(), _as_parameters(gradient, means, log_stds)


def update_variances(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    variances: Sequence[Tensor],
    groups: tuple[tuple[Group, ...], ...],
    squared_eta: float | None,
    step_size: float,
) -> Sequence[Tensor]:
    """``λ ← γ λ* + (1 − γ) λ`` of several tensors, in place, given the groups of each; those λ.

    λ* is that of the half-Cauchy prior with this η², or of the log-uniform prior if it is ``None``.
    """
    from rankfold.kernels.slices_triton import slice_variances

    plan = ranks_of(_shapes(means), groups, means[0].dtype, means[0].device)
    tensors = _addresses(means, log_stds, variances), plan.table, plan.ranks
    options = {"HALF_CAUCHY": squared_eta is not None, **_options(means)}
    forms = plan.forms.setdefault(squared_eta is not None, {})
    numbers = squared_eta or 0.0, float(step_size)
    launch.start(slice_variances, (len(plan.ranks), 1, 1), tensors, len(means), numbers, options, forms)
    return variances


def _shapes(tensors: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _options(means: Sequence[Tensor]) -> dict[str, Any]:
    import triton.language as tl

    kind = tl.float32 if means[0].dtype == torch.float32 else tl.bfloat16
    # fusing is said aloud, as its default is about to change
    return {"MEAN": kind, "BLOCK": 1024, "enable_fp_fusion": True}


def _addresses(*groups: Sequence[Tensor]) -> Tensor:
    """Where the tensors of all groups lie in memory, those of one group after those of the other."""
    return addresses_of(tuple(tensor.data_ptr() for tensors in groups for tensor in tensors), groups[0][0].device)


def _as_parameters(row: Tensor, means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> list[Tensor]:
    """A row of all means, then all log-stds, in their shapes and dtypes."""
    if means[0].dtype == row.dtype:
        return taken_apart(row, [*means, *log_stds])
    by_mean, by_log_std = row.chunk(2)
    return taken_apart(by_mean.to(means[0].dtype), means) + taken_apart(by_log_std, log_stds)
