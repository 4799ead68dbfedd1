"""CP: a sum of R rank-1 tensors, ``a_{i_1…i_d} = Σ_r u¹_{i_1 r} ⋯ u^d_{i_d r}``."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfold.formats.base import RANK, RankGroup, TensorFormat
from rankfold.formats.decompositions import cp_als
from rankfold.shapes import Folding


@final
@dataclass(frozen=True)
class CP(TensorFormat):
    """Factor matrices ``U^(n)`` (I_n, R), inputs' modes first; one rank for all of them."""

    name: ClassVar[str] = "CP"

    @staticmethod
    def num_ranks(inputs: Folding, outputs: Folding) -> int:
        return 1

    @property
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple((n, self.ranks[0]) for n in self.dims)

    @property
    def subscripts(self) -> tuple[str, ...]:
        return tuple(mode + RANK[0] for mode in self.modes)

    @property
    def rank_groups(self) -> tuple[RankGroup, ...]:
        axes = tuple((n, 1) for n in range(len(self.dims)))
        return (RankGroup(self.ranks[0], axes, governed=axes),)

    @property
    def useful_ranks(self) -> tuple[int, ...]:
        size = self.inputs.padded_size * self.outputs.padded_size
        return (size // max(self.dims),)

    def _decompose(self, tensor: Tensor) -> list[Tensor]:
        return cp_als(tensor, self.ranks[0])
