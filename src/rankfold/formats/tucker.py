"""Tucker: a small core times one matrix per mode, ``A = G ×_1 U¹ ×_2 ⋯ ×_d U^d``."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfold.formats.base import RANK, RankGroup, TensorFormat
from rankfold.formats.decompositions import hooi
from rankfold.shapes import Folding


@final
@dataclass(frozen=True)
class Tucker(TensorFormat):
    """Factor matrices ``U^(n)`` (I_n, R_n), then the core ``G`` (R_1, …, R_d).

    Rank n lives on a column of ``U^(n)`` and a slice of the core; its λ governs the column. The core
    itself is governed by no λ and has the weak normal prior.
    """

    name: ClassVar[str] = "Tucker"

    @staticmethod
    def num_ranks(inputs: Folding, outputs: Folding) -> int:
        return len(inputs.dims) + len(outputs.dims)

    @property
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (*zip(self.dims, self.ranks, strict=True), self.ranks)

    @property
    def subscripts(self) -> tuple[str, ...]:
        ranks = RANK[: len(self.modes)]
        return (*(mode + rank for mode, rank in zip(self.modes, ranks, strict=True)), ranks)

    @property
    def rank_groups(self) -> tuple[RankGroup, ...]:
        core = len(self.dims)
        return tuple(RankGroup(size, axes=((n, 1), (core, n)), governed=((n, 1),)) for n, size in enumerate(self.ranks))

    @property
    def useful_ranks(self) -> tuple[int, ...]:
        size = math.prod(self.dims)
        return tuple(min(n, size // n) for n in self.dims)

    def _decompose(self, tensor: Tensor) -> list[Tensor]:
        return hooi(tensor, self.ranks)
