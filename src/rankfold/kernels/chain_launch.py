"""Launches of the kernels for rows of chains of tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankfold.kernels.launch import (
    copies_of_gradients,
    is_wide,
    padded,
    precision,
    start,
    without_gaps,
    zero_gradients,
)
from rankfold.kernels.tiles import Sizes, Tiles, single_row_tiles, tiles_for


class Chain(NamedTuple):
    """Places, sizes and strides of a chain's two or three tables, as the operator takes them."""

    places: tuple[int, ...]
    sizes: Sizes
    strides: tuple[int, ...]


class Rows(NamedTuple):
    """Flat indices of rows, their order by groups and these groups, and with bags where they go and their weights."""

    flat: Tensor
    order: Tensor | None
    group: Tensor | None
    bag: Tensor | None
    scale: Tensor | None


class Launch(NamedTuple):
    """What launches for the same chain have in common: tiles, numbers, options, and compiled forms of their kernel."""

    tiles: Tiles
    numbers: tuple[int, ...]
    options: dict[str, Any]
    forms: dict[Any, Any]


def launch_forward(rows: Rows, tables: Sequence[Tensor], chain: Chain, bags: int) -> Tensor:
    """Run the forward kernel; bags are summed in float32."""
    from rankfold.kernels.chain_triton import chain_forward

    count, entries, like = rows.flat.shape[0], chain.sizes.entries, tables[0]
    out = like.new_empty(count, entries) if rows.bag is None else like.new_zeros(bags, entries, dtype=torch.float32)
    if count:
        launch = _launch(chain, rows, like, backward=False)
        grid, tensors = _programs(rows, launch, chain), (*_operands(rows, tables), out)
        start(chain_forward, grid, tensors, count, launch.numbers, launch.options, launch.forms)
    return out.to(like.dtype)


def launch_backward(grad: Tensor, rows: Rows, tables: Sequence[Tensor], chain: Chain) -> list[Tensor]:
    """Run the backward kernel; gradients are summed in float32, and so are their copies."""
    from rankfold.kernels.chain_triton import chain_backward

    count, is_sorted = rows.flat.shape[0], rows.order is not None
    gradients = copies_of_gradients(tables) if is_sorted else zero_gradients(tables)
    if count:
        launch = _launch(chain, rows, tables[0], backward=True)
        targets = (*gradients, gradients[0])[:3]  # an unused pointer where there is no right table
        copies = tuple((d.shape[0], d.stride(0)) if is_sorted else (1, 0) for d in targets)
        # gradients of equal rows are added up in a tile where they have no copies, by a product of 16 rows at least
        can_merge = is_sorted and launch.tiles.rows >= 16
        merging = {"MERGE_LEFT": can_merge and copies[0][0] == 1, "MERGE_RIGHT": can_merge and copies[2][0] == 1}
        grid, tensors = _programs(rows, launch, chain), (*_operands(rows, tables), grad, *targets)
        numbers = (*(number for pair in copies for number in pair), *launch.numbers)
        forms = launch.forms.setdefault(copies, {})
        start(chain_backward, grid, tensors, count, numbers, launch.options | merging, forms)
    if is_sorted:
        gradients = [d[0] if len(d) == 1 else d.sum(0) for d in gradients]
    return [d.to(tables[0].dtype) for d in gradients]


def _programs(rows: Rows, launch: Launch, chain: Chain) -> tuple[int, int, int]:
    """How many programs there are: one for every row, or for every stretch of slots and group that can meet."""
    count = rows.flat.shape[0]
    return count if rows.order is None else (count - 1) // launch.tiles.rows + chain.places[3], 1, 1


def _operands(rows: Rows, tables: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Pointers, of vectors without gaps; unused ones point to the first table or the index."""
    three = (*tables, *(tables[0],) * (3 - len(tables)))
    index, order, group, bag, scale = without_gaps(*rows)
    return index, order, group, *three, bag, scale


def _launch(chain: Chain, rows: Rows, like: Tensor, *, backward: bool) -> Launch:
    """What a launch for so many rows needs; batches of similar size share it."""
    rows_per_group = None if rows.order is None else padded(-(-rows.flat.shape[0] // chain.places[3]), 16)
    return _planned(chain, rows_per_group, rows.bag is not None, precision(like.dtype), backward)


@lru_cache(maxsize=16384)
def _planned(chain: Chain, rows_per_group: int | None, has_bags: bool, input_precision: str, backward: bool) -> Launch:
    places, sizes, strides = chain
    tiles = single_row_tiles(sizes, backward) if rows_per_group is None else tiles_for(sizes, backward, rows_per_group)
    missing = 3 - len(places) // 2
    left, before, _, after, right = sizes.padded()
    options = {
        "BLOCK": tiles.rows,
        "PJL": left,
        "PR1": before,
        "PJM": tiles.outputs,
        "PR2": after,
        "PJR": right,
        "RIGHT": missing == 0,
        "SORTED": rows_per_group is not None,
        "BAGS": has_bags,
        "WIDE": is_wide(places),
        "PRECISION": input_precision,
        "num_warps": tiles.warps,
        "num_stages": 1,  # loops are short: nothing to fetch ahead
        "enable_fp_fusion": True,  # said aloud, as its default is about to change
    }
    return Launch(tiles, (*places, *(1, 1) * missing, *sizes, *strides, *(0, 0, 0) * missing), options, {})
