"""Rows of an embedding table held as factors: Triton kernels where they can run, plain torch otherwise.

Kernels run on the devices of ``launch.DEVICES`` in float32 and bfloat16, when Triton is installed, there are rows
enough, the sizes fit its registers and no deterministic algorithms are asked for: they add gradients atomically,
in an order that changes from run to run. The plain path, :meth:`TensorFormat.rows`, is their twin everywhere else.
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

# From so many rows on a kernel is faster than plain torch. On an H200, forward and backward in a graph, 2,048 and
# 65,536 skewed rows: TT 1.59 against 0.11 ms and 0.35 against 1.70, Tucker 1.92 against 0.17 and 0.89 against 2.89,
# CP 0.18 against 0.11 and 1.61 against 1.63 with a twentieth of the memory, TTM 0.09 against 0.12 and 0.67 against
# 2.12.
LEAST_ROWS = {"CP": 16_384, "Tucker": 16_384, "TT": 16_384, "TTM": 1}


def rows(format: TensorFormat, factors: Factors, index: Tensor) -> Tensor:
    """Rows ``A[index]``: index (N,) to (N, J)."""
    program = program_for(format, factors[0], index.shape[0])
    return format.rows(factors, index) if program is None else _run(program, format, factors, index)


def can_pool(
    format: TensorFormat, like: Tensor, index: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str
) -> bool:
    """Whether :func:`pooled_rows` can pool such bags with factors ``like`` this one.

    Weights that need a gradient are left to plain torch, and so is what ``F.embedding_bag`` refuses.
    """
    differentiable = weights is not None and weights.requires_grad and torch.is_grad_enabled()
    accepted = index.dim() == (2 if offsets is None else 1) and (weights is None or mode == "sum")
    return accepted and not differentiable and program_for(format, like, index.numel()) is not None


def pooled_rows(
    format: TensorFormat,
    factors: Factors,
    index: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    *,
    mode: str,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Tensor:
    """Sums or means of bags of rows, (B, J), as ``F.embedding_bag`` pools them, where :func:`can_pool`.

    Bags of a TT or Tucker table are pooled before ``W``.
    """
    bags = bags_of(
        index,
        offsets,
        weights,
        mean=mode == "mean",
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
        dtype=factors[0].dtype,
    )
    program = program_for(format, factors[0], index.numel())
    if program is None:
        raise RuntimeError("no kernel can pool these bags; ask can_pool first, and use F.embedding_bag")
    return _run(program, format, factors, bags.indices, bags)


def program_for(format: TensorFormat, like: Tensor, count: int) -> Program | None:
    """The tables to run a kernel on for ``count`` rows of factors ``like`` this one; ``None`` where torch must do."""
    if torch.compiler.is_exporting() or not usable(like) or torch.are_deterministic_algorithms_enabled():
        return None
    if count < LEAST_ROWS[format.name]:
        return None
    return best_program(format.name, format.inputs.dims, format.outputs.dims, format.ranks, planned_size(count))


def _run(program: Program, format: TensorFormat, factors: Factors, index: Tensor, bags: Bags | None = None) -> Tensor:
    """Form the tables, and run the kernel of the format on them."""
    tables = [recipe.form(factors) for recipe in program.tables]
    weight = None if program.weight is None else program.weight.form(factors)
    pooling = (None, None, 0) if bags is None else (bags.owner, bags.scale, bags.total)
    three = (*tables, *(None,) * (3 - len(tables)))
    result: Tensor
    if format.name == "CP":
        result = product_rows(index, *three, weight, program.places, *pooling)
    else:
        order = _sorted_by(index, *program.places[2:4])
        result = chain_rows(index, order, *three, program.places, *pooling)
        result = result if weight is None else result @ weight
    return result[:, : format.outputs.size]


def _sorted_by(index: Tensor, stride: int, size: int) -> Tensor:
    """The order of rows that sorts them by the middle table's row."""
    key = index.div(stride, rounding_mode="floor").remainder(size)
    # a sort takes one pass over its keys for every byte they have
    return key.to(torch.int16 if size < 2**15 else torch.int32).argsort(stable=True)
