"""Where the slices of many arrays lie, as tables on a device that kernels read.

Tables are kept for good: a captured graph goes on reading them, and they are small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, ...]
# The size of a rank group, and the (array, axis) pairs whose slices belong to its ranks.
Group = tuple[int, tuple[tuple[int, int], ...]]

# A program takes a slice of at most about so many entries; larger ones are cut into several.
_MOST_ENTRIES = 4096
# Arrays that share a row begin at a multiple of so many entries: kernels and products are faster where they do.
_ALIGNED_ENTRIES = 8


class Slice(NamedTuple):
    """Entries of the array with this number, whose first entry is at ``place`` in a row of all arrays.

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


class Samples(NamedTuple):
    """How arrays are sampled: their parts (·, 5), where their samples begin in a row that has gaps, and its length."""

    table: Tensor
    starts: tuple[int, ...]
    length: int
    forms: dict[Any, Any]


class Penalties(NamedTuple):
    """Slices (·, 7) of arrays, each with its prior variance."""

    table: Tensor
    forms: dict[Any, Any]


class Ranks(NamedTuple):
    """Slices (·, 7) that ranks govern, those of one rank after the other, and the ranks (·, 4).

    A rank has its first slice and that after its last one, and the number and place of its λ.
    """

    table: Tensor
    ranks: Tensor
    forms: dict[Any, Any]


@cache
def samples_of(shapes: tuple[Shape, ...], dtype: torch.dtype, device: torch.device) -> Samples:
    """The parts of arrays of these shapes: array, place, start, length, and where the array's samples begin."""
    room = [-(-math.prod(shape) // _ALIGNED_ENTRIES) * _ALIGNED_ENTRIES for shape in shapes]
    *starts, length = accumulate(room, initial=0)
    parts = [part for array in range(len(shapes)) for piece in slices(shapes, array, None, 0) for part in piece.cut()]
    rows = [(part.array, part.place, part.start, part.inner, starts[part.array]) for part in parts]
    return Samples(_on(device, rows), tuple(starts), length, {})


@cache
def penalties_of(
    shapes: tuple[Shape, ...], prior_shapes: tuple[Shape, ...], dtype: torch.dtype, device: torch.device
) -> Penalties:
    """The slices of arrays whose prior variances have these shapes."""
    rows, first = [], 0
    for array, prior in enumerate(prior_shapes):
        axis = next((n for n, size in enumerate(prior) if size > 1), None)
        rows += [part for piece in slices(shapes, array, axis, first) for part in piece.cut()]
        first += math.prod(prior)
    return Penalties(_on(device, rows), {})


@cache
def ranks_of(
    shapes: tuple[Shape, ...], groups: tuple[tuple[Group, ...], ...], dtype: torch.dtype, device: torch.device
) -> Ranks:
    """The slices of every rank of the groups of several tensors; the λ of a tensor lie in one vector."""
    rows: list[Slice] = []
    ranks: list[tuple[int, int, int, int]] = []
    for tensor, of_tensor in enumerate(groups):
        place = 0
        for size, axes in of_tensor:
            pieces = [slices(shapes, array, axis, 0) for array, axis in axes]
            for k in range(size):
                ranks.append((len(rows), len(rows) + len(pieces), tensor, place))
                rows += [piece[k] for piece in pieces]
                place += 1
    return Ranks(_on(device, rows), _on(device, ranks), {})


@cache
def addresses_of(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """Where arrays lie in memory."""
    return torch.tensor(addresses, dtype=torch.int64, device=device)


@cache
def number_on(device: torch.device, number: float) -> Tensor:
    """A number as a vector of one entry, in float32."""
    return torch.full((1,), number, dtype=torch.float32, device=device)


def slices(shapes: Sequence[Shape], array: int, axis: int | None, variance: int) -> list[Slice]:
    """An array cut along an axis, its variances numbered from ``variance`` on; without an axis in one piece."""
    shape, place = shapes[array], sum(math.prod(before) for before in shapes[:array])
    if axis is None:
        return [Slice(array, place, 0, 1, 0, math.prod(shape), variance)]
    inner = math.prod(shape[axis + 1 :])
    outer, step = math.prod(shape[:axis]), shape[axis] * inner
    return [Slice(array, place, k * inner, outer, step, inner, variance + k) for k in range(shape[axis])]


def _on(device: torch.device, rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32, device=device)
