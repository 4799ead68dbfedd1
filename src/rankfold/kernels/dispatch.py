"""Rows of an embedding table held as factors: by tables where there are rows enough, one by one otherwise.

Few rows are contracted one by one, by :meth:`TensorFormat.rows`. For many rows it pays to contract factors into
tables first, of which a row takes one entry each. On CUDA a Triton kernel does the rest, in float32 and bfloat16,
when Triton is installed, the sizes fit its registers and no deterministic algorithms are asked for: it adds gradients
atomically, in an order that changes from run to run. On a CPU its plain-torch twin does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.contraction import planned_size
from rankfold.formats import Factors, TensorFormat
from rankfold.kernels.chain import chain_rows, sorted_groups
from rankfold.kernels.launch import usable
from rankfold.kernels.pooling import Bags, bags_of
from rankfold.kernels.product import product_rows
from rankfold.kernels.programs import Program, best_program
from rankfold.kernels.tiles import takes_single_rows

# From so many rows on tables are faster, by the type of the device. Forward and backward in ms, with and without them.
# On an H200 in a graph, for 2,048, 8,192 and 16,384 rows, uniform or skewed: TTM 0.05, 0.11; 0.11, 0.31; 0.15, 0.56. TT
# 0.07, 0.11; 0.13, 0.26; 0.15, 0.47, but to form the tables takes the host longer. Tucker 0.18, 0.17; 0.29, 0.43; 0.35,
# 0.78. CP 0.18, 0.11; 0.26, 0.26; 0.40, 0.47, with a twentieth of the memory. On one CPU core, for 2,048 and 65,536
# skewed rows: TT 10, 10; 132, 781. Tucker 22, 30; 450, 1,996. TTM 11, 9; 287, 701. CP is the same. Tucker on two cores,
# for 2,048 and 4,096 uniform rows: 32, 24; 46, 81.
LEAST_ROWS = {
    "cuda": {"CP": 8192, "Tucker": 8192, "TT": 2048, "TTM": 1},
    "cpu": {"Tucker": 2048, "TT": 4096, "TTM": 4096},
}


def rows(format: TensorFormat, factors: Factors, index: Tensor) -> Tensor:
    """Rows ``A[index]``: index (N,) to (N, J)."""
    program = program_for(format, factors[0], index.shape[0])
    return format.rows(factors, index) if program is None else _run(program, format, factors, index)


def rows_before_weight(format: TensorFormat, factors: Factors, index: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """What rows have of their own, T (N, Q), and what all of them share, W (Q, J): ``A[index] = T W``.

    ``W`` is missing in TTM. All of it is, where rows are contracted one by one.
    """
    program = program_for(format, factors[0], index.shape[0])
    if program is None or format.name == "CP":
        return None
    return _chain(program, factors, index), None if program.weight is None else program.weight.form(factors)


def can_pool(
    format: TensorFormat, like: Tensor, index: Tensor, offsets: Tensor | None, weights: Tensor | None, mode: str
) -> bool:
    """Whether :func:`pooled_rows` should pool such bags with factors ``like`` this one, by a kernel.

    Weights that need a gradient are left to plain torch, and so is what ``F.embedding_bag`` refuses. So is a CPU: there
    it is faster to fetch every distinct row once, and pool those.
    """
    differentiable = weights is not None and weights.requires_grad and torch.is_grad_enabled()
    suitable = weights is None or (mode == "sum" and weights.shape == index.shape)
    accepted = suitable and index.dim() == (2 if offsets is None else 1)
    return accepted and not differentiable and usable(like) and program_for(format, like, index.numel()) is not None


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
        raise RuntimeError("no tables can pool these bags; ask can_pool first, and use F.embedding_bag")
    return _run(program, format, factors, bags.indices, bags)


def program_for(format: TensorFormat, like: Tensor, count: int) -> Program | None:
    """The tables to run a kernel on for ``count`` rows of factors ``like`` this one; ``None`` where torch must do."""
    # operators have no gradients by torch.func
    if torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active():
        return None
    least = LEAST_ROWS.get(like.device.type, {}).get(format.name)
    if least is None or count < least:
        return None
    if like.device.type != "cpu" and not usable(like):
        return None
    return best_program(format.name, format.inputs.dims, format.outputs.dims, format.ranks, planned_size(count))


def _run(program: Program, format: TensorFormat, factors: Factors, index: Tensor, bags: Bags | None = None) -> Tensor:
    """Form the tables, and run the kernel of the format on them."""
    weight = None if program.weight is None else program.weight.form(factors)
    if format.name == "CP":
        result = product_rows(index, *_three(program, factors), weight, program.places, *_pooling(bags))
    else:
        result = _chain(program, factors, index, bags)
        result = result if weight is None else result @ weight
    return result if result.shape[1] == format.outputs.size else result[:, : format.outputs.size]


def _chain(program: Program, factors: Factors, index: Tensor, bags: Bags | None = None) -> Tensor:
    """Rows or bags before their product with ``W``, (N, Q)."""
    places, sizes, strides = program.places, program.sizes, program.strides
    group, order = None, None
    if sizes is None or not (usable(factors[0]) and takes_single_rows(sizes, index.shape[0])):
        group, order = sorted_groups(index, places)
    return chain_rows(index, order, group, *_three(program, factors), places, sizes, strides, *_pooling(bags))


def _three(program: Program, factors: Factors) -> tuple[Tensor | None, ...]:
    """The tensors with the entries of the tables, without gaps; ``None`` for missing ones."""
    tables = [recipe.source(factors).contiguous() for recipe in program.tables]
    return (*tables, *(None,) * (3 - len(tables)))


def _pooling(bags: Bags | None) -> tuple[Tensor | None, Tensor | None, int]:
    return (None, None, 0) if bags is None else (bags.owner, bags.scale, bags.total)
