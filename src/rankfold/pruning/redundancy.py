"""Ranks that a better choice of factors shows to be empty.

The same weight has many factorizations, and training finds any of them. Five directions spread over ten
columns look like ten live ranks, and no prior on single columns pulls them together within a training run.
Two changes of the factors do:

- A rank between two factors (Tucker, TT, TTM) may take any basis: ``A = Σ_k L_k ⊗ R_k`` stays the same when
  ``L`` becomes ``L M`` and ``R`` becomes ``R M⁻ᵀ``. It takes the singular basis, in which a redundant direction has
  no signal.
- Components of a CP format that are nearly parallel add up to nearly one component: one takes the sum, the
  other nothing, if that changes the weight by less than the noise of the posterior.

Nothing is cut here: an empty rank dies by itself, and the pruning rule finds it. All is computed on the CPU in
float64, so that processes that train one model together take the same decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.contraction import contract
from rankfold.formats.base import OTHER_RANK, RANK, RankGroup, TensorFormat
from rankfold.posterior import GaussianPosterior
from rankfold.pruning.optimizer_state import cut_state

# Components that overlap less cannot be one within their noise; it only saves work.
_LEAST_OVERLAP = 0.5
_POWER_ITERATIONS = 30
# Singular values are kept away from 0 by this share of the largest.
_SMALLEST_SHARE = 1e-6

Arrays = list[Tensor]


@torch.no_grad()
def simplify_(
    tensor: BayesianTensor, optimizers: Sequence[Optimizer] = (), followers: Sequence[BayesianTensor] = ()
) -> bool:
    """Change the factors of a Bayesian tensor so that redundant ranks become empty; whether anything changed.

    Args:
        optimizers: their state is averaged over a rank whose basis has changed.
        followers: the same tensor in averaged copies of the model, changed in the same way.
    """
    if not isinstance(tensor.factors, GaussianPosterior):
        return False
    changed = False
    for group in tensor.format.rank_groups:
        change = _singular_basis(tensor, group) if _has_bases(group) else _merging(tensor, group)
        if change is not None:
            changed = True
            for each in (tensor, *followers):
                _transform(each, group, change)
            if _has_bases(group):
                _average_state(tensor, group, optimizers)
    if changed:
        tensor.update_variance(1.0)
    return changed


def _has_bases(group: RankGroup) -> bool:
    """Whether the rank lies between two factors alone, where every basis gives the same weight."""
    return len(group.axes) == 2


# A rank between two factors --------------------------------------------------------------------------


def _singular_basis(tensor: BayesianTensor, group: RankGroup) -> list[Tensor]:
    """``M`` and ``M⁻ᵀ`` for the two axes of the group."""
    means, variances = _moments(tensor)
    sides = _sides(tensor.format, group)
    grams = []
    for (factor, axis), side in zip(group.axes, sides, strict=True):
        gram = _gram(tensor.format, means, side, group)
        # noise of this factor, carried to the whole side: E[LᵀL] = μ-part + diag(Σσ²) · ‖side‖² / ‖factor‖²
        noise = _per_slice(variances[factor], axis) * gram.trace() / means[factor].square().sum()
        grams.append(gram + noise.diag())
    (c, c_inverse), (d, _) = (_root(gram) for gram in grams)
    # LᵀL = C Cᵀ and RᵀR = D Dᵀ, so L = Q_L Cᵀ, R = Q_R Dᵀ and A = Q_L (Cᵀ D) Q_Rᵀ, and with Cᵀ D = U S Vᵀ
    u, s, _ = torch.linalg.svd(c.mT @ d)
    root = s.clamp(min=float(s[0]) * _SMALLEST_SHARE).sqrt()
    # L M = Q_L U S^½,   M = C⁻ᵀ U S^½
    basis, inverse = (c_inverse.mT @ u) * root, (u.mT @ c.mT) / root[:, None]
    # the factor on the left keeps its size
    left, axis = group.axes[0]
    scale = means[left].norm() / _along(means[left], basis, axis).norm()
    return [basis * scale, inverse.mT / scale]


def _root(gram: Tensor) -> tuple[Tensor, Tensor]:
    """``C`` with ``C Cᵀ`` = gram, and its inverse."""
    values, vectors = torch.linalg.eigh(gram)
    roots = values.clamp(min=float(values[-1]) * _SMALLEST_SHARE**2).sqrt()
    return vectors * roots, vectors.mT / roots[:, None]


def _sides(format: TensorFormat, group: RankGroup) -> list[list[int]]:
    """The factors on either side of a rank: those reached from each of its two without crossing it."""
    letter = _letter(format, group)
    ranks = {_letter(format, other) for other in format.rank_groups} - {letter}
    sides = []
    for start, _ in group.axes:
        side, reached = {start}, set(format.subscripts[start]) & ranks
        while grown := {
            n for n, letters in enumerate(format.subscripts) if n not in side and not reached.isdisjoint(letters)
        }:
            side |= grown
            reached |= {x for n in grown for x in format.subscripts[n]} & ranks
        sides.append(sorted(side))
    return sides


def _gram(format: TensorFormat, means: Arrays, side: list[int], group: RankGroup) -> Tensor:
    """``LᵀL`` (R, R) of all factors on one side: the product over all modes of two copies of them."""
    letter = _letter(format, group)
    twin = str.maketrans(RANK, OTHER_RANK)
    terms = [format.subscripts[n] for n in side]
    equation = f"{','.join([*terms, *(term.translate(twin) for term in terms)])}->{letter}{letter.translate(twin)}"
    return contract(equation, *[means[n] for n in side], *[means[n] for n in side])


def _letter(format: TensorFormat, group: RankGroup) -> str:
    factor, axis = group.axes[0]
    return format.subscripts[factor][axis]


# Components of CP -------------------------------------------------------------------------------------


def _merging(tensor: BayesianTensor, group: RankGroup) -> list[Tensor] | None:
    """For every axis the matrix (R, R) that merges nearly parallel components, if there are any."""
    means, variances = _moments(tensor)
    columns = [means[factor].movedim(axis, -1).flatten(0, -2) for factor, axis in group.axes]  # (I_n, R) each
    noise = [_per_slice(variances[factor], axis) for factor, axis in group.axes]
    change = [torch.eye(group.size, dtype=torch.float64) for _ in columns]
    merged: set[int] = set()
    for large, small in _parallel_pairs(columns, noise):
        if merged.isdisjoint((large, small)):
            weights = _merged([matrix[:, [large, small]] for matrix in columns], [n[[large, small]] for n in noise])
            if weights is not None:
                merged |= {large, small}
                for matrix, weight in zip(change, weights, strict=True):
                    matrix[[large, small], large] = weight
                    matrix[[large, small], small] = 0.0
    return change if merged else None


def _parallel_pairs(columns: Arrays, noise: Arrays) -> Iterator[tuple[int, int]]:
    """Pairs of components above their noise, the larger one first, by how parallel they are."""
    power = [matrix.square().sum(0) for matrix in columns]
    alive = torch.stack([p > n for p, n in zip(power, noise, strict=True)]).all(0)
    size = torch.stack(power).prod(0)
    cosines = [(m / m.norm(dim=0)).nan_to_num() for m in columns]
    overlap = torch.stack([m.mT @ m for m in cosines]).prod(0).abs()
    order = overlap.triu(1).flatten().argsort(descending=True).tolist()
    for place in order:
        pair = divmod(place, len(size))
        if overlap[pair] < _LEAST_OVERLAP:
            return
        if bool(alive[pair[0]] & alive[pair[1]]):
            yield (pair[0], pair[1]) if size[pair[0]] >= size[pair[1]] else (pair[1], pair[0])


def _merged(pair: Arrays, noise: Arrays) -> list[Tensor] | None:
    """Weights (2,) per mode of the component nearest to the sum of two, if it is so within their noise.

    The nearest component ``x_1 ⊗ x_2 ⊗ …`` is found by power iteration, ``x_n ∝ Σ_k a_kn Π_{m≠n} ⟨a_km, x_m⟩``, so
    it is a combination of the two in every mode: all of it happens in their Gram matrices.
    """
    grams = [matrix.mT @ matrix for matrix in pair]  # (2, 2) each
    weights = [torch.tensor([1.0, 0.0], dtype=torch.float64) / gram[0, 0].sqrt() for gram in grams]
    size = torch.zeros((), dtype=torch.float64)
    for _ in range(_POWER_ITERATIONS):
        for n, gram in enumerate(grams):
            inner = torch.stack([g @ w for m, (g, w) in enumerate(zip(grams, weights, strict=True)) if m != n])
            new = inner.prod(0)
            size = (new @ gram @ new).sqrt()
            weights[n] = new / size
    whole = torch.stack(grams).prod(0).sum()  # ‖a_1 + a_2‖²
    power = torch.stack([gram.diagonal() for gram in grams])
    # Σ_k Π_n (‖μ_kn‖² + Σσ²_kn) − Π_n ‖μ_kn‖²: the variance of all entries of both components
    variance = ((power + torch.stack(noise)).prod(0) - power.prod(0)).sum()
    if whole - size.square() >= variance:
        return None
    # spread the size over the modes as the larger component does
    growth = (size / power[:, 0].prod().sqrt()) ** (1.0 / len(grams))
    return [w * gram[0, 0].sqrt() * growth for w, gram in zip(weights, grams, strict=True)]


# Both ---------------------------------------------------------------------------------------------------


def _posterior(tensor: BayesianTensor) -> GaussianPosterior:
    """That of a tensor that was found to be Bayesian."""
    assert isinstance(tensor.factors, GaussianPosterior)
    return tensor.factors


def _moments(tensor: BayesianTensor) -> tuple[Arrays, Arrays]:
    """Means and variances of all factors, in float64 on the CPU."""
    posterior = _posterior(tensor)
    means = [p.detach().double().cpu() for p in posterior.mean]
    return means, [(2.0 * p.detach().double().cpu()).exp() for p in posterior.log_std]


def _transform(tensor: BayesianTensor, group: RankGroup, change: Sequence[Tensor]) -> None:
    """Multiply the means along each axis of the group with its matrix. Merged components keep their spread."""
    posterior = _posterior(tensor)
    means, variances = _moments(tensor)
    for (factor, axis), matrix in zip(group.axes, change, strict=True):
        posterior.mean[factor].copy_(_along(means[factor], matrix, axis))
        if _has_bases(group):  # Var[Σ_k M_kl u_k] = Σ_k M_kl² σ_k²
            posterior.log_std[factor].copy_(0.5 * _along(variances[factor], matrix.square(), axis).log())


def _average_state(tensor: BayesianTensor, group: RankGroup, optimizers: Sequence[Optimizer]) -> None:
    """What an optimizer knows of single columns is void; their average holds in every basis."""
    posterior = _posterior(tensor)
    for factor, axis in group.axes:
        for parameter in (posterior.mean[factor], posterior.log_std[factor]):
            cut_state(optimizers, parameter, partial(_averaged, axis=axis))


def _averaged(state: Tensor, axis: int) -> Tensor:
    return state.mean(axis, keepdim=True).expand_as(state).clone()


def _along(array: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """``Σ_k array[…, k, …] matrix[k, l]``, with l in the place of k."""
    product: Tensor = torch.tensordot(array, matrix, dims=([axis], [0]))
    return product.movedim(-1, axis)


def _per_slice(array: Tensor, axis: int) -> Tensor:
    """The sum over all axes but one, (R,)."""
    return array.movedim(axis, 0).flatten(1).sum(1)
