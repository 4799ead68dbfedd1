"""Rows of an embedding table held as factors: Triton kernels where they can run, plain torch otherwise.

Kernels run on CUDA in float32 and bfloat16, when Triton is installed, the sizes fit its registers and no
deterministic algorithms are asked for: they add gradients atomically, in an order that changes from run to
run. The plain path, :meth:`TensorFormat.rows`, is their twin everywhere else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.contraction import planned_size
from rankfold.formats import Factors, TensorFormat
from rankfold.kernels.chain import chain_rows
from rankfold.kernels.launch import usable
from rankfold.kernels.layouts import Layout, Place, best_layout, form
from rankfold.kernels.pooling import Bags, bags_of
from rankfold.kernels.product import product_rows


def rows(format: TensorFormat, factors: Factors, index: Tensor) -> Tensor:
    """Rows ``A[index]``: index (N,) to (N, J)."""
    layout = layout_for(format, factors, index)
    return format.rows(factors, index) if layout is None else _run(layout, format, factors, index)


def pooled_rows(
    format: TensorFormat,
    factors: Factors,
    index: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    *,
    mode: str,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Tensor | None:
    """Sums or means of bags of rows, (B, J), as ``F.embedding_bag`` pools them; ``None`` where no kernel can run.

    Sums of a TT or Tucker table are pooled before ``W``. Weights that need a gradient are left to plain torch.
    """
    differentiable = per_sample_weights is not None and per_sample_weights.requires_grad and torch.is_grad_enabled()
    layout = None if differentiable else layout_for(format, factors, index.reshape(-1))
    if layout is None:
        return None
    bags = bags_of(
        index,
        offsets,
        per_sample_weights,
        mean=mode == "mean",
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
        dtype=factors[0].dtype,
    )
    return _run(layout, format, factors, bags.indices, bags)


def layout_for(format: TensorFormat, factors: Factors, index: Tensor) -> Layout | None:
    """The tables to run a kernel on, or ``None`` where plain torch must do."""
    if torch.compiler.is_exporting() or not usable(factors[0]) or torch.are_deterministic_algorithms_enabled():
        return None
    batch = planned_size(index.shape[0])
    return best_layout(format.name, format.inputs.dims, format.outputs.dims, format.ranks, batch)


def _run(layout: Layout, format: TensorFormat, factors: Factors, index: Tensor, bags: Bags | None = None) -> Tensor:
    """Form the tables, and run the kernel of the format on them."""
    tables = [form(table, factors, format) for table in layout.tables]
    weight = None if layout.weight is None else form(layout.weight, factors, format)
    places = [number for place in layout.places for number in place]
    pooling = (None, None, 0) if bags is None else (bags.owner, bags.scale, bags.total)
    result: Tensor
    if format.name == "CP":
        result = product_rows(index, tables, weight, places, *pooling)
    else:
        result = chain_rows(index, _sorted_by(index, layout.places[1]), tables, places, *pooling)
        result = result if weight is None else result @ weight
    return result[:, : format.outputs.size]


def _sorted_by(index: Tensor, place: Place) -> Tensor:
    """The order of rows that sorts them by one table's row."""
    key = index.div(place.stride, rounding_mode="floor").remainder(place.size)
    # a sort takes one pass over its keys for every byte they have
    return key.to(torch.int16 if place.size < 2**15 else torch.int32).argsort(stable=True)
