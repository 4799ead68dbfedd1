"""TT-SVD of a matrix too large to copy: its first mode is taken off block by block.

A table of 10,000,000 × 128 entries takes 5 GB, and the plain decomposition several times as much again. Here the
matrix is read twice in blocks. The first time adds up the Gram matrix of its first unfolding, which has the left
singular vectors that TT-SVD needs; the second time projects on them. What is left is smaller by the first mode
over the first rank, and goes on in memory.

Singular values below 1e-8 of the largest are lost to the squares of the Gram matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rankfold.shapes import Folding

Pairs = Sequence[tuple[int, int]]

# Entries of a block, in float64: 256 MB.
_BLOCK_ENTRIES = 1 << 25


def blockwise_tt_svd(
    matrix: Tensor, inputs: Folding, pairs: Pairs, ranks: Sequence[int], block_entries: int = _BLOCK_ENTRIES
) -> list[Tensor]:
    """Cores (R_{n-1}, I_n, J_n, R_n) in float64 of the quasi-best train, as TT-SVD of the whole matrix gives them.

    Args:
        matrix: (I, J), on any device.
        inputs: how its rows are folded; padded rows count as zero, and so do padded columns.
        pairs: ``(I_n, J_n)`` of every core; the products of the ``I_n`` are those of ``inputs.dims`` in their order.
            A tensor train has cores ``(I_n, 1)`` and then ``(1, J_n)``.
        ranks: one less than there are pairs.
    """
    if math.prod(i for i, _ in pairs) != inputs.padded_size or len(ranks) != len(pairs) - 1:
        raise ValueError(
            f"pairs must fold {inputs.padded_size} rows and have one rank between each two, got pairs {list(pairs)} "
            f"and ranks {list(ranks)}"
        )
    (i, j), rank = pairs[0], ranks[0]
    gram = matrix.new_zeros(i * j, i * j, dtype=torch.float64)
    for block, _ in _blocks(matrix, pairs, block_entries):
        gram.addmm_(block, block.T)
    columns = _leading_vectors(gram, rank)  # (I_1 J_1, R_1)
    remainder = matrix.new_empty(rank, _rest(pairs), math.prod(j for _, j in pairs[1:]), dtype=torch.float64)
    for block, rows in _blocks(matrix, pairs, block_entries):
        remainder[:, rows] = (columns.T @ block).reshape(rank, -1, remainder.shape[2])
    return [columns.reshape(1, i, j, rank), *_in_memory(_interleaved(remainder, pairs[1:]), pairs[1:], ranks[1:])]


def _blocks(matrix: Tensor, pairs: Pairs, block_entries: int) -> Iterator[tuple[Tensor, slice]]:
    """The first unfolding (I_1 J_1, I_2 ⋯ I_d · J_2 ⋯ J_d) by ranges of the other input modes together."""
    (i, j), rest = pairs[0], _rest(pairs)
    num_columns = math.prod(columns for _, columns in pairs)
    step = max(1, block_entries // (i * num_columns))
    first_rows = rest * torch.arange(i, device=matrix.device)[:, None]
    for start in range(0, rest, step):
        rows = slice(start, min(start + step, rest))
        index = first_rows + torch.arange(rows.start, rows.stop, device=matrix.device)
        block = matrix[index.clamp(max=len(matrix) - 1).reshape(-1)].double()
        block.masked_fill_((index >= len(matrix)).reshape(-1, 1), 0.0)
        block = F.pad(block, (0, num_columns - matrix.shape[1])).reshape(i, index.shape[1], j, -1)
        yield block.transpose(1, 2).reshape(i * j, -1), rows


def _rest(pairs: Pairs) -> int:
    return math.prod(i for i, _ in pairs[1:])


def _interleaved(remainder: Tensor, pairs: Pairs) -> Tensor:
    """(R, I_2 ⋯ I_d, J_2 ⋯ J_d) to (R, I_2 J_2, …, I_d J_d)."""
    count, rank = len(pairs), remainder.shape[0]
    folded = remainder.reshape(rank, *(i for i, _ in pairs), *(j for _, j in pairs))
    order = [axis for n in range(count) for axis in (1 + n, 1 + count + n)]
    return folded.permute(0, *order).reshape(rank, *(i * j for i, j in pairs))


def _in_memory(remainder: Tensor, pairs: Pairs, ranks: Sequence[int]) -> list[Tensor]:
    """The other cores, one truncated SVD by Gram matrices for each bond."""
    cores, left = [], remainder.shape[0]
    for (i, j), rank in zip(pairs[:-1], ranks, strict=True):
        unfolded = remainder.reshape(left * i * j, -1)
        columns = _leading_columns(unfolded, rank)
        cores.append(columns.reshape(left, i, j, rank))
        remainder, left = columns.T @ unfolded, rank
    return [*cores, remainder.reshape(left, *pairs[-1], 1)]


def _leading_columns(unfolded: Tensor, rank: int) -> Tensor:
    """Leading left singular vectors (M, rank) of a matrix (M, K), from the smaller of its two Gram matrices."""
    rows, columns = unfolded.shape
    if rows <= columns:
        return _leading_vectors(unfolded @ unfolded.T, rank)
    # A = U S Vᵀ, so the columns of A V are those of U S
    scaled = unfolded @ _leading_vectors(unfolded.T @ unfolded, rank)
    norms = scaled.norm(dim=0)
    usable = norms > 1e-8 * norms.max()
    return torch.where(usable, scaled / torch.where(usable, norms, 1.0), 0.0)


def _leading_vectors(gram: Tensor, rank: int) -> Tensor:
    """Eigenvectors (M, rank) of the largest eigenvalues; those that are only rounding are zero."""
    values, vectors = torch.linalg.eigh(gram)
    kept = min(rank, len(values))
    leading, sizes = vectors[:, -kept:].flip(1), values[-kept:].flip(0)
    leading = torch.where(sizes > 1e-16 * sizes[0].abs(), leading, 0.0)
    return F.pad(leading, (0, rank - kept))
