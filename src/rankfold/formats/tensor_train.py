"""Tensor train: a product of slices, ``a_{i_1…i_d} = G¹(:,i_1,:) G²(:,i_2,:) ⋯ G^d(:,i_d,:)``."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfold.formats.base import RANK, RankGroup, TensorFormat
from rankfold.formats.blockwise import Pairs
from rankfold.formats.decompositions import tt_svd
from rankfold.shapes import Folding


@final
@dataclass(frozen=True)
class TensorTrain(TensorFormat):
    """Cores ``G^(n)`` (R_{n-1}, I_n, R_n), inputs' modes first, with R_0 = R_d = 1."""

    name: ClassVar[str] = "TT"

    @staticmethod
    def num_ranks(inputs: Folding, outputs: Folding) -> int:
        return len(inputs.dims) + len(outputs.dims) - 1

    @property
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        bonds = (1, *self.ranks, 1)
        return tuple(zip(bonds[:-1], self.dims, bonds[1:], strict=True))

    @property
    def subscripts(self) -> tuple[str, ...]:
        return tuple(RANK[n] + mode + RANK[n + 1] for n, mode in enumerate(self.modes))

    @property
    def rank_groups(self) -> tuple[RankGroup, ...]:
        return train_rank_groups(self.ranks, right_axis=2)

    @property
    def useful_ranks(self) -> tuple[int, ...]:
        return train_useful_ranks(self.dims)

    @property
    def train_pairs(self) -> Pairs | None:
        return (*((size, 1) for size in self.inputs.dims), *((1, size) for size in self.outputs.dims))

    def _decompose(self, tensor: Tensor) -> list[Tensor]:
        return tt_svd(tensor, self.ranks)


def train_rank_groups(ranks: tuple[int, ...], right_axis: int) -> tuple[RankGroup, ...]:
    """Rank n lives right of core n and left of core n+1.

    Its λ governs the right slices of core n; the last λ also governs the left slices of the last
    core, so that every entry has exactly one prior variance.
    """
    groups = []
    for n, size in enumerate(ranks):
        axes = ((n, right_axis), (n + 1, 0))
        groups.append(RankGroup(size, axes, governed=axes if n == len(ranks) - 1 else axes[:1]))
    return tuple(groups)


def train_useful_ranks(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Bond n separates the modes in two sets; its rank is at most the size of the smaller one."""
    return tuple(min(math.prod(dims[:n]), math.prod(dims[n:])) for n in range(1, len(dims)))
