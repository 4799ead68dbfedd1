"""Tensor-train matrix: ``a_{i_1…i_d j_1…j_d} = G¹(:,i_1,j_1,:) ⋯ G^d(:,i_d,j_d,:)``."""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfold.formats.base import INPUT, OUTPUT, RANK, RankGroup, TensorFormat
from rankfold.formats.blockwise import Pairs
from rankfold.formats.decompositions import tt_svd
from rankfold.formats.tensor_train import train_rank_groups, train_useful_ranks
from rankfold.shapes import Folding


@final
@dataclass(frozen=True)
class TensorTrainMatrix(TensorFormat):
    """Cores ``G^(n)`` (R_{n-1}, I_n, J_n, R_n) with R_0 = R_d = 1: one input and one output mode each."""

    name: ClassVar[str] = "TTM"

    def __post_init__(self) -> None:
        if len(self.inputs.dims) != len(self.outputs.dims):
            raise ValueError(
                f"TTM pairs every input mode with an output mode, got {len(self.inputs.dims)} input modes "
                f"{self.inputs.dims} and {len(self.outputs.dims)} output modes {self.outputs.dims}; "
                f"give as many of one as of the other (a mode may be 1)"
            )
        if len(self.inputs.dims) < 2:
            raise ValueError(
                f"TTM needs at least 2 modes on each side, got {self.inputs.dims} and {self.outputs.dims}; "
                f"one core alone is the dense matrix"
            )
        super().__post_init__()

    @staticmethod
    def num_ranks(inputs: Folding, outputs: Folding) -> int:
        return len(inputs.dims) - 1

    @property
    def _pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.inputs.dims, self.outputs.dims, strict=True))

    @property
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        bonds = (1, *self.ranks, 1)
        return tuple(
            (left, i, j, right) for left, (i, j), right in zip(bonds[:-1], self._pairs, bonds[1:], strict=True)
        )

    @property
    def subscripts(self) -> tuple[str, ...]:
        return tuple(RANK[n] + INPUT[n] + OUTPUT[n] + RANK[n + 1] for n in range(len(self._pairs)))

    @property
    def rank_groups(self) -> tuple[RankGroup, ...]:
        return train_rank_groups(self.ranks, right_axis=3)

    @property
    def useful_ranks(self) -> tuple[int, ...]:
        return train_useful_ranks(tuple(i * j for i, j in self._pairs))

    @property
    def train_pairs(self) -> Pairs | None:
        return self._pairs

    def _decompose(self, tensor: Tensor) -> list[Tensor]:
        # (I_1, …, I_d, J_1, …, J_d) -> (I_1 J_1, …, I_d J_d), a tensor train, then split the pairs again.
        d = len(self._pairs)
        interleaved = tensor.permute([axis for n in range(d) for axis in (n, d + n)])
        cores = tt_svd(interleaved.reshape([i * j for i, j in self._pairs]), self.ranks)
        return [core.reshape(shape) for core, shape in zip(cores, self.factor_shapes, strict=True)]
