"""Rows of chains of tables as an operator of torch, differentiable and compilable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankfold.kernels import reference
from rankfold.kernels.chain_launch import Chain, Rows, launch_backward, launch_forward
from rankfold.kernels.launch import tried, usable
from rankfold.kernels.operators import Operator, given, of_three
from rankfold.kernels.tiles import Sizes


def _forward(
    index: Tensor,
    order: Tensor | None,
    group: Tensor | None,
    left: Tensor,
    middle: Tensor,
    right: Tensor | None,
    places: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    """``a_b = L[l_b] · M[m_b] · R[r_b]`` as (N, JL · JM · JR), or ``Σ scale_b a_b`` over the rows of every bag.

    ``order`` (N,) sorts the rows by ``m_b``, and ``group`` (N,) are those numbers, sorted; few rows need neither.
    ``places`` are the pairs ``stride, size`` of the tables: a table's row is ``(i // stride) mod size`` for a flat
    index i. ``sizes`` are those of the chain. Tables are tensors of any shape, without gaps, with the entries of
    L (·, JL, R1), M (·, R1, JM, R2) and R (·, R2, JR) in their memory, by ``strides``. With bags, ``bag`` (N,) says
    where a row goes.
    """
    tables, chain = given(left, middle, right), Chain(tuple(places), Sizes(*sizes), tuple(strides))
    rows = Rows(index, order, group, bag, scale)
    if usable(left) and (found := tried(launch_forward, rows, tables, chain, bags)) is not None:
        return found
    order = _order(index, order, places)
    return reference.chain_rows(index, order, _seen(tables, chain), places, bag, scale, bags)


def _fake_forward(*inputs: Any) -> Tensor:
    index, _, _, left, _, _, _, sizes, _, bag, _, bags = inputs
    found: Tensor = left.new_empty(index.shape[0] if bag is None else bags, Sizes(*sizes).entries)
    return found


def _backward(
    grad: Tensor,
    index: Tensor,
    order: Tensor | None,
    group: Tensor | None,
    left: Tensor,
    middle: Tensor,
    right: Tensor | None,
    places: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the tables of ``chain_rows``; that of a missing one is empty."""
    tables, chain = given(left, middle, right), Chain(tuple(places), Sizes(*sizes), tuple(strides))
    rows = Rows(index, order, group, bag, scale)
    if usable(left) and (gradients := tried(launch_backward, grad, rows, tables, chain)) is not None:
        return of_three(gradients)
    order = _order(index, order, places)
    found = reference.chain_rows_backward(grad, index, order, _seen(tables, chain), places, bag, scale)
    # they have the strides of what was seen, and so the entries of the tables in their memory
    return of_three([d.as_strided(table.shape, table.stride()) for d, table in zip(found, tables, strict=True)])


def _fake_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, _, _, left, middle, right, *_ = inputs
    return of_three([torch.empty_like(table) for table in given(left, middle, right)])


def sorted_groups(index: Tensor, places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The middle table's rows that an index asks for, sorted, and the order that sorts them."""
    _, _, stride, size, *_ = places
    group = index.div(stride, rounding_mode="floor").remainder(size)
    # a sort takes one pass over its keys for every byte they have
    found = group.to(torch.int16 if size < 2**15 else torch.int32).sort(stable=True)
    return found.values, found.indices


def _order(index: Tensor, order: Tensor | None, places: Sequence[int]) -> Tensor:
    return sorted_groups(index, places)[1] if order is None else order


def _seen(tables: Sequence[Tensor], chain: Chain) -> list[Tensor]:
    """L (·, JL, R1), M (·, R1, JM, R2) and R (·, R2, JR), in the memory of the tables."""
    left, before, outputs, after, right = chain.sizes
    sizes = ((left, before), (before, outputs, after), (after, right))
    strides = (chain.strides[:3], chain.strides[3:7], chain.strides[7:])
    return [
        table.as_strided((rows, *of_row), apart)
        for table, rows, of_row, apart in zip(tables, chain.places[1::2], sizes, strides, strict=False)
    ]


def _save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    index, order, group, left, middle, right, *ctx.chain, bag, scale, _ = inputs
    ctx.save_for_backward(index, order, group, left, middle, right, bag, scale)


def _differentiate(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *rows, left, middle, right, bag, scale = ctx.saved_tensors
    d_left, d_middle, d_right = backward(grad.contiguous(), *rows, left, middle, right, *ctx.chain, bag, scale)
    return *(None,) * 3, d_left, d_middle, None if right is None else d_right, *(None,) * 6


chain_rows = Operator("chain_rows", _forward, _fake_forward, _backward, _fake_backward, _save, _differentiate)
