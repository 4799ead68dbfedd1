"""Ranks that a better choice of factors shows to be empty.

The same weight has many factorizations, and training finds any of them. Five directions spread over ten
columns look like ten live ranks, and no prior on single columns pulls them together within a training run.
Two changes of the factors do:

- A rank between two factors (Tucker, TT, TTM) may take any basis: ``A = Σ_k L_k ⊗ R_k`` stays the same when
  ``L`` becomes ``L M`` and ``R`` becomes ``R M⁻ᵀ``. It takes the singular basis, in which a redundant direction has
  no signal.
- A component of a CP format that others can stand for, as it is parallel to one or lies between several, is
  absorbed: the nearest ones are fitted to their sum with it, and it becomes empty, if that changes the weight by less
  than its own noise. The smallest ones are tried first, as long as all such changes of one moment together come to a
  small share of the weight, and do not more than double its variance.

Nothing is cut here: an empty rank dies by itself, and the pruning rule finds it. All is computed on the CPU in
float64, so that processes that train one model together take the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.contraction import contract
from rankfold.formats.base import OTHER_RANK, RANK, RankGroup, TensorFormat
from rankfold.moments import sum_of_slices
from rankfold.posterior import GaussianPosterior
from rankfold.pruning.optimizer_state import cut_state

# At most so many components absorb one, and so many sweeps of alternating least squares find how. Where 8 were planted
# in layers with room for 30, just these were found in none of 8 trainings with 2 to absorb, in 4 with 8, in 7 with 16.
_NEIGHBOURS, _SWEEPS = 16, 20
# What a weight loses at one moment when components are absorbed, as a share of its squared norm, is at most about this.
_LARGEST_LOSS = 0.03
# Singular values are kept away from 0 by this share of the largest.
_SMALLEST_SHARE = 1e-6

Arrays = list[Tensor]


@torch.no_grad()
def simplify_(
    tensor: BayesianTensor, optimizers: Sequence[Optimizer] = (), followers: Sequence[BayesianTensor] = ()
) -> bool:
    """Change the factors of a Bayesian tensor so that redundant ranks become empty; whether anything changed.

    Frozen factors stay what they are: their owner wants that, and nothing would train them afterwards.

    Args:
        optimizers: their state is averaged over a rank whose basis has changed.
        followers: the same tensor in averaged copies of the model, changed in the same way.
    """
    if not isinstance(tensor.factors, GaussianPosterior) or not all(p.requires_grad for p in tensor.parameters()):
        return False
    changed = False
    for group in tensor.format.rank_groups:
        change = _singular_basis(tensor, group) if _has_bases(group) else _absorption(tensor, group)
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


def _singular_basis(tensor: BayesianTensor, group: RankGroup) -> list[Tensor] | None:
    """``M`` and ``M⁻ᵀ`` for the two axes of the group; ``None`` of a weight that is zero, where all bases are alike."""
    means, variances = _moments(tensor)
    if not all(bool(mean.any()) for mean in means):
        return None
    sides = _sides(tensor.format, group)
    grams = []
    for (factor, axis), side in zip(group.axes, sides, strict=True):
        gram = _gram(tensor.format, means, side, group)
        # noise of this factor, carried to the whole side: E[LᵀL] = μ-part + diag(Σσ²) · ‖side‖² / ‖factor‖²
        noise = sum_of_slices([(variances[factor], axis)]) * gram.trace() / means[factor].square().sum()
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


def _absorption(tensor: BayesianTensor, group: RankGroup) -> list[Tensor] | None:
    """For every axis the matrix (R, R) by which components absorb others, if any can be absorbed."""
    means, variances = _moments(tensor)
    columns = [means[factor].movedim(axis, -1).flatten(0, -2) for factor, axis in group.axes]  # A_n, (I_n, R)
    noise = torch.stack([sum_of_slices([(variances[factor], axis)]) for factor, axis in group.axes])  # (modes, R)
    grams = torch.stack([matrix.mT @ matrix for matrix in columns])  # A_nᵀ A_n, (modes, R, R)
    power = grams.diagonal(dim1=1, dim2=2)
    limits = _spread(power, noise)
    left = _LARGEST_LOSS * float(grams.prod(0).sum())  # of ‖A‖² = Σ_kl Π_n (A_nᵀ A_n)_kl
    room = float(limits.sum())  # the variance of the whole weight, and what may be added to it
    alive = (power > noise).all(0)
    change = torch.eye(group.size, dtype=torch.float64, device=grams.device).repeat(len(columns), 1, 1)
    ordered = [k for k in power.prod(0).argsort().tolist() if alive[k]]
    fits = _fits(grams, [_with_neighbours(grams, k, alive) for k in ordered])
    touched: set[int] = set()
    for small in ordered:
        chosen = _with_neighbours(grams, small, alive)
        if not touched.isdisjoint(chosen) or tuple(chosen) not in fits:  # absorbing others has changed something
            fits |= _fits(grams, [chosen])
        weights, loss = fits[tuple(chosen)]
        if loss >= min(float(limits[small]), left):
            continue
        growth = _growth(grams[:, chosen][:, :, chosen], noise[:, chosen], weights)
        if growth >= room:
            continue
        left -= loss
        room -= growth
        alive[small] = False
        touched |= set(chosen)
        for matrices in (change, grams, grams.mT):
            _combine_(matrices, chosen, weights)
    return list(change) if touched else None


def _spread(power: Tensor, noise: Tensor) -> Tensor:
    """``Π_n (‖μ_n‖² + Σσ²_n) − Π_n ‖μ_n‖²``: the variance of all entries of every component (R,)."""
    return (power + noise).prod(0) - power.prod(0)


def _growth(grams: Tensor, noise: Tensor, weights: Tensor) -> float:
    """By how much the variance grows of components of which the last is absorbed."""
    power = (weights.mT @ grams @ weights).diagonal(dim1=1, dim2=2)
    before = _spread(grams.diagonal(dim1=1, dim2=2), noise)
    return float(_spread(F.pad(power, (0, 1)), noise).sum() - before.sum())


def _combine_(matrices: Tensor, chosen: list[int], weights: Tensor) -> None:
    """Put combinations of the chosen columns of matrices (modes, M, R) in their place; the last one becomes empty."""
    matrices[:, :, chosen] = matrices[:, :, chosen] @ F.pad(weights, (0, 1))


def _with_neighbours(grams: Tensor, small: int, alive: Tensor) -> list[int]:
    """The live components whose directions are nearest to that of one of them, and that one at the end."""
    sizes = grams.diagonal(dim1=1, dim2=2).sqrt()  # (modes, R)
    overlap = (grams[:, small] / (sizes * sizes[:, small, None])).nan_to_num().prod(0).abs() * alive
    overlap[small] = 0.0
    return [*(k for k in overlap.topk(min(_NEIGHBOURS, len(overlap))).indices.tolist() if overlap[k] > 0), small]


def _fits(grams: Tensor, choices: list[list[int]]) -> dict[tuple[int, ...], tuple[Tensor, float]]:
    """How the last component of each choice is best absorbed by the others, and what is lost of it."""
    found = {tuple(chosen): (grams.new_empty(0), math.inf) for chosen in choices}
    for size in {len(chosen) for chosen in choices} - {1}:
        some = torch.tensor([c for c in choices if len(c) == size], device=grams.device)  # (B, K + 1)
        blocks = grams[:, some[:, :, None], some[:, None, :]].movedim(0, 1)  # (B, modes, K + 1, K + 1)
        weights, distances = _fit(blocks)
        found |= {tuple(c): (w, d) for c, w, d in zip(some.tolist(), weights, distances.tolist(), strict=True)}
    return found


def _fit(grams: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (B, modes, K + 1, K) of K components near the sum of K + 1, and how far they are from it, squared (B,).

    They are found by alternating least squares from the first K: the components ``X_n = A_n W_n`` have
    ``W_n = Π_{m≠n} A_mᵀ X_m · (Π_{m≠n} X_mᵀ X_m)⁻¹``, so all of it happens in the Gram matrices ``A_nᵀ A_n``.
    """
    count, modes, size, _ = grams.shape
    weights = torch.eye(size, dtype=torch.float64, device=grams.device)[:, :-1].repeat(count, modes, 1, 1)
    for _ in range(_SWEEPS):
        for n in range(modes):
            others = [m for m in range(modes) if m != n]
            crossed, inner = _products(grams[:, others], weights[:, others])
            weights[:, n] = crossed @ torch.linalg.pinv(inner, hermitian=True)
    # ‖A − X‖² = ‖A‖² − 2 ⟨A, X⟩ + ‖X‖²
    crossed, inner = _products(grams, weights)
    distances = grams.prod(1).sum((1, 2)) - 2.0 * crossed.sum((1, 2)) + inner.sum((1, 2))
    return _balanced(grams, weights), distances


def _products(grams: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """``Π_m A_mᵀ X_m`` (B, K + 1, K) and ``Π_m X_mᵀ X_m`` (B, K, K)."""
    crossed = grams @ weights
    return crossed.prod(1), (weights.mT @ crossed).prod(1)


def _balanced(grams: Tensor, weights: Tensor) -> Tensor:
    """The same components, their sizes spread over the modes as before."""
    before = grams.diagonal(dim1=2, dim2=3)[:, :, :-1].sqrt()  # (B, modes, K)
    now = (weights.mT @ grams @ weights).diagonal(dim1=2, dim2=3).sqrt()
    growth = (now.prod(1) / before.prod(1)) ** (1.0 / grams.shape[1])
    return weights * (before * growth[:, None] / now).nan_to_num()[:, :, None]


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
    """Multiply the means along each axis of the group with its matrix. Components of CP keep their spread."""
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
