"""Second moments ``M_k = Σ μ² + σ²`` over the entries that each rank governs: all that λ depends on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from rankfold.flat import end_to_end
from rankfold.formats import Factors, RankGroup, TensorFormat
from rankfold.kernels import launch, slices
from rankfold.posterior import FactorPosterior, GaussianPosterior, arrays_in


def rank_moments(pairs: Sequence[tuple[FactorPosterior, TensorFormat]]) -> Tensor:
    """``M`` of all ranks of several tensors on one device, one after the other: in one kernel where that can be."""
    posteriors = [posterior for posterior, _ in pairs if isinstance(posterior, GaussianPosterior)]
    means = [mean for posterior in posteriors for mean in arrays_in(posterior.mean)]
    log_stds = [log_std for posterior in posteriors for log_std in arrays_in(posterior.log_std)]
    if len(posteriors) == len(pairs) and slices.usable(means, log_stds):
        try:
            return slices.second_moments(means, log_stds, _in_one_row(tuple(format for _, format in pairs)))
        except Exception as error:  # whatever stops a compiler or a launch must not stop the user
            launch.give_up(error)
    return end_to_end(
        [sums_over_governed(posterior.second_moments(), format.rank_groups) for posterior, format in pairs]
    )


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
def _in_one_row(formats: tuple[TensorFormat, ...]) -> tuple[slices.Group, ...]:
    """Sizes of all rank groups, and what they govern, with the factors of all tensors counted on."""
    found: list[slices.Group] = []
    first = 0
    for format in formats:
        found += [(g.size, tuple((first + factor, axis) for factor, axis in g.governed)) for g in format.rank_groups]
        first += len(format.factor_shapes)
    return tuple(found)
