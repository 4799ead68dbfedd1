"""KL and second moments of many Gaussian arrays in one launch, by slices that share a prior variance.

The plain twins are :func:`rankfold.gaussian.kl_divergence` and :meth:`BayesianTensor.second_moments`; here the same
sums over a whole model take one Triton kernel each, where they would take several kernels for every array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankfold.flat import end_to_end, taken_apart
from rankfold.kernels import launch

Shape = tuple[int, ...]
# The size of a rank group, and the (array, axis) pairs whose slices belong to its ranks.
Group = tuple[int, tuple[tuple[int, int], ...]]

# Fusing is said aloud, as its default is about to change.
_OPTIONS = {"BLOCK": 1024, "enable_fp_fusion": True}
# A program of the KL takes a slice of at most about so many entries; larger ones are cut into several.
_MOST_ENTRIES = 4096


class Slice(NamedTuple):
    """``outer`` runs of ``inner`` neighbours, ``step`` apart, and the number of their prior variance."""

    start: int
    outer: int
    step: int
    inner: int
    variance: int

    def cut(self) -> list[Slice]:
        """The same entries in parts, each not too large for one program."""
        if self.outer == 1:
            places = range(0, self.inner, _MOST_ENTRIES)
            return [self._replace(start=self.start + at, inner=min(_MOST_ENTRIES, self.inner - at)) for at in places]
        most = max(1, _MOST_ENTRIES // self.inner)
        places = range(0, self.outer, most)
        return [self._replace(start=self.start + at * self.step, outer=min(most, self.outer - at)) for at in places]


def usable(means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> bool:
    """Whether kernels can run on these arrays: whole, of one device, float32 or lower, and fewer than 2³⁰ entries."""
    if not log_stds or torch.compiler.is_compiling() or not launch.usable(means[0]):
        return False
    tensors = (*means, *log_stds)
    plain = {type(tensor) for tensor in tensors} <= {Tensor, nn.Parameter}  # not spread over processes, for one
    alike = len({tensor.device for tensor in tensors}) == 1
    single = {log_std.dtype for log_std in log_stds} == {torch.float32}
    return plain and alike and single and sum(mean.numel() for mean in means) < 2**30


def kl(
    means: Sequence[Tensor],
    log_stds: Sequence[Tensor],
    variances: Sequence[Tensor],
    weight: tuple[Tensor, int] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The KL in nats, and its gradient by every mean, then by every log-std.

    With a weight ``β, N`` both are β/N as large.
    """
    from rankfold.kernels.slices_triton import slice_kl

    shapes, prior_shapes = _shapes(means), _shapes(variances)
    table = _kl_table(shapes, prior_shapes, means[0].device)
    flat, variance = _laid_out(means, log_stds), end_to_end(variances)
    nats, gradient = flat.new_empty(len(table)), torch.empty_like(flat)
    size, (beta, num_data) = flat.numel() // 2, weight or (flat, 1)
    with torch.cuda.device_of(flat):
        slice_kl[(len(table),)](
            flat, variance, table, beta, nats, gradient, size, 1.0 / num_data, WEIGHTED=weight is not None, **_OPTIONS
        )
    return nats.sum(), _as_parameters(gradient, means, log_stds)


def second_moments(means: Sequence[Tensor], log_stds: Sequence[Tensor], groups: tuple[Group, ...]) -> Tensor:
    """``M_k = Σ μ² + σ²`` of every rank of all groups, end to end (ΣR,)."""
    from rankfold.kernels.slices_triton import slice_moments

    table, bounds = _moment_table(_shapes(means), groups, means[0].device)
    flat = _laid_out(means, log_stds)
    moments = flat.new_empty(len(bounds) - 1)
    with torch.cuda.device_of(flat):
        slice_moments[(len(moments),)](flat, table, bounds, moments, flat.numel() // 2, **_OPTIONS)
    return moments


def _shapes(tensors: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _laid_out(means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> Tensor:
    """All means, then all log-stds, in float32; of one dtype they are one copy."""
    if means[0].dtype == log_stds[0].dtype:
        return end_to_end([*means, *log_stds])
    return torch.cat([end_to_end(means).to(log_stds[0].dtype), end_to_end(log_stds)])


def _as_parameters(row: Tensor, means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> list[Tensor]:
    """The inverse: a row like :func:`_laid_out` in the shapes and dtypes of all means and log-stds."""
    if means[0].dtype == row.dtype:
        return taken_apart(row, [*means, *log_stds])
    by_mean, by_log_std = row.chunk(2)
    return taken_apart(by_mean.to(means[0].dtype), means) + taken_apart(by_log_std, log_stds)


# Tables -----------------------------------------------------------------------------------------------
# They are kept for good: a captured graph goes on reading them, and they are small.


@cache
def _kl_table(shapes: tuple[Shape, ...], prior_shapes: tuple[Shape, ...], device: torch.device) -> Tensor:
    """The slices of arrays whose prior variances have these shapes, and the places of the variances, (·, 5)."""
    rows, first = [], 0
    for start, shape, prior in zip(_starts(shapes), shapes, prior_shapes, strict=True):
        axis = next((n for n, size in enumerate(prior) if size > 1), None)
        rows += [part for piece in _slices(start, shape, axis, first) for part in piece.cut()]
        first += math.prod(prior)
    return torch.tensor(rows, dtype=torch.int32, device=device)


@cache
def _moment_table(shapes: tuple[Shape, ...], groups: tuple[Group, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The slices of every group's ranks, those of one rank after the other, and where each rank's begin."""
    starts = _starts(shapes)
    by_rank: list[list[Slice]] = []
    for size, axes in groups:
        pieces = [_slices(starts[array], shapes[array], axis, 0) for array, axis in axes]
        by_rank += [[piece[k] for piece in pieces] for k in range(size)]
    rows = [row for rank in by_rank for row in rank]
    bounds = [0, *accumulate(len(rank) for rank in by_rank)]
    return (
        torch.tensor(rows, dtype=torch.int32, device=device),
        torch.tensor(bounds, dtype=torch.int32, device=device),
    )


def _starts(shapes: Sequence[Shape]) -> list[int]:
    return [0, *accumulate(math.prod(shape) for shape in shapes)][:-1]


def _slices(start: int, shape: Shape, axis: int | None, variance: int) -> list[Slice]:
    """An array cut along an axis, its variances numbered from ``variance`` on; without an axis in one piece."""
    if axis is None:
        return [Slice(start, 1, 0, math.prod(shape), variance)]
    inner = math.prod(shape[axis + 1 :])
    outer, step = math.prod(shape[:axis]), shape[axis] * inner
    return [Slice(start + k * inner, outer, step, inner, variance + k) for k in range(shape[axis])]
