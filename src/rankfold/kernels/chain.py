"""Rows of chains of tables as an operator of torch, differentiable and compilable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankfold.kernels import reference
from rankfold.kernels.launch import give_up, is_wide, precision, usable, with_gradients, without_gaps
from rankfold.kernels.operators import Operator
from rankfold.kernels.tiles import Sizes, Tiles, tiles_for


def _forward(
    index: Tensor,
    order: Tensor,
    group: Tensor,
    left: Tensor,
    middle: Tensor,
    right: Tensor | None,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    """``a_b = L[l_b] · M[m_b] · R[r_b]`` as (N, JL · JM · JR), or ``Σ scale_b a_b`` over the rows of every bag.

    ``order`` (N,) sorts the rows by ``m_b``, and ``group`` (N,) are those numbers, sorted. ``places`` are the pairs
    ``stride, size`` of the tables: a table's row is ``(i // stride) mod size`` for a flat index i. With bags, ``bag``
    (N,) says where a row goes.
    """
    tables = _given(left, middle, right)
    if usable(left):
        try:
            return launch_forward(index, order, group, tables, places, bag, scale, bags)
        except Exception as error:  # whatever stops a compiler or a launch must not stop the user
            give_up(error)
    return reference.chain_rows(index, order, tables, places, bag, scale, bags)


def _fake_forward(
    index: Tensor,
    order: Tensor,
    group: Tensor,
    left: Tensor,
    middle: Tensor,
    right: Tensor | None,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    return left.new_empty(index.shape[0] if bag is None else bags, _sizes(_given(left, middle, right)).entries)


def _backward(
    grad: Tensor,
    index: Tensor,
    order: Tensor,
    group: Tensor,
    left: Tensor,
    middle: Tensor,
    right: Tensor | None,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the tables of ``chain_rows``; that of a missing one is empty."""
    tables = _given(left, middle, right)
    if usable(left):
        try:
            return _three(launch_backward(grad, index, order, group, tables, places, bag, scale))
        except Exception as error:  # as above
            give_up(error)
    return _three(reference.chain_rows_backward(grad, index, order, tables, places, bag, scale))


