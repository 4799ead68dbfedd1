"""Bags of rows, pooled before the factors that all rows share.

A row is a product ``t_i S`` of what belongs to it, ``t_i``, and of factors of the output side, ``S``, that all
rows share. Pooling is linear, so ``S`` can wait until after it::

    Σ_i w_i (t_i S) = (Σ_i w_i t_i) S

With hundreds of rows in a bag, that saves nearly all products with ``S``. A TTM has no such factors.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankfold import kernels
from rankfold.contraction import contract
from rankfold.contraction_order import BATCH
from rankfold.formats import Factors, TensorFormat


def looks_for_repeats(index: Tensor) -> bool:
    """Whether to compute the rows of repeated indices once: on a CPU, outside of compiled code and ``torch.func``.

    How many distinct ones there are, an accelerator would have to wait for.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return index.is_cpu and index.numel() > 0


def pooled_before_outputs(
    format: TensorFormat, factors: Factors, index: Tensor, pool: Callable[[Tensor], Tensor]
) -> Tensor:
    """Bags (B, J) of the rows ``A[index]``, index (N,), where ``pool`` maps any (N, D) to (B, D) linearly."""
    found = kernels.rows_before_weight(format, factors, index)
    if found is not None:
        rows, weight = found
        return (pool(rows) if weight is None else pool(rows) @ weight)[:, : format.outputs.size]
    return _pooled_one_by_one(format, factors, index, pool)


def _pooled_one_by_one(
    format: TensorFormat, factors: Factors, index: Tensor, pool: Callable[[Tensor], Tensor]
) -> Tensor:
    early, late = split(format)
    wanted = set(format.output_letters).union(*(format.subscripts[n] for n in late))
    kept = "".join(dict.fromkeys(c for n in early for c in format.subscripts[n] if c in wanted))
    rows = format.rows_of(early, factors, index, kept)  # (N, …)
    pooled = pool(rows.flatten(1)).unflatten(1, rows.shape[1:])  # (B, …)
    terms = [BATCH + kept, *(format.subscripts[n] for n in late)]
    bags = contract(f"{','.join(terms)}->{BATCH}{format.output_letters}", pooled, *(factors[n] for n in late))
    return format.outputs.unfold(bags)


def split(format: TensorFormat) -> tuple[list[int], list[int]]:
    """The factors that rows need before they are pooled, a Tucker core among them, and those of outputs alone."""
    inputs, outputs = set(format.input_letters), set(format.output_letters)
    terms = list(map(set, format.subscripts))
    late = [n for n, term in enumerate(terms) if term & outputs and not term & inputs]
    return [n for n in range(len(terms)) if n not in late], late
