"""What the four tensor formats share: everything but their shapes.

A format describes a matrix ``A`` of ``I`` inputs and ``J`` outputs folded into modes
``I_1 … I_p`` and ``J_1 … J_q``, and held as factors. It owns no parameters: every method takes
the factors. A format says how many ranks it has, the shapes of its factors, the index letters on
them, the rank groups, the ranks that are of use, and how a tensor is decomposed. The rest follows:
rebuilding, applying, fetching rows, inner products, initialising and cutting ranks are each written
once, here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from rankfold.contraction import contract, contract_rows, letter_sizes, order_of_rows, rebuilding_is_cheaper
from rankfold.contraction_order import BATCH
from rankfold.formats.blockwise import Pairs, blockwise_tt_svd
from rankfold.formats.decompositions import balanced
from rankfold.pairwise import with_first
from rankfold.shapes import Folding, is_positive_integer

Factors = Sequence[Tensor]

# Index letters: modes of the input, modes of the output, ranks, and the batch.
INPUT = "abcdefgh"
OUTPUT = "ijklmnop"
RANK = "qrstuvwxyzZYXWVUT"
OTHER_RANK = "ACDEFGHIJKLMNOPQR"  # the second set of factors of an inner product
MAX_MODES = len(INPUT)
# Matrices of more entries, 1 GB in float64, are decomposed block by block where the format can.
LARGEST_COPY = 1 << 27


@dataclass(frozen=True)
class RankGroup:
    """One rank index: where it lives, and whose prior variance its λ sets.

    Attributes:
        size: the current rank ``R_n``.
        axes: every ``(factor, axis)`` the rank index lives on; cutting a rank cuts all of them.
        governed: the ``(factor, axis)`` pairs whose entries have prior variance ``λ_k``.
    """

    size: int
    axes: tuple[tuple[int, int], ...]
    governed: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TensorFormat(ABC):
    """A folded matrix ``A`` (I, J) in one of the four formats, at given ranks."""

    inputs: Folding
    outputs: Folding
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        for side, folding in (("input", self.inputs), ("output", self.outputs)):
            if len(folding.dims) > MAX_MODES:
                raise ValueError(f"at most {MAX_MODES} {side} modes are supported, got {folding.dims}")
        for rank in self.ranks:
            if not is_positive_integer(rank):
                raise ValueError(f"max_rank must be a positive integer, got {rank!r}")
        object.__setattr__(self, "ranks", tuple(map(int, self.ranks)))
        if len(self.ranks) != self.num_ranks(self.inputs, self.outputs):
            raise ValueError(
                f"{self.name} with input modes {self.inputs.dims} and output modes {self.outputs.dims} "
                f"has {self.num_ranks(self.inputs, self.outputs)} ranks, got {len(self.ranks)}: {self.ranks}; "
                f"give one number for all, or one for each"
            )

    # What a format must say of itself ---------------------------------------------------------

    name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def num_ranks(inputs: Folding, outputs: Folding) -> int:
        """How many ranks the format has for these modes."""

    @property
    @abstractmethod
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of every factor."""

    @property
    @abstractmethod
    def subscripts(self) -> tuple[str, ...]:
        """Index letters of every factor, as in einsum."""

    @property
    @abstractmethod
    def rank_groups(self) -> tuple[RankGroup, ...]:
        """One group per rank, in the order of ``ranks``."""

    @property
    @abstractmethod
    def useful_ranks(self) -> tuple[int, ...]:
        """The largest rank each group can use; more is allowed but adds nothing."""

    @abstractmethod
    def _decompose(self, tensor: Tensor) -> list[Tensor]:
        """Factors that approximate ``tensor`` (I_1, …, I_p, J_1, …, J_q), in float64 like it."""

    @property
    def train_pairs(self) -> Pairs | None:
        """``(I_n, J_n)`` of the cores of a train; ``None`` for formats that are none."""
        return None

    # Written once for all formats --------------------------------------------------------------

    def __str__(self) -> str:
        """In one line: ``TTM [4, 7, 28] x [16, 32], ranks [20, 20]``."""
        dims = " x ".join(str(list(folding.dims)) for folding in (self.inputs, self.outputs))
        return f"{self.name} {dims}, ranks {list(self.ranks)}"

    @property
    def num_entries(self) -> int:
        """How many numbers the factors hold."""
        return sum(math.prod(shape) for shape in self.factor_shapes)

    @property
    def input_letters(self) -> str:
        """Index letters of the input modes."""
        return INPUT[: len(self.inputs.dims)]

    @property
    def output_letters(self) -> str:
        """Index letters of the output modes."""
        return OUTPUT[: len(self.outputs.dims)]

    @property
    def modes(self) -> str:
        """Index letters of all modes, the inputs' first."""
        return self.input_letters + self.output_letters

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes of all modes, in that order."""
        return self.inputs.dims + self.outputs.dims

    @property
    def letter_sizes(self) -> dict[str, int]:
        """The size of every index letter, of modes and ranks."""
        return letter_sizes(self.subscripts, self.factor_shapes)

    def reconstruct(self, factors: Factors) -> Tensor:
        """The matrix ``A`` (I, J), padding cut away."""
        tensor = contract(self.rebuild_equation, *factors)
        matrix = self.outputs.unfold(tensor)
        return matrix if len(matrix) == self.inputs.size else matrix[: self.inputs.size]

    def apply(self, factors: Factors, x: Tensor, *, transposed: bool = False, bias: Tensor | None = None) -> Tensor:
        """``x A + b``: x (B, I) to (B, J); transposed, ``x Aᵀ + b``: x (B, J) to (B, I).

        Rebuilds ``A`` or contracts ``x`` through the factors, whichever is cheaper.
        """
        source, target = (self.outputs, self.inputs) if transposed else (self.inputs, self.outputs)
        if x.dim() != 2 or x.shape[1] != source.size:
            raise ValueError(f"{self.name} expects a batch of shape (B, {source.size}), got {tuple(x.shape)}")
        letters = (self.output_letters, self.input_letters)
        first, last = letters if transposed else letters[::-1]
        equation = f"{BATCH}{first},{','.join(self.subscripts)}->{BATCH}{last}"
        if rebuilding_is_cheaper(equation, self.factor_shapes, self.rebuild_equation, x.shape[0]):
            x, matrix = (x, self.reconstruct(factors).T) if transposed else self._in_order(factors, x)
            return x @ matrix if bias is None else torch.addmm(bias, x, matrix)
        padded = None if bias is None else target.pad(bias)
        return target.unfold(contract(equation, source.fold(x), *factors, bias=padded))

    def _in_order(self, factors: Factors, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` (B, I) and ``A`` (I, J), their inputs in the order in which ``A`` is formed without copying it."""
        order = order_of_rows(self.input_letters, self.factor_shapes, self.rebuild_equation, x.shape[0])
        if order == self.input_letters:
            return x, self.reconstruct(factors)
        tensor = contract(f"{','.join(self.subscripts)}->{order}{self.output_letters}", *factors)
        axes = [1 + self.input_letters.index(c) for c in order]
        return self.inputs.fold(x).permute(0, *axes).reshape(-1, self.inputs.padded_size), self.outputs.unfold(tensor)

    def rows(self, factors: Factors, index: Tensor) -> Tensor:
        """Rows ``A[index]``: index (N,) to (N, J), without forming ``A``."""
        return self.outputs.unfold(self.rows_of(range(len(factors)), factors, index, self.output_letters))

    def rows_of(self, chosen: Iterable[int], factors: Factors, index: Tensor, axes: str) -> Tensor:
        """What the ``chosen`` factors, by their numbers, give to rows: index (N,) to (N, …) with the ``axes`` left."""
        parts = dict(zip(self.input_letters, self.inputs.unravel(index), strict=True))
        tables, indices, shared, row_terms, shared_terms = [], [], [], [], []
        for factor, term in ((factors[n], self.subscripts[n]) for n in chosen):
            letter = next((c for c in term if c in parts), None)
            if letter is None:
                shared.append(factor)
                shared_terms.append(term)
            else:
                tables.append(with_first(term.index(letter), factor).contiguous())
                indices.append(parts[letter])
                row_terms.append(BATCH + term.replace(letter, ""))
        return contract_rows(f"{','.join(row_terms + shared_terms)}->{BATCH}{axes}", tables, indices, shared)

    def halves(self, factors: Factors) -> tuple[Tensor, Tensor] | None:
        """``A = L R``: L (I, r) of the factors of input modes, R (r, J) of all others.

        ``None`` if a factor has modes of both sides, as in TTM.
        """
        left = [n for n, term in enumerate(self.subscripts) if not set(term).isdisjoint(self.input_letters)]
        if any(not set(self.subscripts[n]).isdisjoint(self.output_letters) for n in left):
            return None
        right = [n for n in range(len(factors)) if n not in left]
        terms = [[self.subscripts[n] for n in side] for side in (left, right)]
        between = "".join(sorted(set("".join(terms[0])) & set("".join(terms[1]))))
        l_half = contract(f"{','.join(terms[0])}->{self.input_letters}{between}", *[factors[n] for n in left])
        r_half = contract(f"{','.join(terms[1])}->{between}{self.output_letters}", *[factors[n] for n in right])
        return l_half.reshape(self.inputs.padded_size, -1)[: self.inputs.size], self.outputs.unfold(r_half)

    def inner(self, factors: Factors, others: Factors) -> Tensor:
        """``⟨A, A'⟩`` of two sets of factors, at any ranks, through Gram matrices alone."""
        rename = str.maketrans(RANK, OTHER_RANK)
        primed = [term.translate(rename) for term in self.subscripts]
        return contract(f"{','.join((*self.subscripts, *primed))}->", *factors, *others)

    def norm(self, factors: Factors) -> Tensor:
        """Frobenius norm of ``A``, padding included, in float64."""
        exact = [factor.detach().double() for factor in factors]
        return self.inner(exact, exact).clamp(min=0.0).sqrt()

    def random_factors(
        self, weight_std: float, generator: torch.Generator | None = None, *, equal_rows: bool = False
    ) -> list[Tensor]:
        """Gaussian factors, scaled so that the weights' root mean square is ``weight_std`` exactly.

        Args:
            equal_rows: make all rows of ``A`` equal: along an input mode every factor is its first slice, repeated.
        """
        exact: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}
        factors = [torch.randn(shape, generator=generator, **exact) for shape in self.factor_shapes]
        if equal_rows:
            factors = [
                self._repeat_first(factor, letters) for factor, letters in zip(factors, self.subscripts, strict=True)
            ]
        target = weight_std * math.sqrt(self.inputs.padded_size * self.outputs.padded_size)
        scale = (target / self.norm(factors)) ** (1.0 / len(factors))
        return [factor * scale for factor in factors]

    def _repeat_first(self, factor: Tensor, letters: str) -> Tensor:
        """The factor with its first slice at every index of its input mode, if it has one."""
        for axis, letter in enumerate(letters):
            if letter in self.input_letters:
                factor = factor.narrow(axis, 0, 1).expand_as(factor).contiguous()
        return factor

    def decompose(self, matrix: Tensor) -> list[Tensor]:
        """Factors of these ranks that approximate ``matrix`` (I, J), all of the same magnitude."""
        expected = (self.inputs.size, self.outputs.size)
        if tuple(matrix.shape) != expected:
            raise ValueError(f"the matrix to decompose must have shape {expected}, got {tuple(matrix.shape)}")
        if matrix.is_meta or not all(bool(extreme.isfinite()) for extreme in matrix.aminmax()):  # without a copy
            held = "has no values, on the meta device" if matrix.is_meta else "holds NaN or infinity"
            raise ValueError(f"the weight to start from {held}; load a good one, or start from random factors")
        if matrix.numel() > LARGEST_COPY and self.train_pairs is not None:
            cores = blockwise_tt_svd(matrix.detach(), self.inputs, self.train_pairs, self.ranks)
            factors = [core.reshape(shape) for core, shape in zip(cores, self.factor_shapes, strict=True)]
        else:
            below, right = self.inputs.padded_size - expected[0], self.outputs.padded_size - expected[1]
            padded = F.pad(matrix.detach().double(), (0, right, 0, below))
            factors = self._decompose(padded.reshape(self.dims))
        return [factor.to(matrix.dtype) for factor in balanced(factors)]

    def with_ranks(self, ranks: Sequence[int]) -> Self:
        """The same format at other ranks."""
        return replace(self, ranks=tuple(ranks))

    def cut(self, factor: int, tensor: Tensor, keep: Sequence[Tensor]) -> Tensor:
        """Cut a tensor shaped like one factor down to the ranks ``keep`` (one index tensor per group)."""
        for group, index in zip(self.rank_groups, keep, strict=True):
            for owner, axis in group.axes:
                if owner == factor:
                    tensor = tensor.index_select(axis, index.to(tensor.device))
        return tensor

    def restrict(self, tensors: Factors, keep: Sequence[Tensor]) -> list[Tensor]:
        """Cut all factor-shaped ``tensors`` down to the ranks ``keep``."""
        return [self.cut(n, tensor, keep) for n, tensor in enumerate(tensors)]

    def ranks_of(self, factors: Factors) -> tuple[int, ...]:
        """The ranks that factors of this format have, read off their shapes."""
        return tuple(factors[g.axes[0][0]].shape[g.axes[0][1]] for g in self.rank_groups)

    @property
    def rebuild_equation(self) -> str:
        """The contraction of all factors to the folded ``A``."""
        return f"{','.join(self.subscripts)}->{self.modes}"
