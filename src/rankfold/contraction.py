"""The cheapest way to contract a network of small tensors, alone or with a batch.

A contraction is planned once per set of shapes, in the cheapest order that is found. Rebuilding the weight
first is one of the orders, so the choice between rebuilding and contracting falls out of the same comparison.

The letter ``B`` stands for the batch, always the first index of an operand. Plans are made for its
size rounded up, so that batches of similar size share a plan, and compiled code shares a graph. A
program that ``torch.export`` makes has one plan for all batches, that of the example it is made with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rankfold.compiled import constant
from rankfold.contraction_order import BATCH, cheapest_steps, copy_cost, step_cost
from rankfold.pairwise import UNKNOWN, Pairwise, pairwise

Shapes = tuple[tuple[int, ...], ...]

# Plans are made for this size where it depends on the data.
_UNKNOWN_SIZE = 1024

# Rows are gathered and contracted in chunks of at most this many entries: on a CPU about what its caches
# hold, which is several times faster than fresh memory; on other devices what keeps them busy.
_CHUNK_ENTRIES = 1 << 22
_CHUNK_ENTRIES_OF_DEVICES = 1 << 27


class Step(NamedTuple):
    """Contract the operands at two positions (or reduce a lone one) and append the result."""

    positions: tuple[int, ...]
    equation: str
    product: Pairwise | None = None


class Plan(NamedTuple):
    """Pairwise steps, what they cost, and how many entries their results have together."""

    steps: tuple[Step, ...]
    cost: float
    intermediates: int


def contract(equation: str, *operands: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like ``torch.einsum``, in the planned order; ``bias`` has the output's axes but the first, end to end.

    >>> contract("ab,bc->ac", torch.ones(2, 3), torch.ones(3, 4), bias=torch.ones(4)).shape
    torch.Size([2, 4])
    """
    return _run(plan(equation, _planned_shapes(equation, operands)), operands, bias)


