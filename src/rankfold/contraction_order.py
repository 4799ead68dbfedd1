"""In which order to contract a network of small tensors, by an estimate of time: operations and bytes moved.

Candidates come from opt_einsum, which counts operations alone. The cheapest of them is turned as long as that helps:
``(t p) q`` into ``(t q) p`` or ``(p q) t``. Bytes include those of copies, which a matrix product needs of an operand
if letters that it takes together do not lie together. Backward costs twice the forward of every pairwise step,
whatever the order, so ranking by forward cost ranks the sum of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import opt_einsum
from opt_einsum.paths import linear_to_ssa

from rankfold.pairwise import UNKNOWN, Groups

# The letter of the batch, always the first index of an operand.
BATCH = "B"

# One byte moved costs as much time as this many floating-point operations, and starting one
# operation as much as this many: round numbers between those of CPUs and GPUs.
_OPERATIONS_PER_BYTE = 16.0
_OPERATIONS_PER_STEP = 5e5
_BYTES_PER_ENTRY = 4.0

# Networks of up to this many tensors are turned, and also searched by branching, which grows exponentially.
_MOST_TURNED = 12

# The number of an operand, or two networks that are contracted with each other.
Order = int | tuple["Order", "Order"]


class Contraction(NamedTuple):
    """A step of an order: two tensors are contracted, and their result goes behind those that are left.

    Attributes:
        positions: of the two among all that are left.
        equation: such as ``ab,bc->ac``.
        cost: in operations.
        entries: of the result.
    """

    positions: tuple[int, int]
    equation: str
    cost: float
    entries: int


class _Part(NamedTuple):
    """A tensor of the network, or what some were contracted to: its axes, also as they lie, and its number."""

    letters: str
    memory: str
    number: int


def cheapest_steps(terms: Sequence[str], output: str, size: Mapping[str, int]) -> list[Contraction]:
    """The steps of the cheapest order that is found for at least two terms."""

    def cost(order: Order) -> float:
        return sum(step.cost for step in steps_of(order, terms, output, size))

    best = min(_candidates(terms, output, size), key=cost)
    while len(terms) <= _MOST_TURNED:
        turned = min(_turns(best), key=cost, default=best)
        if cost(turned) >= cost(best):
            break
        best = turned
    return steps_of(best, terms, output, size)


def steps_of(order: Order, terms: Sequence[str], output: str, size: Mapping[str, int]) -> list[Contraction]:
    """The pairwise steps of an order."""
    steps: list[Contraction] = []
    left = list(range(len(terms)))  # numbers of tensors; results are numbered on from the terms

    def visit(order: Order, outside: str) -> _Part:
        """Contract a part of the network; ``outside`` are all letters of the rest and of the output."""
        if isinstance(order, int):
            return _Part(terms[order], terms[order], order)
        one, other = order
        parts = visit(one, outside + _letters(other, terms)), visit(other, outside + _letters(one, terms))
        # what carries the batch goes first, what carries the last index of the output goes last
        a, b = sorted(parts, key=lambda part: (BATCH not in part.letters, output[-1:] in part.letters, part.number))
        is_last = len(steps) == len(terms) - 2
        target = output if is_last else _laid_out(a.letters, b.letters, set(outside))
        memory, cost = _memory_and_cost(a, b, target, size)
        if is_last and _without_ones(memory, size) != _without_ones(output, size):
            cost += copy_cost(_entries(output, size))
        positions, number = (left.index(a.number), left.index(b.number)), len(terms) + len(steps)
        left[:] = [n for n in left if n not in (a.number, b.number)] + [number]
        equation = f"{a.letters},{b.letters}->{target}"
        steps.append(Contraction(positions, equation, cost, _entries(target, size)))
        return _Part(target, memory, number)

    visit(order, output)
    return steps


def step_cost(a: str, b: str, target: str, size: Mapping[str, int]) -> float:
    """The time to contract two operands that lie as they should."""
    operations = 2.0 * _entries(set(a + b), size)
    return cost_of(operations, sum(_entries(term, size) for term in (a, b, target)))


def cost_of(operations: float, entries: float) -> float:
    """The time of one step that does ``operations`` and moves ``entries`` numbers, in operations."""
    return operations + _OPERATIONS_PER_BYTE * _BYTES_PER_ENTRY * entries + _OPERATIONS_PER_STEP


def copy_cost(entries: float) -> float:
    """The time to bring this many numbers into another order."""
    return cost_of(0.0, 2.0 * entries)


# Orders -----------------------------------------------------------------------------------------------


def _candidates(terms: Sequence[str], output: str, size: Mapping[str, int]) -> Iterator[Order]:
    equation, shapes = f"{','.join(terms)}->{output}", [tuple(size[c] for c in term) for term in terms]
    searches = ["optimal"] if len(terms) <= 5 else ["greedy"]
    if 5 < len(terms) <= _MOST_TURNED:
        searches.append("branch-2")
    for search in searches:
        path = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=search)[0]
        yield _order([pair for pair in linear_to_ssa(path) if len(pair) == 2], len(terms))
    yield left_to_right(len(terms))


def left_to_right(count: int) -> Order:
    """Operand after operand."""
    order: Order = 0
    for n in range(1, count):
        order = (order, n)
    return order


def _order(path: Sequence[tuple[int, ...]], count: int) -> Order:
    """A path whose results are numbered on from the operands."""
    parts: list[Order] = list(range(count))
    for one, other in path:
        parts.append((parts[one], parts[other]))
    return parts[-1]


def _turns(order: Order) -> Iterator[Order]:
    """Every order that differs in which two of three neighbours are contracted first."""
    if isinstance(order, int):
        return
    one, other = order
    for near, far in ((one, other), (other, one)):
        if not isinstance(near, int):
            t, p = near
            yield (t, far), p
            yield (p, far), t
        for turned in _turns(near):
            yield turned, far


def _letters(order: Order, terms: Sequence[str]) -> str:
    return terms[order] if isinstance(order, int) else _letters(order[0], terms) + _letters(order[1], terms)


# Steps ------------------------------------------------------------------------------------------------


def _laid_out(a: str, b: str, wanted: set[str]) -> str:
    """The letters of a result: as they come, but those that a product of entries shares last, and the batch first.

    So what it does not share lies side by side, and is one axis of the next matrix product without a copy.
    """
    letters = [c for c in dict.fromkeys(a + b) if c in wanted]
    if not set(a) & set(b) <= wanted:
        return "".join(letters)
    return "".join(sorted(letters, key=lambda c: (c != BATCH, c in a and c in b)))


def _memory_and_cost(a: _Part, b: _Part, target: str, size: Mapping[str, int]) -> tuple[str, float]:
    """How the result lies in memory, and the time that takes, copies of the operands included."""
    cost = step_cost(a.letters, b.letters, target, size)
    if set(a.letters) & set(b.letters) <= set(target):  # a product of entries
        return target, cost
    groups = Groups.of(a.letters, b.letters, target, {**size, BATCH: UNKNOWN})  # as steps are made, for any batch
    if groups.repeated:  # its gradient is formed for each of its times, and these are summed
        cost += cost_of(0.0, _entries(groups.together + "".join(getattr(groups, groups.repeated)), size))
    for part, runs in ((a, groups.first), (b, groups.second)):
        memory = _without_ones(part.memory, size)
        if not all(_without_ones(run, size) in memory for run in runs):
            cost += copy_cost(_entries(part.letters, size))
    return groups.result, cost


def _without_ones(letters: str, size: Mapping[str, int]) -> str:
    return "".join(c for c in letters if size[c] != 1)


def _entries(letters: str | set[str], size: Mapping[str, int]) -> int:
    return math.prod(size[c] for c in letters)
