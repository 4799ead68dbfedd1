"""The plain-torch twins of the Triton kernels: the same functions of the same arguments.

They define what the kernels compute, and take over where Triton cannot run. Rows are worked off in chunks
of bounded size. Places are pairs ``stride, size``: a table's row is ``(i // stride) mod size``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_CHUNK_ROWS = 8192


def chain_rows(
    index: Tensor, tables: Sequence[Tensor], places: Sequence[int], bag: Tensor | None, scale: Tensor | None, bags: int
) -> Tensor:
    """``a_b = L[l_b] · M[m_b] · R[r_b]`` as (N, JL · JM · JR), or ``Σ scale_b a_b`` over the rows of every bag."""
    entries = tables[0].shape[1] * tables[1].shape[2] * (tables[2].shape[2] if len(tables) > 2 else 1)
    rows = _empty_rows(index, tables[0], entries)
    for part in _chunks(index):
        left, middle, *right = _gather(index[part], tables, places)
        product = torch.einsum("bjq,bqkr->bjkr", left, middle)
        product = torch.einsum("bjkr,brn->bjkn", product, right[0]) if right else product
        rows[part] = product.flatten(1)
    return _pool(rows, bag, scale, bags)


def chain_rows_backward(
    grad: Tensor,
    index: Tensor,
    tables: Sequence[Tensor],
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> list[Tensor]:
    """Gradients of the tables, given that of the rows or bags."""
    gradients = [torch.zeros_like(table) for table in tables]
    for part in _chunks(index):
        left, middle, *right = _gather(index[part], tables, places)
        upstream = _rows_of_grad(grad, part, bag, scale)
        dx = upstream.reshape(-1, left.shape[1], middle.shape[2], right[0].shape[2] if right else 1)
        found = []
        if right:
            x = torch.einsum("bjq,bqkr->bjkr", left, middle)
            found.append(torch.einsum("bjkr,bjkn->brn", x, dx))
            dx = torch.einsum("bjkn,brn->bjkr", dx, right[0])
        found = [torch.einsum("bjkr,bqkr->bjq", dx, middle), torch.einsum("bjq,bjkr->bqkr", left, dx), *found]
        _scatter(gradients, found, index[part], places)
    return gradients


def product_rows(
    index: Tensor,
    tables: Sequence[Tensor],
    weight: Tensor,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    """``a_b = (U¹[i_b] ∘ U²[j_b] ∘ U³[k_b]) W`` as (N, J), or ``Σ scale_b a_b`` over the rows of every bag."""
    rows = _empty_rows(index, weight, weight.shape[1])
    for part in _chunks(index):
        rows[part] = torch.stack(_gather(index[part], tables, places)).prod(0) @ weight
    return _pool(rows, bag, scale, bags)


def product_rows_backward(
    grad: Tensor,
    index: Tensor,
    tables: Sequence[Tensor],
    weight: Tensor,
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> list[Tensor]:
    """Gradients of the tables and of ``W``, given that of the rows or bags."""
    gradients = [torch.zeros_like(table) for table in tables]
    d_weight = torch.zeros_like(weight)
    for part in _chunks(index):
        gathered = _gather(index[part], tables, places)
        upstream = _rows_of_grad(grad, part, bag, scale)
        d_weight += torch.stack(gathered).prod(0).T @ upstream
        dv = upstream @ weight.T
        found = [torch.stack([dv, *gathered[:n], *gathered[n + 1 :]]).prod(0) for n in range(len(gathered))]
        _scatter(gradients, found, index[part], places)
    return [*gradients, d_weight]


def _chunks(index: Tensor) -> Iterator[slice]:
    return (slice(start, start + _CHUNK_ROWS) for start in range(0, index.shape[0], _CHUNK_ROWS))


def _empty_rows(index: Tensor, like: Tensor, entries: int) -> Tensor:
    return torch.empty(index.shape[0], entries, dtype=like.dtype, device=like.device)


def _places(index: Tensor, places: Sequence[int]) -> list[Tensor]:
    pairs = zip(places[::2], places[1::2], strict=True)
    return [index.div(stride, rounding_mode="floor").remainder(size) for stride, size in pairs]


def _gather(index: Tensor, tables: Sequence[Tensor], places: Sequence[int]) -> list[Tensor]:
    return [table.index_select(0, place) for table, place in zip(tables, _places(index, places), strict=True)]


def _scatter(gradients: list[Tensor], found: Sequence[Tensor], index: Tensor, places: Sequence[int]) -> None:
    for gradient, rows, place in zip(gradients, found, _places(index, places), strict=True):
        gradient.index_add_(0, place, rows)


def _pool(rows: Tensor, bag: Tensor | None, scale: Tensor | None, bags: int) -> Tensor:
    """``Σ scale_b a_b`` over the rows of every bag, or the rows themselves where there are no bags."""
    if bag is None or scale is None:
        return rows
    return rows.new_zeros(bags, rows.shape[1]).index_add_(0, bag, rows * scale[:, None])


def _rows_of_grad(grad: Tensor, part: slice, bag: Tensor | None, scale: Tensor | None) -> Tensor:
    """The gradients of a chunk of rows."""
    return grad[part] if bag is None or scale is None else grad.index_select(0, bag[part]) * scale[part, None]
