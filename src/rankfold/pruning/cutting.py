"""Cutting dead ranks out of a model, physically.

Factors and λ get smaller, and with them the optimizer's state and any averaged copy of the model.
Parameters keep their identity, so parameter groups, learning-rate schedulers and hooks go on working.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankfold.bayesian_tensor import BayesianTensor, replace_data, tensors_of
from rankfold.health import check_finite
from rankfold.pruning.copies import copies_of, same_in_copies
from rankfold.pruning.optimizer_state import check_state, cut_state
from rankfold.pruning.rules import PruningRule, check_rule, dead_ranks, default_rule
from rankfold.wrapping import warn


class RankCollapseWarning(UserWarning):
    """Every rank of a group is dead: the layer carries nothing, or the KL weighs too much.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", RankCollapseWarning)  # training in here ends at the first one
    """


@dataclass(frozen=True)
class PrunedTensor:
    """What was cut from one tensor.

    ``mean_change`` and ``sample_change`` are ``‖A − A'‖_F / ‖A‖_F`` for the posterior mean and for one
    sample: for inputs without preferred direction, the relative change of the layer's output.
    """

    name: str
    ranks_before: tuple[int, ...]
    ranks_after: tuple[int, ...]
    mean_change: float
    sample_change: float
    collapsed: bool


@dataclass(frozen=True)
class PruneResult:
    """What one pruning did. Shapes have changed: wrap DDP again and capture CUDA graphs again.

    >>> print(PruneResult((PrunedTensor("0.tensor", (8, 8), (5, 3), 1e-4, 2e-3, False),)))
    0.tensor: ranks [8, 8] → [5, 3], output changed by 1.0e-04 (mean), 2.0e-03 (sample)
    """

    tensors: tuple[PrunedTensor, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            f"{t.name}: ranks {list(t.ranks_before)} → {list(t.ranks_after)}, output changed by {t.mean_change:.1e} "
            f"(mean), {t.sample_change:.1e} (sample)" + (", collapsed" if t.collapsed else "")
            for t in self.tensors
        )


def prune_(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] = (),
    *,
    rule: PruningRule | None = None,
    copies: nn.Module | Sequence[nn.Module] = (),
) -> PruneResult | None:
    """Cut the ranks that are dead now out of ``model``, in place.

    During training :class:`~rankfold.RankDetermination` does this when it is due, from averages over
    many steps; call this one after training, or with the paper's rule ``VarianceRule(epsilon)``.

    Args:
        optimizer: the optimizer or optimizers whose state is to be cut as well.
        rule: which ranks are dead; by default the information rule for Bayesian factors and the
            norm rule for MAP.
        copies: an averaged copy of the model (EMA), or several, to be cut in the same way.

    Returns:
        What was cut, or ``None`` if nothing was.

    >>> import rankfold as rf
    >>> layer = rf.Linear(8, 6, config=rf.CP(max_rank=3))
    >>> layer.tensor.factors.mean[0].data[:, 1] = 0.0  # an empty rank
    >>> prune_(layer, rule=rf.RelativeNormRule()).tensors[0].ranks_after
    (2,)
    """
    check_rule(rule, tensors_of(model))
    optimizers = optimizers_of(optimizer)
    check_finite(model, "prune")
    _check_known(model, optimizers)
    dead = dead_ranks(tensors_of(model), rule)
    return cut_dead_ranks(model, dead, optimizers, copies=copies_of(model, copies), rule=rule)


def cut_dead_ranks(
    model: nn.Module,
    dead: Mapping[str, Sequence[Tensor]],
    optimizers: Sequence[Optimizer] = (),
    *,
    copies: Sequence[nn.Module] = (),
    rule: PruningRule | None = None,
) -> PruneResult | None:
    """Cut the ranks marked in ``dead``: for each tensor's name, one boolean tensor per rank group.

    Everything is checked before anything is changed. A group whose ranks are all dead keeps the one
    that carries most, with one warning for all tensors that have such a group.
    """
    tensors = tensors_of(model)
    chosen = {name: tensors[name] for name, groups in dead.items() if any(bool(g.any()) for g in groups)}
    followers = same_in_copies(chosen, copies)
    check_state(optimizers, chosen.values())
    collapsed = {name for name in chosen if any(bool(group.all()) for group in dead[name])}
    _warn_of_collapse({name: t for name, t in chosen.items() if name in collapsed and not t.collapsed}, dead, rule)
    done = []
    for name, tensor in chosen.items():
        for other in (tensor, *followers[name]):
            other.collapsed = name in collapsed
        keep = _kept_ranks(tensor, dead[name], rule or default_rule(tensor))
        before = tensor.format.ranks
        if all(len(k) == rank for k, rank in zip(keep, before, strict=True)):
            continue
        changes = _relative_changes(tensor, keep)
        for follower in followers[name]:
            _cut(follower, keep, ())
        _cut(tensor, keep, optimizers)
        done.append(PrunedTensor(name, before, tensor.format.ranks, *changes, name in collapsed))
    return PruneResult(tuple(done)) if done else None


def check_cut(
    tensors: Mapping[str, BayesianTensor], optimizers: Sequence[Optimizer], copies: Sequence[nn.Module]
) -> None:
    """Refuse optimizers and averaged copies now with which a cut would fail, much later."""
    check_state(optimizers, tensors.values())
    same_in_copies({name: tensor for name, tensor in tensors.items() if tensor.has_prior}, copies)


def optimizers_of(optimizer: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """One optimizer or several, as a list."""
    several = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    if not isinstance(several, Sequence) or not all(isinstance(entry, Optimizer) for entry in several):
        raise TypeError(f"expected a torch.optim optimizer, or a sequence of them, got {type(optimizer).__name__}")
    return list(several)


def _check_known(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers of another model, whose state would not be cut along."""
    known = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    if optimizers and known.isdisjoint(model.parameters()):
        raise ValueError("the optimizer has no parameter of this model; give the one that trains it, or none")


