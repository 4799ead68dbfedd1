"""KL and second moments of many Gaussian arrays in one launch, by slices that share a prior variance.

The plain twins are :func:`rankfold.gaussian.kl_divergence` and :func:`rankfold.moments.sums_over_governed`; here the
same sums over a whole model take one Triton kernel each, where they would take several kernels for every array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankfold.flat import end_to_end, taken_apart
from rankfold.kernels import launch

Shape = tuple[int, ...]
# The size of a rank group, and the (array, axis) pairs whose slices belong to its ranks.
Group = tuple[int, tuple[tuple[int, int], ...]]

# A program of the KL takes a slice of at most about so many entries; larger ones are cut into several.
_MOST_ENTRIES = 4096


class Slice(NamedTuple):
    """Entries of the array with this number, whose gradient begins at ``place`` in that of all arrays.

    They are ``outer`` runs of ``inner`` neighbours, ``step`` apart, and share the prior variance with this number.
    """

    array: int
    place: int
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

    table = _kl_table(_shapes(means), _shapes(variances), means[0].device)
    addresses, variance = _addresses(means, log_stds), end_to_end(variances)
    size, (beta, num_data) = sum(mean.numel() for mean in means), weight or (variance, 1)
    nats, gradient = log_stds[0].new_empty(len(table)), log_stds[0].new_empty(2 * size)
    with torch.cuda.device_of(table):
        slice_kl[(len(table),)](
            addresses,
            variance,
            table,
            beta,
            nats,
            gradient,
            len(means),
            size,
            1.0 / num_data,
            WEIGHTED=weight is not None,
            **_options(means),
        )
    return nats.sum(), _as_parameters(gradient, means, log_stds)


def second_moments(means: Sequence[Tensor], log_stds: Sequence[Tensor], groups: tuple[Group, ...]) -> Tensor:
    """``M_k = Σ μ² + σ²`` of every rank of all groups, end to end (ΣR,)."""
    from rankfold.kernels.slices_triton import slice_moments

    table, bounds = _moment_table(_shapes(means), groups, means[0].device)
    addresses, moments = _addresses(means, log_stds), log_stds[0].new_empty(len(bounds) - 1)
    with torch.cuda.device_of(table):
        slice_moments[(len(moments),)](addresses, table, bounds, moments, len(means), **_options(means))
    return moments


def _shapes(tensors: Sequence[Tensor]) -> tuple[Shape, ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors)


def _options(means: Sequence[Tensor]) -> dict[str, Any]:
    import triton.language as tl

    kind = tl.float32 if means[0].dtype == torch.float32 else tl.bfloat16
    # fusing is said aloud, as its default is about to change
    return {"MEAN": kind, "BLOCK": 1024, "enable_fp_fusion": True}


def _addresses(means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> Tensor:
    """Where all means, then all log-stds, lie in memory (2N,)."""
    return _address_table(tuple(tensor.data_ptr() for tensor in (*means, *log_stds)), means[0].device)


def _as_parameters(row: Tensor, means: Sequence[Tensor], log_stds: Sequence[Tensor]) -> list[Tensor]:
    """A row of all means, then all log-stds, in their shapes and dtypes."""
    if means[0].dtype == row.dtype:
        return taken_apart(row, [*means, *log_stds])
    by_mean, by_log_std = row.chunk(2)
    return taken_apart(by_mean.to(means[0].dtype), means) + taken_apart(by_log_std, log_stds)


# Tables -----------------------------------------------------------------------------------------------
# They are kept for good: a captured graph goes on reading them, and they are small.


@cache
def _kl_table(shapes: tuple[Shape, ...], prior_shapes: tuple[Shape, ...], device: torch.device) -> Tensor:
    """The slices of arrays whose prior variances have these shapes, (·, 7)."""
    rows, first = [], 0
    for array, prior in enumerate(prior_shapes):
        axis = next((n for n, size in enumerate(prior) if size > 1), None)
        rows += [part for piece in _slices(shapes, array, axis, first) for part in piece.cut()]
        first += math.prod(prior)
    return torch.tensor(rows, dtype=torch.int32, device=device)


@cache
def _moment_table(shapes: tuple[Shape, ...], groups: tuple[Group, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The slices of every group's ranks, those of one rank after the other, and where each rank's begin."""
    by_rank: list[list[Slice]] = []
    for size, axes in groups:
        pieces = [_slices(shapes, array, axis, 0) for array, axis in axes]
        by_rank += [[piece[k] for piece in pieces] for k in range(size)]
    rows = [row for rank in by_rank for row in rank]
    bounds = [0, *accumulate(len(rank) for rank in by_rank)]
    return (
        torch.tensor(rows, dtype=torch.int32, device=device),
        torch.tensor(bounds, dtype=torch.int32, device=device),
    )


@cache  # for good: a captured graph may read it at any time
def _address_table(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(addresses, dtype=torch.int64, device=device)


def _slices(shapes: Sequence[Shape], array: int, axis: int | None, variance: int) -> list[Slice]:
    """An array cut along an axis, its variances numbered from ``variance`` on; without an axis in one piece."""
    shape, place = shapes[array], sum(math.prod(before) for before in shapes[:array])
    if axis is None:
        return [Slice(array, place, 0, 1, 0, math.prod(shape), variance)]
    inner = math.prod(shape[axis + 1 :])
    outer, step = math.prod(shape[:axis]), shape[axis] * inner
    return [Slice(array, place, k * inner, outer, step, inner, variance + k) for k in range(shape[axis])]
