"""Which ranks are dead. Three rules, one question: does this rank carry anything?"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, final

import torch
from torch import Tensor

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.formats import TensorFormat
from rankfold.moments import sum_of_slices, sums_over_governed
from rankfold.pruning.averaging import TwoWindows
from rankfold.shapes import is_number


class PruningRule(ABC):
    """Says of every rank of a tensor how much it carries, and whether that is nothing.

    ``remedy`` is what to try when a rule finds all ranks dead.
    """

    remedy: ClassVar[str] = (
        "see that num_data counts examples, not batches, lower kl_weight (0.1 shows whether that is it), warm up "
        "longer, start tables whose row numbers mean something with equal_rows=True, or keep the layer dense"
    )

    @abstractmethod
    def dead(self, tensor: BayesianTensor, windows: TwoWindows | None = None) -> list[Tensor]:
        """One boolean tensor (R_n,) per rank group; true means dead.

        ``windows`` are averages of the posterior over training; without them it is taken as it is.
        """

    @abstractmethod
    def weight_of(self, tensor: BayesianTensor) -> list[Tensor]:
        """How much each rank carries, (R_n,) per group; the largest survives when all are dead."""

    def suits(self, tensor: BayesianTensor) -> bool:
        """Whether the rule can judge a tensor with this kind of inference."""
        return True


@final
@dataclass(frozen=True)
class InformationRule(PruningRule):
    """A rank is dead when the data told the posterior nothing about it. The default for Bayesian factors.

    The slice of a dead rank has the posterior equal to the prior: its KL is about 0 nats, where a
    live slice carries tens to thousands, whatever the layer's scale. A rank is dead when on *some*
    axis of its group the slice carries fewer than ``nats`` **and** its signal Σμ² is below
    ``signal_to_noise`` times its noise Σσ². The second condition protects live slices of only a few
    entries, which never carry much.

    With millions of examples many entries may know that they are small, and nothing else: σ is below that of the
    prior, which is worth nats, but μ is about 0. So a rank is dead, too, when on some axis its signal is below
    ``least_signal`` times its noise, **and** what goes through it, the product of Σμ² over its axes, is less than
    ``least_share`` of what goes through the strongest rank of its group. A faint signal alone condemns none: where
    inputs are sums of many rows noise averages out, and all ranks of a layer may be faint.

    An entry of a core belongs to several ranks, and counts as much as what the others multiply it by: beside a dead
    rank it may have any spread, and nobody sees it.

    >>> import rankfold as rf
    >>> layer = rf.Linear(8, 6, config=rf.CP(max_rank=3))
    >>> InformationRule(nats=3.0).dead(layer.tensor)  # one boolean tensor (R_n,) per rank group
    [tensor([False, False, False])]
    """

    nats: float = 3.0
    signal_to_noise: float = 1.0
    least_signal: float = 0.3
    least_share: float = 1e-3

    def __post_init__(self) -> None:
        _check_limits(**{field.name: getattr(self, field.name) for field in fields(self)})

    def suits(self, tensor: BayesianTensor) -> bool:
        """Points have no spread to compare with."""
        return tensor.inference == "bayes"

    def dead(self, tensor: BayesianTensor, windows: TwoWindows | None = None) -> list[Tensor]:
        check_rule(self, {str(tensor.format): tensor})
        signal, noise, nats = slice_information(tensor, windows or TwoWindows.now(tensor))
        verdicts = []
        for group in tensor.format.rank_groups:
            both = [_seen(tensor.format, signal, noise, factor, axis) for factor, axis in group.axes]
            negligible = _relative_strength([power for power, _ in both]) < self.least_share
            on_axis = []
            for (power, spread), (factor, axis) in zip(both, group.axes, strict=True):
                few_nats = sum_of_slices([(nats[factor], axis)]) < self.nats
                weak, faint = power < self.signal_to_noise * spread, power < self.least_signal * spread
                on_axis.append(few_nats & weak | negligible & faint)
            verdicts.append(torch.stack(on_axis).any(0))
        return verdicts

    def weight_of(self, tensor: BayesianTensor) -> list[Tensor]:
        """The signal over the noise, on the axis where there is least of it."""
        signal, noise, _ = slice_information(tensor, TwoWindows.now(tensor))
        shares = []
        for group in tensor.format.rank_groups:
            both = [_seen(tensor.format, signal, noise, factor, axis) for factor, axis in group.axes]
            shares.append(torch.stack([power / spread for power, spread in both]).amin(0))
        return shares


@final
@dataclass(frozen=True)
class RelativeNormRule(PruningRule):
    """A rank is dead when removing it changes ‖A‖_F by less than ``tolerance``. The default for MAP.

    Point factors have no spread to compare with, so what counts is how much of the weight a rank
    makes up: ``‖A_k‖_F / ‖A‖_F``, with A_k the part of A that goes through rank k alone. A weight that as
    a whole has shrunk to ``tolerance`` of its initial size is dead altogether.

    >>> import rankfold as rf
    >>> layer = rf.Linear(8, 6, config=rf.TTM(max_rank=2, inference="map"))
    >>> RelativeNormRule(tolerance=1e-3).dead(layer.tensor)  # one boolean tensor (R_n,) per rank group
    [tensor([False, False])]
    """

    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        _check_limits(tolerance=self.tolerance)

    def dead(self, tensor: BayesianTensor, windows: TwoWindows | None = None) -> list[Tensor]:
        if self._has_vanished(tensor):
            return [torch.ones_like(variance, dtype=torch.bool) for variance in tensor.variances()]
        return [share < self.tolerance for share in self.weight_of(tensor)]

    def _has_vanished(self, tensor: BayesianTensor) -> bool:
        size = tensor.format.inputs.padded_size * tensor.format.outputs.padded_size
        rms = tensor.format.norm(list(tensor.factors.mean)) / math.sqrt(size)
        return bool(rms < self.tolerance * tensor.weight_std)

    def weight_of(self, tensor: BayesianTensor) -> list[Tensor]:
        format, means = tensor.format, list(tensor.factors.mean)
        whole = format.norm(means).clamp(min=1e-300)
        device = means[0].device
        everything = [torch.arange(group.size, device=device) for group in format.rank_groups]
        shares = []
        for n, group in enumerate(format.rank_groups):
            parts = []
            for k in range(group.size):
                only = [*everything[:n], torch.tensor([k], device=device), *everything[n + 1 :]]
                parts.append(format.with_ranks([len(i) for i in only]).norm(format.restrict(means, only)))
            shares.append(torch.stack(parts) / whole)
        return shares


@final
@dataclass(frozen=True)
class VarianceRule(PruningRule):
    """The paper's rule: a rank is dead when λ < ``epsilon``. The right ε differs from task to task.

    >>> import rankfold as rf
    >>> at_the_end = rf.Pruning(at=(1.0,), rule=VarianceRule(epsilon=1e-5))
    """

    remedy: ClassVar[str] = "lower epsilon"

    epsilon: float

    def __post_init__(self) -> None:
        _check_limits(epsilon=self.epsilon)

    def dead(self, tensor: BayesianTensor, windows: TwoWindows | None = None) -> list[Tensor]:
        return [variance < self.epsilon for variance in tensor.variances()]

    def weight_of(self, tensor: BayesianTensor) -> list[Tensor]:
        return list(tensor.variances())


def _seen(
    format: TensorFormat, signal: Sequence[Tensor], noise: Sequence[Tensor], factor: int, axis: int
) -> tuple[Tensor, Tensor]:
    """``Σ w μ²`` and ``Σ w σ²`` over the slices (R_n,) of a factor along an axis of ranks.

    The weight w of an entry is the product, over its other ranks, of ``Σ μ² + σ²`` in the slices that they have
    beyond this factor, up to a constant.
    """
    weight = noise[factor].new_ones([1] * noise[factor].dim())
    for group in format.rank_groups:
        for own_axis in (a for f, a in group.axes if f == factor and a != axis):
            beyond = [(signal[f].clamp(min=0.0) + noise[f], a) for f, a in group.axes if f != factor]
            power = sum_of_slices(beyond)
            shape = [group.size if a == own_axis else 1 for a in range(weight.dim())]
            weight = weight * (power / power.max()).view(shape)
    return sum_of_slices([(signal[factor] * weight, axis)]), sum_of_slices([(noise[factor] * weight, axis)])


def _relative_strength(powers: Sequence[Tensor]) -> Tensor:
    """What goes through every rank (R_n,), given its power on every axis, over what goes through the strongest."""
    strength = torch.stack([(power / power.max()).clamp(min=0.0) for power in powers]).prod(0)
    return strength / strength.max()


def _check_limits(**limits: float) -> None:
    """Refuse limits below which nothing, or everything, would always lie: all but positive, finite numbers."""
    for name, value in limits.items():
        if not (is_number(value) and 0 < value < math.inf):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_rule(rule: object, tensors: Mapping[str, BayesianTensor] = {}) -> None:
    """Refuse what is no rule, or does not suit one of the tensors; ``None`` stands for the default one."""
    if rule is None:
        return
    if not isinstance(rule, PruningRule):
        raise TypeError(f"rule must be a rule such as rankfold.VarianceRule(1e-5), got {rule!r}")
    for name, tensor in tensors.items():
        if tensor.has_prior and not rule.suits(tensor):
            raise ValueError(
                f"{rule} does not suit {name}, which was made with inference={tensor.inference!r}; leave rule out, and "
                f"each layer gets the rule that suits it, or give one that suits all: RelativeNormRule(tolerance) or "
                f"VarianceRule(epsilon)"
            )


def default_rule(tensor: BayesianTensor) -> PruningRule:
    """The information rule for Gaussian factors, the norm rule for points."""
    return InformationRule() if tensor.inference == "bayes" else RelativeNormRule()


def dead_ranks(tensors: Mapping[str, BayesianTensor], rule: PruningRule | None) -> dict[str, list[Tensor]]:
    """The ranks that ``rule``, or each tensor's default one, finds dead now: one boolean tensor per rank group."""
    return {name: (rule or default_rule(tensor)).dead(tensor) for name, tensor in tensors.items() if tensor.has_prior}


