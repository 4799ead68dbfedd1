"""The paper's definitions of the four formats, written out naively: the truth the formats are held to.

Nothing here uses the formats' own letters, rank groups or contraction.
"""

import math

import numpy as np
import torch
from hypothesis import strategies as st

from rankfold.formats import CP, FORMATS, TensorTrain, TensorTrainMatrix, Tucker
from rankfold.shapes import Folding

NAMES = [kind.name for kind in FORMATS]
KINDS = dict(zip(NAMES, FORMATS, strict=True))


def entry(format, factors, i, j):
    """One entry ``a_{i_1…i_p j_1…j_q}`` from NumPy factors, by the formula of its format."""
    modes = (*i, *j)
    if isinstance(format, CP):  # Σ_r Π_n u^(n)[i_n, r]
        return sum(math.prod(u[k, r] for u, k in zip(factors, modes, strict=True)) for r in range(format.ranks[0]))
    if isinstance(format, Tucker):  # Σ g[r_1, …, r_d] Π_n u^(n)[i_n, r_n]
        *matrices, core = factors
        return sum(
            core[ranks] * math.prod(u[k, r] for u, k, r in zip(matrices, modes, ranks, strict=True))
            for ranks in np.ndindex(core.shape)
        )
    product = np.ones((1, 1))
    if isinstance(format, TensorTrain):  # G^(1)[:, i_1, :] ⋯ G^(d)[:, i_d, :]
        for core, k in zip(factors, modes, strict=True):
            product = product @ core[:, k, :]
    else:  # G^(1)[:, i_1, j_1, :] ⋯ G^(d)[:, i_d, j_d, :]
        for core, k, m in zip(factors, i, j, strict=True):
            product = product @ core[:, k, m, :]
    return product.item()


def entrywise(format, factors):
    """The matrix A (I, J) entry by entry, in float64."""
    arrays = [factor.detach().double().numpy() for factor in factors]
    rows, columns = list(np.ndindex(format.inputs.dims)), list(np.ndindex(format.outputs.dims))
    matrix = torch.tensor([[entry(format, arrays, i, j) for j in columns] for i in rows], dtype=torch.float64)
    return matrix[: format.inputs.size, : format.outputs.size]


def dense(format, factors):
    """The matrix A (I, J), differentiable and fast; ``entrywise`` is its own truth."""
    if isinstance(format, CP):
        tensor = sum(_outer([u[:, r] for u in factors]) for r in range(format.ranks[0]))
    elif isinstance(format, Tucker):
        *matrices, tensor = factors
        for u in matrices:  # always the first axis: what is done moves to the end
            tensor = torch.tensordot(tensor, u, dims=([0], [1]))
    else:
        tensor = factors[0][0]
        for core in factors[1:]:
            tensor = torch.tensordot(tensor, core, dims=1)
        tensor = tensor[..., 0]
    if isinstance(format, TensorTrainMatrix):
        d = len(factors)
        tensor = tensor.permute([2 * n for n in range(d)] + [2 * n + 1 for n in range(d)])
    matrix = tensor.reshape(math.prod(format.inputs.dims), math.prod(format.outputs.dims))
    return matrix[: format.inputs.size, : format.outputs.size]


def _outer(vectors):
    product = vectors[0]
    for vector in vectors[1:]:
        product = product[..., None] * vector
    return product


@st.composite
def foldings(draw, num_modes, max_size):
    """Modes from 1 up, often padded, of at most ``max_size`` entries."""
    dims, room = [], max_size
    for _ in range(num_modes):
        dims.append(draw(st.integers(1, min(5, room))))
        room //= dims[-1]
    dims = draw(st.permutations(dims))
    padded = math.prod(dims)
    return Folding(draw(st.integers(-(-padded // 2), padded)), tuple(dims))


@st.composite
def formats(draw, name, max_order=10, max_size=40, max_core=2048):
    """A format of total order 2 to ``max_order``, at ranks that may well exceed the useful ones."""
    ttm = name == "TTM"
    p = draw(st.integers(2 if ttm else 1, max_order // 2))
    q = p if ttm else draw(st.integers(1, max_order // 2))
    inputs, outputs = draw(foldings(p, max_size)), draw(foldings(q, max_size))
    count, room, ranks = KINDS[name].num_ranks(inputs, outputs), max_core, []
    for _ in range(count):
        ranks.append(draw(st.integers(1, min(8, room))))
        if name == "Tucker":
            room //= ranks[-1]
    return KINDS[name](inputs, outputs, tuple(ranks))


def example(name):
    """One small format of each kind, with padding on both sides and unequal ranks."""
    inputs, outputs = Folding(11, (3, 4)), Folding(5, (2, 3))
    ranks = {"CP": (3,), "Tucker": (2, 3, 2, 3), "TT": (3, 4, 2), "TTM": (4,)}[name]
    return KINDS[name](inputs, outputs, ranks)


def random_factors(format, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in format.factor_shapes]
