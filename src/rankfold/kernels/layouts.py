"""Which small tables the rows of a format are computed from.

Rows of TTM, TT and Tucker tables are chains ``L[l] · M[m] · R[r]`` of three tables, or of two; rows of CP
tables are products ``(U¹[i] ∘ U²[j] ∘ U³[k]) W`` of up to three. The index of a table's row is a run of
neighbouring modes of the flat index. Factors are contracted into these tables once, so that what many
rows share is not computed for each of them:

- TTM: a table is a core, or several neighbouring cores.
- TT: likewise, and the cores of the output modes are contracted into the last table, or into a matrix
  ``W`` that follows the chain, ``a = L M R W``.
- Tucker: ``L`` and ``R`` are factor matrices (Kronecker products of rows for several modes), ``M[m]`` is the
  core contracted with one of them, and the factors of the outputs make ``W``.
- CP: tables are factors, or products of rows of several.

Among all ways to cut the modes into tables, the cheapest for the batch is taken, by an estimate of time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rankfold.formats import CP, TensorFormat, TensorTrain, TensorTrainMatrix, Tucker
from rankfold.kernels.tiles import Sizes, fits

# Picoseconds, estimated for one H200: for an entry of a table that must be formed (written, read, its
# gradient cleared, added to and contracted back), for an entry that a row gathers and adds a gradient to,
# for a multiplication, forward and backward, for an entry of a gradient that a tile of rows adds to, and
# for reading an entry from memory, and for starting the products of a contraction, forward and backward.
_FORMED, _GATHERED, _MULTIPLIED, _ADDED, _READ, _STARTED = 8.0, 6.0, 0.15, 4.0, 1.0, 1.5e7
_ROWS_PER_TILE = 64

# Tables that must be formed may have this many entries together: 16 MiB in float32, and twice that in backward.
_MAX_FORMED = 1 << 22


class Table(NamedTuple):
    """Factors contracted to one table; its axes are groups of index letters, the modes' first."""

    factors: tuple[int, ...]
    axes: tuple[str, ...]


class Place(NamedTuple):
    """Where a table's row index stands in a flat index: ``(i // stride) mod size``."""

    stride: int
    size: int


class Layout(NamedTuple):
    """Tables of one row and their places, and the matrix ``W`` that follows, if any.

    For a chain the tables have axes (·, JL, R1), (·, R1, JM, R2) and (·, R2, JR); for CP they are (·, R).
    """

    tables: tuple[Table, ...]
    places: tuple[Place, ...]
    weight: Table | None


def cheapest(format: TensorFormat, batch: int) -> Layout | None:
    """The layout that costs least for ``batch`` rows, or ``None`` if there is none of acceptable size."""
    size = format.letter_sizes
    cost = _product_cost if isinstance(format, CP) else _chain_cost
    acceptable = [layout for layout in layouts(format) if _acceptable(layout, size)]
    return min(acceptable, key=lambda layout: cost(layout, size, batch), default=None)


def layouts(format: TensorFormat) -> Iterator[Layout]:
    """Every way to cut the input modes into at most three runs, as tables."""
    modes = format.input_letters
    for cuts in _cuts(len(modes)):
        runs = [range(a, b) for a, b in pairwise(cuts)]
        places = tuple(_place(format.inputs.dims, run) for run in runs)
        match format:
            case CP():
                yield _product_layout(format, runs, places)
            case Tucker() if len(runs) > 1:
                yield from _tucker_layouts(format, runs, places)
            case TensorTrain() | TensorTrainMatrix() if len(runs) > 1:
                yield from _train_layouts(format, runs, places)


def _cuts(modes: int) -> Iterator[tuple[int, ...]]:
    yield (0, modes)
    for a in range(1, modes):
        yield (0, a, modes)
        for b in range(a + 1, modes):
            yield (0, a, b, modes)


def _place(dims: tuple[int, ...], run: range) -> Place:
    return Place(math.prod(dims[run.stop :]), math.prod(dims[run.start : run.stop]))


def _letters(format: TensorFormat, factors: Sequence[int], among: str) -> str:
    """The letters of these factors that are ``among`` the given ones, in order."""
    return "".join(c for n in factors for c in format.subscripts[n] if c in among)


def _product_layout(format: CP, runs: list[range], places: tuple[Place, ...]) -> Layout:
    rank, order = format.subscripts[0][1], len(format.inputs.dims)
    tables = [Table(tuple(run), (_letters(format, run, format.input_letters), rank)) for run in runs]
    outputs = tuple(range(order, len(format.subscripts)))
    return Layout(tuple(tables), places, Table(outputs, (rank, format.output_letters)))


def _train_layouts(
    format: TensorTrain | TensorTrainMatrix, runs: list[range], places: tuple[Place, ...]
) -> Iterator[Layout]:
    """Runs of cores; the cores of a tensor train's output modes belong to the last run, or make ``W``."""
    order, count = len(format.inputs.dims), len(format.subscripts)
    tail = tuple(range(order, count))
    yield Layout(_train_tables(format, runs, tail), places, None)
    if tail:
        bond, end = format.subscripts[order][0], format.subscripts[-1][-1]
        yield Layout(_train_tables(format, runs, ()), places, Table(tail, (bond, format.output_letters + end)))


