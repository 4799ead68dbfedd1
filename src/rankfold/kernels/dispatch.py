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
from rankfold.kernels.layouts import Program, best_program
from rankfold.kernels.pooling import Bags, bags_of
from rankfold.kernels.product import product_rows


def rows(format: TensorFormat, factors: Factors, index: Tensor) -> Tensor:
    """Rows ``A[index]``: index (N,) to (N, J)."""
    program = program_for(format, factors, index)
    return format.rows(factors, index) if program is None else _run(program, format, factors, index)


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
    program = None if differentiable else program_for(format, factors, index.reshape(-1))
    if program is None:
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
    return _run(program, format, factors, bags.indices, bags)


def program_for(format: TensorFormat, factors: Factors, index: Tensor) -> Program | None:
    """The tables to run a kernel on, or ``None`` where plain torch must do."""
    if torch.compiler.is_exporting() or not usable(factors[0]) or torch.are_deterministic_algorithms_enabled():
        return None
    batch = planned_size(index.shape[0])
    return best_program(format.name, format.inputs.dims, format.outputs.dims, format.ranks, batch)


def _run(program: Program, format: TensorFormat, factors: Factors, index: Tensor, bags: Bags | None = None) -> Tensor:
    """Form the tables, and run the kernel of the format on them."""
    tables = [recipe.form(factors) for recipe in program.tables]
    weight = None if program.weight is None else program.weight.form(factors)
    pooling = (None, None, 0) if bags is None else (bags.owner, bags.scale, bags.total)
    result: Tensor
    if format.name == "CP":
        result = product_rows(index, tables, weight, program.places, *pooling)
    else:
        order = _sorted_by(index, *program.places[2:4])
        result = chain_rows(index, order, tables, program.places, *pooling)
        result = result if weight is None else result @ weight
    return result[:, : format.outputs.size]


def _sorted_by(index: Tensor, stride: int, size: int) -> Tensor:
    """The order of rows that sorts them by the middle table's row."""
    key = index.div(stride, rounding_mode="floor").remainder(size)
    # a sort takes one pass over its keys for every byte they have
    return key.to(torch.int16 if size < 2**15 else torch.int32).argsort(stable=True)
