"""Rows of CP tables as an operator of torch, differentiable and compilable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.kernels import reference
from rankfold.kernels.launch import is_wide, padded, precision, tried, usable, with_gradients, without_gaps
from rankfold.kernels.operators import Operator, given, of_three


class Tiles(NamedTuple):
    """How a launch is cut: rows, ranks and columns of a tile, programs that share the rows, warps per program."""

    rows: int
    ranks: int
    columns: int
    shares: int
    warps: int


def tiles_for(rank: int, columns: int, count: int, backward: bool) -> Tiles:
    """Tiles that fit the registers; in backward, enough programs to fill a large device."""
    columns = min(padded(columns, 16), 128)
    if not backward:
        return Tiles(64, min(padded(rank, 16), 32), columns, 1, 4)
    ranks = min(padded(rank, 16), 32)
    return Tiles(32, ranks, columns, max(1, min(64, count // 512)), 8)


def _forward(
    index: Tensor,
    first: Tensor,
    second: Tensor | None,
    third: Tensor | None,
    weight: Tensor,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    """``a_b = (U¹[i_b] ∘ U²[j_b] ∘ U³[k_b]) W`` as (N, J), or ``Σ scale_b a_b`` over the rows of every bag.

    Up to three tables (·, R) and ``W`` (R, J). ``places`` are the pairs ``stride, size`` of the tables: a table's
    row is ``(i // stride) mod size`` for a flat index i. With bags, ``bag`` (N,) says where a row goes.
    """
    tables = given(first, second, third)
    inputs = index, tables, weight, places, bag, scale, bags
    if usable(weight) and (found := tried(launch_forward, *inputs)) is not None:
        return found
    return reference.product_rows(*inputs)


def _fake_forward(*inputs: Any) -> Tensor:
    index, _, _, _, weight, _, bag, _, bags = inputs
    found: Tensor = weight.new_empty(index.shape[0] if bag is None else bags, weight.shape[1])
    return found


def _backward(
    grad: Tensor,
    index: Tensor,
    first: Tensor,
    second: Tensor | None,
    third: Tensor | None,
    weight: Tensor,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the tables of ``product_rows``, and of ``W``; those of missing tables are empty."""
    tables = given(first, second, third)
    inputs = grad, index, tables, weight, places, bag, scale
    if usable(weight) and (gradients := tried(launch_backward, *inputs)) is not None:
        return _four(gradients)
    return _four(reference.product_rows_backward(*inputs))


def _fake_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, first, second, third, weight, *_ = inputs
    return _four([torch.empty_like(table) for table in (*given(first, second, third), weight)])


def _four(gradients: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tables, weight = gradients
    return *of_three(tables), weight


def _save(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    index, first, second, third, weight, ctx.places, bag, scale, _ = inputs
    ctx.save_for_backward(index, first, second, third, weight, bag, scale)


def _differentiate(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    index, first, second, third, weight, bag, scale = ctx.saved_tensors
    found = backward(grad.contiguous(), index, first, second, third, weight, ctx.places, bag, scale)
    asked = (None if table is None else d for table, d in zip((first, second, third, weight), found, strict=True))
    return None, *asked, None, None, None, None


product_rows = Operator("product_rows", _forward, _fake_forward, _backward, _fake_backward, _save, _differentiate)


# Launches ---------------------------------------------------------------------------------------------


def launch_forward(
    index: Tensor,
    tables: Sequence[Tensor],
    weight: Tensor,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    """Run the forward kernel; bags are summed in float32."""
    from rankfold.kernels.product_triton import product_forward

    count, (rank, columns) = index.shape[0], weight.shape
    out = weight.new_empty(count, columns)
    if bag is not None:
        out = weight.new_zeros(bags, columns, dtype=torch.float32)
    if count:
        tiles = tiles_for(rank, columns, count, backward=False)
        with torch.cuda.device_of(index):
            product_forward[(-(-count // tiles.rows), -(-columns // tiles.columns))](
                *_operands(index, tables, weight, bag, scale), out, count,
                *_arguments(tables, weight, places), **_options(tables, places, bag, tiles),
            )  # fmt: skip
    return out.to(weight.dtype)


def launch_backward(
    grad: Tensor,
    index: Tensor,
    tables: Sequence[Tensor],
    weight: Tensor,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> list[Tensor]:
    """Run the backward kernel; gradients are summed in float32."""
    from rankfold.kernels.product_triton import product_backward

    count, (rank, columns) = index.shape[0], weight.shape
    (*tables, weight), gradients = with_gradients([*tables, weight])
    if count:
        tiles = tiles_for(rank, columns, count, backward=True)
        share = -(-count // (tiles.shares * tiles.rows)) * tiles.rows
        targets = (*gradients[:-1], *gradients[:1] * (3 - len(tables)), gradients[-1])
        with torch.cuda.device_of(index):
            product_backward[(-(-rank // tiles.ranks), -(-columns // tiles.columns), -(-count // share))](
                *_operands(index, tables, weight, bag, scale), grad, *targets, count, share,
                *_arguments(tables, weight, places), **_options(tables, places, bag, tiles),
            )  # fmt: skip
    return [gradient.to(weight.dtype) for gradient in gradients]


def _operands(
    index: Tensor, tables: Sequence[Tensor], weight: Tensor, bag: Tensor | None, scale: Tensor | None
) -> tuple[Tensor, ...]:
    """Pointers, of vectors without gaps; unused ones point to the first table or the index."""
    three = (*tables, *(tables[0],) * (3 - len(tables)))
    index, bag, scale = without_gaps(index, bag, scale)
    return index, *three, weight, bag, scale


def _arguments(tables: Sequence[Tensor], weight: Tensor, places: Sequence[int]) -> list[int]:
    missing = 3 - len(tables)
    strides = [stride for table in tables for stride in table.stride()]
    return [*places, *(1, 1) * missing, *weight.shape, *strides, *(0, 0) * missing, *weight.stride()]


def _options(tables: Sequence[Tensor], places: Sequence[int], bag: Tensor | None, tiles: Tiles) -> dict[str, Any]:
    return {
        "BLOCK": tiles.rows,
        "PR": tiles.ranks,
        "PJ": tiles.columns,
        "ORDER": len(tables),
        "BAGS": bag is not None,
        "WIDE": is_wide(places),
        "PRECISION": precision(tables[0].dtype),
        "num_warps": tiles.warps,
        "num_stages": 2,
        "enable_fp_fusion": True,  # said aloud, as its default is about to change
    }