def _kept_ranks(tensor: BayesianTensor, dead: Sequence[Tensor], rule: PruningRule) -> list[Tensor]:
    """Indices to keep in every group, at least one each."""
    keep = [(~group).nonzero().flatten() for group in dead]
    if all(len(index) > 0 for index in keep):
        return keep
    weights = rule.weight_of(tensor)
    return [index if len(index) else weight.argmax().reshape(1) for index, weight in zip(keep, weights, strict=True)]


@torch.no_grad()
def _relative_changes(tensor: BayesianTensor, keep: Sequence[Tensor]) -> tuple[float, float]:
    """``‖A − A'‖ / ‖A‖`` for the mean and for one sample, through Gram matrices in float64."""
    generator = torch.Generator().manual_seed(0)
    changes = []
    for factors in (list(tensor.factors.mean), tensor.factors.sample(generator)):
        whole = [factor.double() for factor in factors]
        kept = tensor.format.restrict(whole, keep)
        inner = tensor.format.inner
        norm, overlap, rest = inner(whole, whole), inner(whole, kept), inner(kept, kept)
        squared = (norm - 2.0 * overlap + rest).clamp(min=0.0) / norm.clamp(min=1e-300)
        changes.append(float(squared.sqrt()))
    return changes[0], changes[1]


@torch.no_grad()
def _cut(tensor: BayesianTensor, keep: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> None:
    format = tensor.format
    for parameters in tensor.factors.parameter_lists():
        for n, parameter in enumerate(parameters):
            cut = partial(format.cut, n, keep=keep)
            cut_state(optimizers, parameter, cut)
            grad = parameter.grad
            replace_data(parameter, cut(parameter.data))
            parameter.grad = None if grad is None else cut(grad)
            _refuse_stale_gradients(parameter)
    # indices of another device, such as that of the model whose averaged copy this is, are brought to this one
    variance = torch.cat([v[index.to(v.device)] for v, index in zip(tensor.variances(), keep, strict=True)])
    tensor.set_ranks(format.with_ranks([len(index) for index in keep]), variance)


def _refuse_stale_gradients(parameter: nn.Parameter) -> None:
    """Make the backward of a graph built before the cut fail with a clear message; none reaches what is frozen."""
    if not parameter.requires_grad:
        return
    owner = weakref.ref(parameter)

    def check(grad: Tensor) -> None:
        current = owner()
        if current is not None and grad.shape != current.shape:
            raise RuntimeError(
                f"this loss was computed before ranks were pruned: its gradient has shape {tuple(grad.shape)}, the "
                f"parameter now {tuple(current.shape)}; compute the loss again after ranks.step()"
            )

    check.__torch_unserializable__ = True  # type: ignore[attr-defined]  # saving the model needs no hook
    parameter.register_hook(check)


def _warn_of_collapse(
    tensors: Mapping[str, BayesianTensor], dead: Mapping[str, Sequence[Tensor]], rule: PruningRule | None
) -> None:
    """One warning, or one for each of the rules that judge different tensors."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, tensor in tensors.items():
        own = rule or default_rule(tensor)
        alike.setdefault((str(own), own.remedy), []).append(name)
    for (by, remedy), names in alike.items():
        ranks = ", ".join(str(list(tensors[name].format.ranks)) for name in names)
        empty = ", ".join(str([len(group) for group in dead[name] if bool(group.all())]) for name in names)
        warn(
            f"{', '.join(names)} collapsed: by {by}, of {'its' if len(names) == 1 else 'their'} ranks {ranks} all of "
            f"{empty} are dead, as if all weights were zero; one each is kept. To avoid it, {remedy}",
            RankCollapseWarning,
        )