@torch.no_grad()
def slice_information(tensor: BayesianTensor, windows: TwoWindows) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Signal μ², noise σ² and KL in nats of every entry, with the optimizer's jitter taken out.

    For an entry with prior variance v, at the λ that suits these averages best,

        KL = ½ μ²/v + ½ (σ²/v − 1 − log σ²/v)

    with μ_a μ_b in place of μ², and log σ averaged over both windows. The average still jitters with
    variance (ρ_a − ρ_b)²/4, which adds that times σ²/v to the second term; it is subtracted.
    """
    (mean_a, mean_b), (rho_a, rho_b) = windows.mean, windows.log_std
    signal = [a * b for a, b in zip(mean_a, mean_b, strict=True)]
    noise = [(a + b).exp() for a, b in zip(rho_a, rho_b, strict=True)]  # exp(2 · average of log σ)
    powers, spreads = (sums_over_governed(part, tensor.format.rank_groups) for part in (signal, noise))
    moments = powers.clamp(min=0.0) + spreads  # M
    best = tensor.prior.best_variance(moments, tensor.count)
    prior = tensor.prior_variances(best.split(list(tensor.format.ranks)))
    nats = []
    for s, n, v, a, b in zip(signal, noise, prior, rho_a, rho_b, strict=True):
        ratio = n / v
        jitter = ratio * (a - b).square() / 4.0
        nats.append(0.5 * s / v + 0.5 * (ratio - 1.0 - ratio.log()) - jitter)
    return signal, noise, nats
