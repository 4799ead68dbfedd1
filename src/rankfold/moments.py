"""What ranks govern, sums such as the second moments ``M_k = Σ μ² + σ²`` over it, and λ from those in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor

from rankfold.flat import end_to_end
from rankfold.formats import Factors, RankGroup, TensorFormat
from rankfold.kernels import launch, slice_tables, slices
from rankfold.posterior import FactorPosterior, GaussianPosterior, arrays_in
from rankfold.priors import HalfCauchy, LogUniform, ShrinkagePrior


def updated_by_kernel(
    pairs: Sequence[tuple[FactorPosterior, TensorFormat]],
    variances: Sequence[Tensor],
    prior: ShrinkagePrior,
    step_size: float,
) -> bool:
    """Half step 2 of several tensors on one device in one kernel, where that can be; whether it was.

    ``variances`` are the vectors of all λ of each, to be updated in place.
    """
    posteriors = [posterior for posterior, _ in pairs if isinstance(posterior, GaussianPosterior)]
    means = [mean for posterior in posteriors for mean in arrays_in(posterior.mean)]
    log_stds = [log_std for posterior in posteriors for log_std in arrays_in(posterior.log_std)]
    if len(posteriors) < len(pairs) or not isinstance(prior, LogUniform | HalfCauchy):
        return False
    if not slices.usable(means, log_stds) or not all(v.dtype == torch.float32 and v.is_contiguous() for v in variances):
        return False
    squared_eta = prior.squared_eta if isinstance(prior, HalfCauchy) else None
    groups = _groups(tuple(format for _, format in pairs))
    found = launch.tried(slices.update_variances, means, log_stds, variances, groups, squared_eta, step_size)
    return found is not None


def sums_over_governed(arrays: Factors, groups: Sequence[RankGroup]) -> Tensor:
    """The sums of factor-shaped arrays over the entries that each rank governs, (ΣR,)."""
    return end_to_end([sum_of_slices([(arrays[factor], axis) for factor, axis in group.governed]) for group in groups])


@cache
def governors(format: TensorFormat) -> list[tuple[int | None, list[int]]]:
    """For every factor the group whose λ governs it, if there is one, and the shape in which λ broadcasts to it."""
    shapes = format.factor_shapes
    found: list[tuple[int | None, list[int]]] = [(None, [])] * len(shapes)
    for n, group in enumerate(format.rank_groups):
        for factor, axis in group.governed:
            found[factor] = n, [group.size if k == axis else 1 for k in range(len(shapes[factor]))]
    return found


def sum_of_slices(parts: Sequence[tuple[Tensor, int]]) -> Tensor:
    """Sum tensors over all axes but one each, and the results over the parts."""
    sums = [tensor.movedim(axis, 0).flatten(1).sum(1) for tensor, axis in parts]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


@cache
def _groups(formats: tuple[TensorFormat, ...]) -> tuple[tuple[slice_tables.Group, ...], ...]:
    """Sizes of all rank groups of every tensor, and what they govern, with the factors of all tensors counted on."""
    firsts = accumulate((len(format.factor_shapes) for format in formats), initial=0)
    return tuple(
        tuple((g.size, tuple((first + factor, axis) for factor, axis in g.governed)) for g in format.rank_groups)
        for first, format in zip(firsts, formats, strict=False)
    )
