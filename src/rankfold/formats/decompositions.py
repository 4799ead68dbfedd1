"""Decomposing a dense tensor: TT-SVD, HOOI and CP by alternating least squares.

They take and give float64, and return factors of exactly the ranks asked for: ranks the tensor cannot use
are filled with zeros.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rankfold.contraction import contract

_LETTERS = "abcdefghijklmnop"
# So many sweeps at most, and none more once one gains less than this share, of the core or of the error.
_HOOI_SWEEPS, _HOOI_GAIN = 100, 1e-6
_ALS_SWEEPS, _ALS_GAIN = 200, 1e-5


def tt_svd(tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """Cores (R_{n-1}, I_n, R_n) of the quasi-best tensor train: one truncated SVD per bond."""
    dims, cores, left, remainder = tensor.shape, [], 1, tensor
    for n, rank in enumerate(ranks):
        u, s, vt = torch.linalg.svd(remainder.reshape(left * dims[n], -1), full_matrices=False)
        kept = min(rank, s.numel())
        cores.append(F.pad(u[:, :kept], (0, rank - kept)).reshape(left, dims[n], rank))
        remainder = F.pad(s[:kept, None] * vt[:kept], (0, 0, 0, rank - kept))
        left = rank
    return [*cores, remainder.reshape(left, dims[-1], 1)]


def hooi(tensor: Tensor, ranks: Sequence[int]) -> list[Tensor]:
    """Tucker factors (I_n, R_n) and core: truncated HOSVD, refined by orthogonal iteration."""
    order = tensor.dim()
    factors = [_leading_columns(tensor, n, ranks[n]) for n in range(order)]
    core = _project(tensor, factors)
    for _ in range(_HOOI_SWEEPS):
        for n in range(order):
            factors[n] = _leading_columns(_project(tensor, factors, skip=n), n, ranks[n])
        # ‖A − Â‖² = ‖A‖² − ‖G‖² with orthonormal columns: the error falls as the core grows
        last_core, core = core, _project(tensor, factors)
        if core.square().sum() <= (1.0 + _HOOI_GAIN) * last_core.square().sum():
            break
    return [*factors, core]


def cp_als(tensor: Tensor, rank: int) -> list[Tensor]:
    """CP factors (I_n, R) by alternating least squares, with a vanishing ridge for stability."""
    order = tensor.dim()
    generator = torch.Generator().manual_seed(0)
    kept = min(rank, tensor.numel() // max(tensor.shape))
    factors = [_cp_start(tensor, n, kept, generator) for n in range(order)]
    squared_norm, last_error = tensor.square().sum(), torch.inf
    for _ in range(_ALS_SWEEPS):
        for n in range(order):
            target = _khatri_rao_product(tensor, factors, n)  # (I_n, R)
            gram = _gram_product([f for m, f in enumerate(factors) if m != n])  # (R, R)
            gram.diagonal().add_(1e-10 * gram.diagonal().mean() + 1e-200)
            factors[n] = torch.linalg.solve(gram, target, left=False)
        # ‖A − Â‖² = ‖A‖² − 2⟨A, Â⟩ + ‖Â‖²; the last solve gives ⟨A, Â⟩ for free
        error = squared_norm - 2 * (target * factors[-1]).sum() + _gram_product(factors).sum()
        factors = _equal_columns(factors)
        # enough once a sweep takes off little of the error, or rounding is all that is left of it
        if last_error - float(error) <= _ALS_GAIN * float(error) + 1e-14 * float(squared_norm):
            break
        last_error = float(error)
    return [F.pad(factor, (0, rank - kept)) for factor in factors]


def _leading_columns(tensor: Tensor, mode: int, rank: int) -> Tensor:
    """The leading left singular vectors of the mode unfolding, filled up with zero columns."""
    unfolded = tensor.movedim(mode, 0).reshape(tensor.shape[mode], -1)
    # the unfolding is mostly wide: the triangle of its LQ factorisation has the same left singular vectors
    triangle = torch.linalg.qr(unfolded.T, mode="r").R.T
    u = torch.linalg.svd(triangle, full_matrices=False).U[:, :rank]
    return F.pad(u, (0, rank - u.shape[1]))


def _project(tensor: Tensor, factors: Sequence[Tensor], skip: int | None = None) -> Tensor:
    """``A ×_n U^(n)ᵀ`` over all modes but ``skip``."""
    for n, factor in enumerate(factors):
        if n != skip:
            tensor = torch.tensordot(tensor, factor, dims=([n], [0])).movedim(-1, n)
    return tensor


def _cp_start(tensor: Tensor, mode: int, rank: int, generator: torch.Generator) -> Tensor:
    """Leading singular vectors of the unfolding, filled up with random columns.

    A little noise on all of them: a term that is orthogonal to the tensor in one mode (to its padding,
    say) would become zero and stay so.
    """
    noise = torch.randn(tensor.shape[mode], rank, generator=generator, dtype=torch.float64, device="cpu")
    start = noise.to(tensor.device) * float(tensor.shape[mode] ** -0.5)
    known = min(rank, tensor.shape[mode])
    start[:, :known] = _leading_columns(tensor, mode, known) + 0.01 * start[:, :known]
    return start


def _khatri_rao_product(tensor: Tensor, factors: Sequence[Tensor], mode: int) -> Tensor:
    """The mode unfolding times the Khatri–Rao product of the other factors, (I_mode, R)."""
    modes = _LETTERS[: tensor.dim()]
    terms = [f"{c}z" for n, c in enumerate(modes) if n != mode]
    others = [f for n, f in enumerate(factors) if n != mode]
    return contract(f"{modes},{','.join(terms)}->{modes[mode]}z", tensor, *others)


def _gram_product(factors: Sequence[Tensor]) -> Tensor:
    """The entrywise product of the Gram matrices ``U^(n)ᵀ U^(n)``, (R, R)."""
    return torch.stack([f.T @ f for f in factors]).prod(0)


def _equal_columns(factors: Sequence[Tensor]) -> list[Tensor]:
    """Give the columns of one rank-1 term the same norm in every factor."""
    norms = torch.stack([f.norm(dim=0).clamp(min=1e-300) for f in factors])  # (d, R)
    common = norms.log().mean(0).exp()
    return [f * (common / n) for f, n in zip(factors, norms, strict=True)]


def balanced(factors: list[Tensor]) -> list[Tensor]:
    """Rescale factors to one common root mean square; their product is unchanged, and stays if it is 0."""
    sizes = torch.stack([factor.square().mean().sqrt() for factor in factors])
    if not sizes.all():
        return factors
    common = sizes.log().mean().exp()
    return [factor * (common / size) for factor, size in zip(factors, sizes, strict=True)]