def _train_tables(format: TensorFormat, runs: list[range], tail: tuple[int, ...]) -> tuple[Table, ...]:
    """Runs of cores as (·, JL, R1), (·, R1, JM, R2), (·, R2, JR); an open last bond counts as an output."""
    tables = []
    for n, run in enumerate(runs):
        last = n == len(runs) - 1
        members = (*run, *tail) if last else tuple(run)
        modes = _letters(format, members, format.input_letters)
        outputs = _letters(format, members, format.output_letters)
        before, after = format.subscripts[members[0]][0], format.subscripts[members[-1]][-1]
        match n, last:
            case 0, _:
                axes: tuple[str, ...] = (modes, before + outputs, after)
            case 1, False:
                axes = (modes, before, outputs, after)
            case 1, True:
                axes = (modes, before, outputs + after, "")
            case _:
                axes = (modes, before, outputs + after)
        tables.append(Table(members, axes))
    return tuple(tables)


def _tucker_layouts(format: Tucker, runs: list[range], places: tuple[Place, ...]) -> Iterator[Layout]:
    """The core goes with any one of the runs, which becomes the middle; ``W`` is made of the output factors."""
    order, core = len(format.inputs.dims), len(format.subscripts) - 1
    ranks = format.subscripts[core]
    outer = tuple(range(order, core))
    for chosen in range(len(runs)):
        others = [n for n in range(len(runs)) if n != chosen]
        bonds = [_letters(format, run, ranks) for run in runs]
        modes = [_letters(format, run, format.input_letters) for run in runs]
        left, right = others[0], others[1] if len(others) > 1 else None
        after = "" if right is None else bonds[right]
        placed = tuple(places[n] for n in (left, chosen, *others[1:]))
        for members, outputs, weight in (
            ((*runs[chosen], core), ranks[order:], Table(outer, (ranks[order:], format.output_letters))),
            ((*runs[chosen], core, *outer), format.output_letters, None),
        ):
            tables = [
                Table(tuple(runs[left]), (modes[left], "", bonds[left])),
                Table(members, (modes[chosen], bonds[left], outputs, after)),
            ]
            if right is not None:
                tables.append(Table(tuple(runs[right]), (modes[right], after, "")))
            yield Layout(tuple(tables), placed, weight)


# What a layout costs ----------------------------------------------------------------------------------


def shape_of(table: Table, size: dict[str, int]) -> tuple[int, ...]:
    """The shape of a table, given the sizes of the letters."""
    return tuple(math.prod(size[c] for c in axis) for axis in table.axes)


def _acceptable(layout: Layout, size: dict[str, int]) -> bool:
    """Whether the tables are small enough to form, and their rows to fit into registers."""
    is_chain = len(layout.tables[0].axes) > 2
    shapes = [shape_of(table, size) for table in layout.tables]
    return _formed(layout, size) <= _MAX_FORMED and (not is_chain or fits(Sizes.of(shapes)))


def _contracted(layout: Layout) -> list[Table]:
    """The tables that are not factors already."""
    tables = (*layout.tables, *((layout.weight,) if layout.weight else ()))
    return [table for table in tables if len(table.factors) > 1]


def _formed(layout: Layout, size: dict[str, int]) -> int:
    """Entries of the tables that are not factors already."""
    return sum(math.prod(shape_of(table, size)) for table in _contracted(layout))


def _forming_cost(layout: Layout, size: dict[str, int]) -> float:
    return _FORMED * _formed(layout, size) + _STARTED * len(_contracted(layout))


def _chain_cost(layout: Layout, size: dict[str, int], batch: int) -> float:
    shapes = [shape_of(table, size) for table in layout.tables]
    exact, (left, before, outputs, after, right) = Sizes.of(shapes), Sizes.of(shapes).padded()
    gathered = exact.left * exact.before + exact.after * exact.right * (len(shapes) > 2)
    multiplied = left * outputs * after * (before + right * (len(shapes) > 2))
    tiles = batch / _ROWS_PER_TILE + min(batch, shapes[1][0])
    return (
        _forming_cost(layout, size)
        + batch * (_GATHERED * gathered + _MULTIPLIED * multiplied)
        + _ADDED * tiles * exact.before * exact.outputs * exact.after
        + (0.0 if layout.weight is None else _weight_cost(shape_of(layout.weight, size), batch))
    )


def _weight_cost(shape: tuple[int, ...], batch: int) -> float:
    """The product with ``W`` (Q, J) after the chain: its rows pass through memory, their gradients once more."""
    inner, outputs = shape
    return _STARTED + batch * (_GATHERED * inner + _READ * outputs + _MULTIPLIED * inner * outputs)


def _product_cost(layout: Layout, size: dict[str, int], batch: int) -> float:
    gathered = sum(shape_of(table, size)[1] for table in layout.tables)
    return _forming_cost(layout, size) + _GATHERED * batch * gathered
