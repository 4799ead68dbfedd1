"""One pairwise contraction as a matrix product, or a product of entries, decided once from its letters.

``torch.einsum`` does the same, and decides it anew in every call. For small tensors that takes longer than the
product, and it leaves twice as many nodes for backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

# The size of a letter that is not known before.
UNKNOWN = -1
# With fewer rows or columns a matrix product is too small to start one for every value of an index.
_LEAST_SIDE = 8


class Arranged(NamedTuple):
    """An operand's axes in another order and shape.

    Attributes:
        before: its shape without axes of size 1; with a permutation only. Gradients then get the operand's strides.
        permutation: of those axes; ``None`` if they are in order, and reshaping alone can move the others.
        shape: at last.
        times: how often it is then repeated along its first axis, without a copy; 0 if it is taken as it is.
    """

    before: tuple[int, ...]
    permutation: tuple[int, ...] | None
    shape: tuple[int, ...]
    times: int = 0

    def of(self, x: Tensor) -> Tensor:
        if self.permutation is not None:
            x = (x if self._fits(x) else x.reshape(self.before)).permute(self.permutation)
        x = x if x.shape == self.shape else x.reshape(self.shape)
        return x.expand(self.times, -1, -1) if self.times else x

    def _fits(self, x: Tensor) -> bool:
        return x.dim() == len(self.before) and all(n in (m, UNKNOWN) for m, n in zip(x.shape, self.before, strict=True))


def arranged(term: str, order: str, size: Mapping[str, int], shape: tuple[int, ...]) -> Arranged:
    """The axes ``term`` of an operand in this ``order`` of the same letters, and then in this ``shape``."""
    found, wanted = ([c for c in letters if size[c] != 1] for letters in (term, order))
    permutation = None if found == wanted else tuple(found.index(c) for c in wanted)
    return Arranged(tuple(size[c] for c in found), permutation, shape)


def with_first(axis: int, x: Tensor) -> Tensor:
    """An operand with this axis before all others; past axes of size 1 by reshaping, as in :class:`Arranged`."""
    if math.prod(x.shape[:axis]) == 1:
        return x.reshape(x.shape[axis], *x.shape[:axis], *x.shape[axis + 1 :])
    return x.movedim(axis, 0)


class Pairwise(NamedTuple):
    """``first`` and ``second`` arranged, multiplied, and the result arranged.

    Attributes:
        swapped: whether the second operand is the left one of a matrix product.
        product: how they are multiplied: ``mm``, ``bmm`` or, where nothing is summed, ``mul``.
        result: of a matrix product; entries that are multiplied lie as they should.
    """

    first: Arranged
    second: Arranged
    product: str
    swapped: bool = False
    result: Arranged | None = None

    def of(self, first: Tensor, second: Tensor) -> Tensor:
        left, right = self._operands(first, second)
        if self.result is None:
            return left * right
        return self.result.of((torch.mm if self.product == "mm" else torch.bmm)(left, right))

    def plus(self, bias: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """The product and a bias for every row of it, in one operation, where it :meth:`can_add`."""
        assert self.result is not None
        left, right = self._operands(first, second)
        return self.result.of(torch.addmm(bias, left, right))

    def can_add(self) -> bool:
        """Whether a row of the matrix product is one of the result."""
        if self.product != "mm" or self.result is None or self.result.permutation is not None:
            return False
        columns = (self.first if self.swapped else self.second).shape[-1]
        return columns == math.prod(self.result.shape[1:])

    def _operands(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.first.of(first), self.second.of(second)
        return (right, left) if self.swapped else (left, right)


def pairwise(equation: str, size: Mapping[str, int]) -> Pairwise | None:
    """How to contract two operands by an equation ``ab,bc->ac``; ``None`` if it is more than a product.

    ``size`` of a letter is ``UNKNOWN`` where it is not known before: at most one letter may have it.

    >>> step = pairwise("abc,cd->dab", {"a": 2, "b": 3, "c": 4, "d": 5})
    >>> step.of(torch.ones(2, 3, 4), torch.ones(4, 5)).shape
    torch.Size([5, 2, 3])
    """
    operands, target = equation.split("->")
    a, b = operands.split(",")
    alone = (set(a) ^ set(b)) - set(target)  # letters that only one operand has; of size 1, they can be dropped
    if any(size[c] != 1 for c in alone) or any(len(set(term)) < len(term) for term in (a, b)):
        return None
    if not set(a) & set(b) - set(target):
        return Pairwise(_spread(a, target, size), _spread(b, target, size), "mul")
    return _matrix_product(a, b, target, size)


class Groups(NamedTuple):
    """The letters of a matrix product of two operands, by what becomes of them.

    Attributes:
        together: those that stay and that there is a product for each value of: of both operands, or of one,
            ``repeated`` for the other.
        rows, columns: those of the first and of the second operand alone.
        summed, other: those that go, in the order of the first operand and as the second has them.
        swapped: whether the letters of the second operand come first in the result.
        repeated: which operand, if one, is the same in all products.
    """

    together: str
    rows: str
    columns: str
    summed: str
    other: str
    swapped: bool
    repeated: Literal["first", "second"] | None = None

    @classmethod
    def of(cls, a: str, b: str, target: str, size: Mapping[str, int]) -> Groups:
        together = "".join(c for c in target if c in a and c in b)
        rows, columns = ("".join(c for c in target if c in term and c not in together) for term in (a, b))
        # letters are summed in the order of the first operand; those it does not share are of size 1
        summed = "".join(c for c in a if c not in target)
        other = "".join(c for c in summed if c in b) + "".join(c for c in b if c not in target + summed)
        if not together and (ahead := _repeating(rows, columns, target, size)):
            return cls(ahead, rows, columns.removeprefix(ahead), summed, other, False, "first")
        if not together and (ahead := _repeating(columns, rows, target, size)):
            return cls(ahead, rows.removeprefix(ahead), columns, summed, other, True, "second")
        swapped = bool(rows and columns) and target.index(columns[0]) < target.index(rows[0])
        return cls(together, rows, columns, summed, other, swapped)

    @property
    def first(self) -> tuple[str, str, str]:
        together = "" if self.repeated == "first" else self.together
        return (together, self.summed, self.rows) if self.swapped else (together, self.rows, self.summed)

    @property
    def second(self) -> tuple[str, str, str]:
        together = "" if self.repeated == "second" else self.together
        return (together, self.columns, self.other) if self.swapped else (together, self.other, self.columns)

    @property
    def result(self) -> str:
        """The letters as they lie in the result."""
        return self.together + (self.columns + self.rows if self.swapped else self.rows + self.columns)


def _repeating(between: str, around: str, target: str, size: Mapping[str, int]) -> str:
    """The letters of ``around`` that stand before ``between`` in the target, if the rest of them stand behind.

    With a product for each of their values the result need not be copied. It is not worth it if one is tiny.
    """
    ahead, _, behind = target.partition(between) if between else ("", "", "")
    if not ahead or not behind or ahead + behind != around or _entries(ahead, size) == UNKNOWN:
        return ""
    return ahead if min(_entries(side, size) for side in (between, behind)) >= _LEAST_SIDE else ""


def _matrix_product(a: str, b: str, target: str, size: Mapping[str, int]) -> Pairwise:
    groups = Groups.of(a, b, target, size)
    return Pairwise(
        _grouped(a, groups.first, groups.together, size),
        _grouped(b, groups.second, groups.together, size),
        "bmm" if groups.together else "mm",
        groups.swapped,
        arranged(groups.result, target, size, tuple(size[c] for c in target)),
    )


def _grouped(term: str, groups: Sequence[str], together: str, size: Mapping[str, int]) -> Arranged:
    """A matrix, or one for every value of ``together``, the first group: the axes of a group become one."""
    shape = tuple(_entries(group, size) for group in (groups if together else groups[1:]))
    matrices = arranged(term, "".join(groups), size, shape)
    return matrices if groups[0] == together else matrices._replace(times=_entries(together, size))


def _spread(term: str, target: str, size: Mapping[str, int]) -> Arranged:
    """The axes of the result, of size 1 where the operand has none."""
    order = "".join(c for c in target if c in term)
    dropped = "".join(c for c in term if c not in target)
    return arranged(term, order + dropped, size, tuple(size[c] if c in term else 1 for c in target))


def _entries(letters: str, size: Mapping[str, int]) -> int:
    return UNKNOWN if any(size[c] == UNKNOWN for c in letters) else math.prod(size[c] for c in letters)
