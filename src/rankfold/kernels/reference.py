"""The plain-torch twins of the Triton kernels: the same functions of the same arguments.

They define what the kernels compute, run on the CPU, and take over where Triton cannot run. Rows are worked off in
chunks of bounded size. Places are pairs ``stride, size``: a table's row is ``(i // stride) mod size``.

Rows of a chain come sorted by the middle table's row. All rows of a group share one matrix of it, so the group is
one matrix product, and no matrix is gathered row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_CHUNK_ROWS = 4096
# On a CPU a call of torch takes about as long as it takes to gather and multiply so many entries of matrices.
_ENTRIES_OF_A_CALL = 2048


@torch.no_grad()
def chain_rows(
    index: Tensor,
    order: Tensor,
    tables: Sequence[Tensor],
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
    bags: int,
) -> Tensor:
    """``a_b = L[l_b] · M[m_b] · R[r_b]`` as (N, JL · JM · JR), or ``Σ scale_b a_b`` over the rows of every bag."""
    left, middle, *right = tables
    entries = left.shape[1] * middle.shape[2] * (right[0].shape[2] if right else 1)
    rows = left.new_zeros(index.shape[0] if bag is None else bags, entries)
    for part in order.split(_CHUNK_ROWS):
        at = _places(index[part], places)
        x = _times_groups(left.index_select(0, at[0]), middle, at[1])
        for table in right:
            x = _times(x, table.index_select(0, at[2]))
        _put(rows, part, x.flatten(1), bag, scale)
    return rows


@torch.no_grad()
def chain_rows_backward(
    grad: Tensor,
    index: Tensor,
    order: Tensor,
    tables: Sequence[Tensor],
    places: Sequence[int],
    bag: Tensor | None,
    scale: Tensor | None,
) -> list[Tensor]:
    """Gradients of the tables, given that of the rows or bags."""
    gradients = [torch.zeros_like(table) for table in tables]
    left, middle, *right = tables
    for part in order.split(_CHUNK_ROWS):
        at = _places(index[part], places)
        l_rows = left.index_select(0, at[0])
        columns = right[0].shape[2] if right else 1
        dx = _rows_of_grad(grad, part, bag, scale).view(-1, left.shape[1] * middle.shape[2], columns)
        for table in right:  # a = X R:  dR = Xᵀ da,  dX = da Rᵀ
            r_rows = table.index_select(0, at[2])
            x = _times_groups(l_rows, middle, at[1])
            gradients[2].index_add_(0, at[2], _times(x.mT, dx))
            dx = _times(dx, r_rows.mT)
        gradients[0].index_add_(0, at[0], _times_groups_backward(dx, l_rows, middle, at[1], gradients[1]))
    return gradients


def _times_groups(rows: Tensor, middle: Tensor, place: Tensor) -> Tensor:
    """``L_b M[m_b]`` for rows L (N, JL, R1) and M (·, R1, JM, R2), as (N, JL · JM, R2); rows are sorted by ``m_b``."""
    width, matrices = rows.shape[1], middle.flatten(2)
    if _rows_are_alone(place, matrices):
        product = _times(rows, matrices.index_select(0, place))
    else:
        flat = rows.flatten(0, 1)
        product = flat.new_empty(flat.shape[0], matrices.shape[2])
        for number, first, last in _groups(place):
            group = slice(first * width, last * width)
            torch.mm(flat[group], matrices[number], out=product[group])
    return product.view(rows.shape[0], width * middle.shape[2], middle.shape[3])


def _times_groups_backward(dx: Tensor, rows: Tensor, middle: Tensor, place: Tensor, d_middle: Tensor) -> Tensor:
    """The gradient of the rows L, given that of ``L_b M[m_b]``; that of M is added to ``d_middle``."""
    width, matrices, d_matrices = rows.shape[1], middle.flatten(2), d_middle.view(*middle.shape[:2], -1)
    dx = dx.reshape(-1, matrices.shape[2])
    if _rows_are_alone(place, matrices):
        dx = dx.view(rows.shape[0], width, matrices.shape[2])
        d_matrices.index_add_(0, place, _times(rows.mT, dx))
        return _times(dx, matrices.index_select(0, place).mT)
    flat = rows.flatten(0, 1)
    d_flat = torch.empty_like(flat)
    for number, first, last in _groups(place):
        group = slice(first * width, last * width)
        torch.mm(dx[group], matrices[number].mT, out=d_flat[group])
        d_matrices[number].addmm_(flat[group].mT, dx[group])
    return d_flat.view_as(rows)


def _rows_are_alone(place: Tensor, matrices: Tensor) -> bool:
    """Whether groups are so small that a matrix for every row costs less than a product for every group."""
    groups = 1 + int(place.diff().count_nonzero())
    return place.shape[0] * matrices[0].numel() < groups * _ENTRIES_OF_A_CALL


def _groups(place: Tensor) -> Iterator[tuple[int, int, int]]:
    """Runs of equal numbers: the number, where its run begins, and where it has ended."""
    numbers, counts = torch.unique_consecutive(place, return_counts=True)
    ends = counts.cumsum(0)
    return zip(numbers.tolist(), (ends - counts).tolist(), ends.tolist(), strict=True)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Products of small matrices, (N, a, b) with (N, b, c); of vectors element by element, which is faster."""
    if y.shape[2] == 1:
        return (x * y.mT).sum(2, keepdim=True)
    if x.shape[2] == 1:
        return x * y
    # autocast, which may be on where backward is called, casts no product with a place to go to
    return torch.bmm(x, y, out=x.new_empty(x.shape[0], x.shape[1], y.shape[2]))


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
    rows = weight.new_zeros(index.shape[0] if bag is None else bags, weight.shape[1])
    for part in _chunks(index):
        _put(rows, part, torch.stack(_gather(index[part], tables, places)).prod(0) @ weight, bag, scale)
    return rows


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


def _places(index: Tensor, places: Sequence[int]) -> list[Tensor]:
    pairs = zip(places[::2], places[1::2], strict=True)
    return [index.div(stride, rounding_mode="floor").remainder(size) for stride, size in pairs]


def _gather(index: Tensor, tables: Sequence[Tensor], places: Sequence[int]) -> list[Tensor]:
    return [table.index_select(0, place) for table, place in zip(tables, _places(index, places), strict=True)]


def _scatter(gradients: list[Tensor], found: Sequence[Tensor], index: Tensor, places: Sequence[int]) -> None:
    for gradient, rows, place in zip(gradients, found, _places(index, places), strict=True):
        gradient.index_add_(0, place, rows)


def _put(rows: Tensor, part: slice | Tensor, found: Tensor, bag: Tensor | None, scale: Tensor | None) -> None:
    """Add ``scale_b a_b`` to every row's bag, or put the rows in their places where there are no bags."""
    if bag is None or scale is None:
        rows[part] = found
    else:
        rows.index_add_(0, bag[part], found * scale[part, None])


def _rows_of_grad(grad: Tensor, part: slice | Tensor, bag: Tensor | None, scale: Tensor | None) -> Tensor:
    """The gradients of a chunk of rows."""
    return grad[part] if bag is None or scale is None else grad.index_select(0, bag[part]) * scale[part, None]