def _fake_backward(
    grad: Tensor,
    index: Tensor,
    order: Tensor,
    group: Tensor,
    left: Tensor,
    middle: Tensor,
    right: Tensor | None,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return _three([torch.empty_like(table) for table in _given(left, middle, right)])


def _given(*tables: Tensor | None) -> list[Tensor]:
    return [table for table in tables if table is not None]


def _three(gradients: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    left, middle, *right = gradients
    return left, middle, right[0] if right else left.new_empty(0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    index, order, group, left, middle, right, ctx.places, bag, scale, _ = inputs
    ctx.save_for_backward(index, order, group, left, middle, right, bag, scale)


def _differentiate(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *rows, left, middle, right, bag, scale = ctx.saved_tensors
    d_left, d_middle, d_right = backward(grad.contiguous(), *rows, left, middle, right, ctx.places, bag, scale)
    return None, None, None, d_left, d_middle, None if right is None else d_right, None, None, None, None


chain_rows = Operator("chain_rows", _forward, _fake_forward, _backward, _fake_backward, _save, _differentiate)


# Launches ---------------------------------------------------------------------------------------------


def launch_forward(
    index: Tensor,
    order: Tensor,
    group: Tensor,
    tables: Sequence[Tensor],
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
    tiles: Tiles | None = None,
    input_precision: str | None = None,
) -> Tensor:
    """Run the forward kernel; bags are summed in float32."""
    from rankfold.kernels.chain_triton import chain_forward

    sizes, count = _sizes(tables), index.shape[0]
    out = tables[0].new_empty(count, sizes.entries)
    if bag is not None:
        out = tables[0].new_zeros(bags, sizes.entries, dtype=torch.float32)
    if count:
        tiles = tiles or tiles_for(sizes, False, count / tables[1].shape[0])
        with torch.cuda.device_of(index):
            chain_forward[_programs(count, tiles, places)](
                *_operands(index, order, group, tables, bag, scale), out, count,
                *_numbers(sizes, tables, places), **_options(sizes, tables, places, bag, tiles, input_precision),
            )  # fmt: skip
    return out.to(tables[0].dtype)


def launch_backward(
    grad: Tensor,
    index: Tensor,
    order: Tensor,
    group: Tensor,
    tables: Sequence[Tensor],
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    tiles: Tiles | None = None,
    input_precision: str | None = None,
) -> list[Tensor]:
    """Run the backward kernel; gradients are summed in float32, and so are their copies."""
    from rankfold.kernels.chain_triton import chain_backward

    sizes, count = _sizes(tables), index.shape[0]
    pairs = [with_gradients(table) for table in tables]
    tables, gradients = [table for table, _ in pairs], [gradient for _, gradient in pairs]
    copies = [number for gradient in gradients for number in (gradient.shape[0], gradient.stride(0))]
    if count:
        tiles = tiles or tiles_for(sizes, True, count / tables[1].shape[0])
        targets = (*gradients, gradients[0])[:3]  # an unused pointer where there is no right table
        # gradients of equal rows are added up in a tile where they have no copies, by a product of 16 rows at least
        merged = [tiles.rows >= 16 and gradient.shape[0] == 1 for gradient in targets]
        with torch.cuda.device_of(index):
            chain_backward[_programs(count, tiles, places)](
                *_operands(index, order, group, tables, bag, scale), grad, *targets, count, *(*copies, 1, 0)[:6],
                *_numbers(sizes, tables, places), **_options(sizes, tables, places, bag, tiles, input_precision),
                MERGE_LEFT=merged[0], MERGE_RIGHT=merged[2],
            )  # fmt: skip
    return [(g[0] if len(g) == 1 else g.sum(0)).to(tables[0].dtype) for g in gradients]


def _sizes(tables: Sequence[Tensor]) -> Sizes:
    return Sizes.of([table.shape for table in tables])


def _programs(count: int, tiles: Tiles, places: Sequence[int]) -> tuple[int]:
    """How many programs a launch has: each takes rows of one group, from one stretch of slots."""
    return ((count - 1) // tiles.rows + places[3],)


def _operands(
    index: Tensor,
    order: Tensor,
    group: Tensor,
    tables: Sequence[Tensor],
    bag: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, ...]:
    """Pointers, of vectors without gaps; unused ones point to the first table or the index."""
    three = (*tables, *(tables[0],) * (3 - len(tables)))
    index, bag, scale = without_gaps(index, bag, scale)
    return index, order, group, *three, bag, scale


def _numbers(sizes: Sizes, tables: Sequence[Tensor], places: Sequence[int]) -> tuple[int, ...]:
    """Places of the left and right table and the size of the middle one, sizes, and strides."""
    missing = 3 - len(tables)
    strides = [stride for table in tables for stride in table.stride()]
    return (*places[:2], *places[3:], *(1, 1) * missing, *sizes, *strides, *(0, 0, 0) * missing)


def _options(
    sizes: Sizes,
    tables: Sequence[Tensor],
    places: Sequence[int],
    bag: Tensor | None,
    tiles: Tiles,
    input_precision: str | None,
) -> dict[str, Any]:
    left, before, _, after, right = sizes.padded()
    return {
        "BLOCK": tiles.rows,
        "PJL": left,
        "PR1": before,
        "PJM": tiles.outputs,
        "PR2": after,
        "PJR": right,
        "RIGHT": len(tables) > 2,
        "BAGS": bag is not None,
        "WIDE": is_wide(places),
        "PRECISION": input_precision or precision(tables[0].dtype),
        "num_warps": tiles.warps,
        "num_stages": 1,  # loops are short: nothing to fetch ahead
        "enable_fp_fusion": True,  # said aloud, as its default is about to change
    }