def contract_rows(
    equation: str, tables: Sequence[Tensor], indices: Sequence[Tensor], shared: Sequence[Tensor]
) -> Tensor:
    """Contract rows ``table[index]`` of every table, index (N,), with ``shared`` operands, in bounded memory.

    The batch of rows is the first index of their terms and of the result. It is cut into chunks that
    hold a limited number of entries, gathered rows and intermediates together; when there is more
    than one chunk, backward gathers and contracts again instead of keeping them, but not under ``torch.func``, which
    cannot. An exported program has no chunks: their number would fix its batch.
    """

    def chunk(*parts: Tensor) -> Tensor:
        gathered = [table.index_select(0, part) for table, part in zip(tables, parts, strict=True)]
        return contract(equation, *gathered, *shared)

    batch, size = indices[0].shape[0], _chunk_size(equation, tables, indices[0], shared)
    if torch.compiler.is_exporting() or batch <= size:
        return chunk(*indices)
    run = chunk
    if not torch._C._are_functorch_transforms_active():
        run = partial(checkpoint, chunk, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([run(*parts) for parts in zip(*(torch.split(index, size) for index in indices), strict=True)])


def _chunk_size(equation: str, tables: Sequence[Tensor], index: Tensor, shared: Sequence[Tensor]) -> int:
    """How many rows a chunk has."""
    batch = planned_size(index.shape[0])
    rows = [(batch, *table.shape[1:]) for table in tables]
    chosen = plan(equation, (*rows, *(tuple(x.shape) for x in shared)))
    entries: int = sum(math.prod(shape) for shape in rows) + chosen.intermediates
    limit = _CHUNK_ENTRIES if index.device.type == "cpu" else _CHUNK_ENTRIES_OF_DEVICES
    return max(1, batch * limit // max(1, entries))


def rebuilding_is_cheaper(equation: str, shapes: Shapes, rebuild: str, batch: int) -> bool:
    """Whether to form the weight with ``rebuild`` and multiply, rather than contract the batch.

    ``shapes`` are those of the factors; ``equation`` is the contraction of batch and factors with
    the batch, of shape ``(batch, …)``, as its first operand.
    """
    return _rebuilding_is_cheaper(equation, shapes, rebuild, planned_size(batch))


def order_of_rows(rows: str, shapes: Shapes, rebuild: str, batch: int) -> str:
    """In which order of the letters ``rows``, the first of its result, to form a weight with ``rebuild``.

    As they are, or turned: with ``bca``, factors of ``bc`` and of ``a`` leave the weight as it is wanted, where for
    ``abc`` all of it is copied. The batch is copied instead, to the same order.
    """
    return _rebuilding(rows, shapes, rebuild, planned_size(batch))[0]


@constant
def _rebuilding_is_cheaper(equation: str, shapes: Shapes, rebuild: str, batch: int) -> bool:
    inputs, output = rebuild.split("->")
    size = letter_sizes(inputs.split(","), shapes)
    operands, target = equation.split("->")
    first = operands.split(",", 1)[0]
    size[first[0]] = batch
    whole = plan(equation, (tuple(size[c] for c in first), *shapes))
    _, weight = _rebuilding(first[1:], shapes, rebuild, batch)
    return weight + step_cost(first, output, target, size) <= whole.cost


@constant
def _rebuilding(rows: str, shapes: Shapes, rebuild: str, batch: int) -> tuple[str, float]:
    """The order of rows in which a weight is formed for a batch, and what that costs."""
    inputs, output = rebuild.split("->")
    if not output.startswith(rows):  # the batch goes to its columns
        return output, plan(rebuild, shapes).cost
    size = letter_sizes(inputs.split(","), shapes)
    copy = copy_cost(batch * math.prod(size[c] for c in rows))

    def cost(order: str) -> float:
        weight = plan(f"{inputs}->{order}{output.removeprefix(rows)}", shapes).cost
        return weight if order == rows else weight + copy

    order = min((rows[n:] + rows[:n] for n in range(len(rows))), key=cost)
    return order, cost(order)


@constant
def plan(equation: str, shapes: Shapes) -> Plan:
    """The cheapest of a few good orders for ``equation`` with operands of these shapes."""
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    if len(terms) == 1:
        return Plan((Step((0,), equation),), 0.0, math.prod(shapes[0]))
    size = letter_sizes(terms, shapes)
    found = cheapest_steps(terms, output, size)
    unknown = {**size, BATCH: UNKNOWN}
    steps = tuple(Step(step.positions, step.equation, pairwise(step.equation, unknown)) for step in found)
    return Plan(steps, sum(step.cost for step in found), sum(step.entries for step in found))


def _planned_shapes(equation: str, operands: Sequence[Tensor]) -> Shapes:
    terms = equation.split("->", 1)[0].split(",")
    return tuple(
        (planned_size(x.shape[0]), *x.shape[1:]) if term[:1] == BATCH else tuple(x.shape)
        for term, x in zip(terms, operands, strict=True)
    )


def planned_size(batch: int | torch.SymInt) -> int:
    """The next power of four; found by comparisons, which compiled code can keep as guards.

    In a program that is being exported sizes are symbols, and comparing them would bound its batch.
    """
    entries = _example_size(batch) if isinstance(batch, torch.SymInt) else batch
    size = 1
    while size < entries:
        size *= 4
    return size


def _example_size(symbol: torch.SymInt) -> int:
    """What a symbolic size is in the example that is traced; if it depends on the data, some size."""
    hint: int | None = symbol.node.hint
    return _UNKNOWN_SIZE if hint is None else int(hint)


def letter_sizes(terms: Sequence[str], shapes: Shapes) -> dict[str, int]:
    """The size of every index letter, given those of operands.

    >>> letter_sizes(["ab", "bc"], ((2, 3), (3, 4)))
    {'a': 2, 'b': 3, 'c': 4}
    """
    return {letter: n for term, shape in zip(terms, shapes, strict=True) for letter, n in zip(term, shape, strict=True)}


def _run(chosen: Plan, operands: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    live = list(operands)
    for step in chosen.steps:
        taken = [live[n] for n in step.positions]
        live = [x for n, x in enumerate(live) if n not in step.positions]
        if bias is not None and not live and step.product is not None and step.product.can_add():
            return step.product.plus(bias, *taken)
        live.append(torch.einsum(step.equation, *taken) if step.product is None else step.product.of(*taken))
    found = live[0]
    return found if bias is None else found + bias.to(found.dtype).view(found.shape[1:])  # autocast lowers found alone
