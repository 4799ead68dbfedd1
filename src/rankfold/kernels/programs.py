"""Layouts spelt out for kernels: how tables are formed, and where they find their entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from rankfold.compiled import constant
from rankfold.contraction import contract
from rankfold.formats import BY_NAME, CP, TensorFormat
from rankfold.kernels.layouts import Layout, Table, cheapest, shape_of
from rankfold.kernels.tiles import Sizes
from rankfold.shapes import Folding


class Recipe(NamedTuple):
    """How to form a table: contract factors by an equation, or permute the axes of one, and reshape.

    Kernels take a single factor as it is: its entries have the ``strides`` of the table.
    """

    factors: tuple[int, ...]
    equation: str
    permutation: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def form(self, factors: Sequence[Tensor]) -> Tensor:
        """The table itself; a view if it is a single factor."""
        if len(self.factors) > 1:
            return self.source(factors)
        view = factors[self.factors[0]].permute(self.permutation)
        return view if view.dim() == len(self.shape) else view.reshape(self.shape)

    def source(self, factors: Sequence[Tensor]) -> Tensor:
        """The tensor with the entries of the table: a single factor, or the table."""
        if len(self.factors) == 1:
            return factors[self.factors[0]]
        return contract(self.equation, *(factors[n] for n in self.factors)).reshape(self.shape)


class Program(NamedTuple):
    """A layout ready to run: recipes of its tables and of ``W``, and the tables' numbers one after the other.

    Attributes:
        places: stride and size of every place.
        sizes, strides: those of a chain, and of its tables in their sources. CP has neither: its factors are tables.
    """

    tables: tuple[Recipe, ...]
    weight: Recipe | None
    places: tuple[int, ...]
    sizes: Sizes | None
    strides: tuple[int, ...]


@constant
def best_program(
    name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], ranks: tuple[int, ...], batch: int
) -> Program | None:
    """The program of the cheapest layout for ``batch`` rows, or ``None`` if there is none of acceptable size."""
    format = BY_NAME[name](Folding(math.prod(inputs), inputs), Folding(math.prod(outputs), outputs), ranks)
    best = cheapest(format, batch)
    return None if best is None else program(best, format)


def program(layout: Layout, format: TensorFormat) -> Program:
    """Spell a layout out for factors of a format."""
    tables = tuple(_recipe(table, format) for table in layout.tables)
    return Program(
        tables,
        None if layout.weight is None else _recipe(layout.weight, format),
        tuple(number for place in layout.places for number in place),
        None if isinstance(format, CP) else Sizes.of([recipe.shape for recipe in tables]),
        () if isinstance(format, CP) else tuple(stride for recipe in tables for stride in recipe.strides),
    )


def _recipe(table: Table, format: TensorFormat) -> Recipe:
    terms, size = [format.subscripts[n] for n in table.factors], format.letter_sizes
    letters, shape = "".join(table.axes), shape_of(table, size)
    equation = f"{','.join(terms)}->{letters}"
    if len(terms) > 1:
        return Recipe(table.factors, equation, (), shape, _strides(shape))
    permutation = tuple(terms[0].index(c) for c in letters)
    apart = dict(zip(terms[0], _strides([size[c] for c in terms[0]]), strict=True))
    # of the letters of an axis at most one has more than one entry: bonds that join an output are the first or last
    longest = [max(axis, key=lambda c: size[c], default="") for axis in table.axes]
    return Recipe(table.factors, equation, permutation, shape, tuple(apart.get(c, 0) for c in longest))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Those of a tensor without gaps."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
