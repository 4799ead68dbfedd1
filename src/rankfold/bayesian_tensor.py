"""A weight matrix as a format, a posterior over its factors, a prior and the rank variances λ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfold import kernels
from rankfold.bayesian_vector import BayesianVector
from rankfold.config import TensorConfig
from rankfold.flat import end_to_end
from rankfold.formats import TensorFormat
from rankfold.formats.base import LARGEST_COPY
from rankfold.gaussian import Variance, as_tensors, at_least_float32
from rankfold.moments import governors, sums_over_governed, updated_by_kernel
from rankfold.posterior import (
    INITIAL_STD_RATIO,
    FactorPosterior,
    GaussianPosterior,
    PointPosterior,
    drawn,
    joint_kl,
    sparing,
)
from rankfold.priors import ShrinkagePrior
from rankfold.wrapping import check_model


@final
class BayesianTensor(nn.Module):
    """The matrix ``A`` (I, J) behind a layer, held only as factors.

    Args:
        format: shapes and initial ranks.
        config: prior and kind of inference.
        weight_std: standard deviation of the initial weights.
        matrix: start from this dense ``A`` (I, J), decomposed, instead of from random factors.

    Attributes:
        format: the format at the current ranks.
        max_ranks: the ranks it started from.
        weight_std: the standard deviation its weights started from.
        factors: the posterior of the factors.
        variance: λ of all rank groups, one after the other, (ΣR,); empty for fixed-rank training.
        num_updates: how many times λ was updated.
    """

    variance: Tensor
    count: Tensor

    def __init__(
        self,
        format: TensorFormat,
        config: TensorConfig,
        weight_std: float,
        *,
        matrix: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dtype, device = dtype or torch.get_default_dtype(), device or torch.get_default_device()
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating-point one such as torch.float32, got {dtype!r}")
        if not isinstance(matrix, Tensor | None):
            raise TypeError(f"the matrix to start from must be a tensor, got {type(matrix).__name__}")
        self.format = format
        self.max_ranks = format.ranks
        self.weight_std = weight_std
        self.inference = config.inference
        self.weak_std = config.weak_std
        self.num_updates = 0
        self.collapsed = False  # whether pruning has found all ranks of a group dead, and said so
        means = _initial_means(format, weight_std, config.equal_rows, matrix)
        # the common scale of the factors sets the initial posterior spread and the default η
        scale = math.sqrt(sum(float(m.square().sum()) for m in means) / format.num_entries)
        self.prior = config.prior.at_scale(scale)
        means = [mean.to(device=device, dtype=dtype) for mean in means]
        self.factors: FactorPosterior = (
            GaussianPosterior(means, INITIAL_STD_RATIO * scale)
            if config.inference == "bayes"
            else PointPosterior(means)
        )
        kept = 0 if config.inference == "fixed" else sum(format.ranks)
        self.register_buffer("variance", torch.ones(kept, device=device, dtype=at_least_float32(dtype)))
        self.register_buffer("count", self._counts(), persistent=False)
        self.update_variance(1.0)
        self.num_updates = 0

    # The weight -----------------------------------------------------------------------------------

    def apply_to(self, x: Tensor, *, transposed: bool = False, bias: BayesianVector | None = None) -> Tensor:
        """``x A + b`` (or ``x Aᵀ + b``) for x (B, I); in training factors and bias are sampled, in eval their means."""
        if bias is None:
            return self.format.apply(self.factors(), x, transposed=transposed)
        (vector,), factors = drawn([bias.entries, self.factors])
        return self.format.apply(factors, x, transposed=transposed, bias=vector)

    def rows(self, index: Tensor) -> Tensor:
        """Rows ``A[index]`` for index (N,), (N, J)."""
        return kernels.rows(self.format, self.factors(), index)

    def matrix(self) -> Tensor:
        """``A`` (I, J): a sample in training, the posterior mean in eval.

        By independence of the factors, rebuilding their means gives the mean of ``A`` exactly.
        """
        return self.format.reconstruct(self.factors())

    # The prior ------------------------------------------------------------------------------------

    @property
    def has_prior(self) -> bool:
        return self.inference != "fixed"

    def variances(self) -> tuple[Tensor, ...]:
        """λ of every rank group, views of ``variance``."""
        return self.variance.split_with_sizes(self.format.ranks) if self.has_prior else ()

    def second_moments(self) -> Tensor:
        """``M_k = Σ μ² + σ²`` over the entries each λ governs, (ΣR,)."""
        return sums_over_governed(self.factors.second_moments(), self.format.rank_groups)

    def kl(self) -> Tensor:
        """``KL(q(Φ) ‖ p(Φ|λ))`` in nats; for point factors ``−log p(Φ|λ)`` up to a constant."""
        if not self.has_prior:
            return torch.zeros((), device=self.factors.mean[0].device)
        return joint_kl([self.beside_prior()])

    def beside_prior(self) -> tuple[FactorPosterior, list[Variance]]:
        """The posterior of the factors, and the prior variances of their entries."""
        return self.factors, self._variances_by_factor(self.variances())

    def penalty(self) -> Tensor:
        """``−Σ log p(λ)`` in nats, up to a constant. It does not depend on the factors."""
        return self.prior.penalty(self.variance).sum()

    def update_variance(self, step_size: float) -> None:
        """Half step 2: ``λ ← γ λ* + (1 − γ) λ`` with λ* in closed form."""
        update_variances([self], step_size)
        self.num_updates += 1

    def prior_variances(self, variances: Sequence[Tensor]) -> list[Tensor]:
        """The prior variance of every entry of every factor, broadcastable, given λ per group."""
        return as_tensors(self._variances_by_factor(variances), self.variance)

    def _variances_by_factor(self, variances: Sequence[Tensor]) -> list[Variance]:
        """The same, but the number σ₀² where no λ governs a factor."""
        weak = self.weak_std**2
        return [weak if n is None else variances[n].view(shape) for n, shape in governors(self.format)]

    def _counts(self) -> Tensor:
        """D: how many entries each λ governs, at the current ranks."""
        if not self.has_prior:
            return torch.empty_like(self.variance)
        shapes = self.format.factor_shapes
        counts = [
            float(sum(math.prod(shapes[factor]) // group.size for factor, _ in group.governed))
            for group in self.format.rank_groups
            for _ in range(group.size)
        ]
        return torch.tensor(counts, device=self.variance.device, dtype=self.variance.dtype)

    # Changing ranks -------------------------------------------------------------------------------

    def set_ranks(self, format: TensorFormat, variance: Tensor) -> None:
        """Record the ranks of factors that were just replaced, and the λ that go with them."""
        self.format = format
        self.variance = variance
        self.count = self._counts()

    def state_shapes(self, format: TensorFormat) -> dict[str, tuple[int, ...]]:
        """The shapes of this tensor's ``state_dict()`` at the ranks of ``format``."""
        shapes = {
            f"factors.{name}": format.factor_shapes[int(name.rpartition(".")[2])]
            for name, _ in self.factors.named_parameters()
        }
        return {**shapes, "variance": (sum(format.ranks) if self.has_prior else 0,)}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take on the ranks of the state that is about to be loaded, if all of it fits them."""
        stored = {name: state_dict.get(prefix + name) for name in self.state_shapes(self.format)}
        format = self._format_of({name: value for name, value in stored.items() if isinstance(value, Tensor)})
        if format is not None:
            self._resize(format)
        super()._load_from_state_dict(state_dict, prefix, *args)
        count = self._counts()  # no state holds it, and to_empty() and assign=True leave it without values
        if self.count.device == count.device and self.count.shape == count.shape:
            self.count.copy_(count)  # where a captured graph finds it
        else:
            self.count = count

    def _format_of(self, state: dict[str, Tensor]) -> TensorFormat | None:
        """The format at the ranks of a stored state; ``None`` if the state does not fit together."""
        means = [mean for name, mean in state.items() if name.startswith("factors.mean.")]
        if [mean.dim() for mean in means] != [mean.dim() for mean in self.factors.mean] or any(
            mean.numel() == 0 for mean in means
        ):
            return None
        format = self.format.with_ranks(self.format.ranks_of(means))
        fits = self.state_shapes(format) == {name: tuple(value.shape) for name, value in state.items()}
        return format if fits else None

    def _resize(self, format: TensorFormat) -> None:
        if format == self.format:
            return
        for parameters in self.factors.parameter_lists():
            for parameter, shape in zip(parameters, format.factor_shapes, strict=True):
                replace_data(parameter, parameter.data.new_zeros(shape))
        self.set_ranks(format, self.variance.new_ones(sum(format.ranks) if self.has_prior else 0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BayesianTensor:
        super()._apply(sparing(fn, (self.variance, self.count)), recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return str(self.format) + ("" if self.inference == "bayes" else f", {self.inference}")


def _initial_means(format: TensorFormat, weight_std: float, equal_rows: bool, matrix: Tensor | None) -> list[Tensor]:
    """Factors in float64: of ``matrix`` if given, random otherwise."""
    if matrix is not None and (matrix.is_meta or matrix.any()):
        exact = matrix if matrix.numel() > LARGEST_COPY else matrix.double()  # a large one is not copied
        return [factor.double() for factor in format.decompose(exact)]
    means = format.random_factors(weight_std, equal_rows=equal_rows)
    if matrix is not None:
        means[-1].zero_()  # A = 0, and yet the last factor receives gradients
    return means


@torch.no_grad()
def update_variances(tensors: Iterable[BayesianTensor], step_size: float) -> None:
    """Half step 2 of several tensors; those on one device with λ of one dtype and one prior take it together."""
    groups: dict[tuple[torch.device, torch.dtype, ShrinkagePrior], list[BayesianTensor]] = {}
    for tensor in tensors:
        if tensor.has_prior:
            groups.setdefault((tensor.variance.device, tensor.variance.dtype, tensor.prior), []).append(tensor)
    for (_, _, prior), group in groups.items():
        variances = [tensor.variance for tensor in group]
        if updated_by_kernel([(tensor.factors, tensor.format) for tensor in group], variances, prior, step_size):
            continue
        moments = end_to_end([tensor.second_moments() for tensor in group])
        best = prior.best_variance(moments, end_to_end([tensor.count for tensor in group]))
        torch._foreach_lerp_(variances, best.to(variances[0].dtype).split([len(v) for v in variances]), step_size)


def tensors_of(model: nn.Module) -> dict[str, BayesianTensor]:
    """Every tensor of a model by its name; a shared one appears once."""
    check_model(model)
    return {name: module for name, module in model.named_modules() if isinstance(module, BayesianTensor)}


def replace_data(parameter: nn.Parameter, data: Tensor) -> None:
    """Give a parameter data of another shape, keeping its identity.

    Autograd remembers a parameter's shape in its gradient accumulator for as long as any graph
    through it is alive. Passing through another dtype makes it forget, so that graphs built from
    now on use the new shape even while the last loss still exists.
    """
    grad, parameter.grad = parameter.grad, None
    other = torch.float16 if data.dtype != torch.float16 else torch.float32
    parameter.data = data.new_empty(0, dtype=other)
    parameter.data = data
    if grad is not None and grad.shape == data.shape:
        parameter.grad = grad
