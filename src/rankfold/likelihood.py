"""A likelihood for regression: the loss that makes the KL term weigh what it should.

The objective is ``NLL + β·KL/N`` in nats, so the data term must be a negative log-likelihood.
``F.cross_entropy`` is one. ``F.mse_loss`` is not: it leaves out the noise variance σ², and with it
the exchange rate between squared errors and nats. Targets in metres or in millimetres would then
give different ranks. :class:`GaussianLikelihood` learns σ along with the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from rankfold.gaussian import at_least_float32
from rankfold.posterior import sparing
from rankfold.shapes import is_number, is_positive_integer


@final
class GaussianLikelihood(nn.Module):
    """``y ~ N(f(x), σ²)`` with learned noise σ: the mean negative log-likelihood in nats.

    The mean is taken over all entries of the target, so ``num_data`` of
    :class:`~rankfold.RankDetermination` is the number of those entries in the whole training set:
    N examples for one output, N·K for K outputs. The optimizer trains it along with the model, without weight decay
    on σ: make the groups from both.

    Args:
        num_outputs: ``None`` for one σ, or K for one σ per output, the last dimension.
        initial_std: where σ starts; the standard deviation of the targets is a good choice.

    Shape: prediction and target (\\*, K) of one shape, to a 0-dim tensor.

    >>> likelihood = GaussianLikelihood()
    >>> likelihood(torch.zeros(4, 1), torch.zeros(4, 1)).item()  # ½ log 2π
    0.9189385175704956
    >>> import rankfold as rf
    >>> both = nn.ModuleList([rf.Linear(8, 1, config=rf.CP(max_rank=3)), likelihood])
    >>> optimizer = torch.optim.AdamW(rf.param_groups(both, lr=2e-3, weight_decay=0.01))
    """

    def __init__(
        self,
        num_outputs: int | None = None,
        *,
        initial_std: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_outputs is not None and not is_positive_integer(num_outputs):
            raise ValueError(f"num_outputs must be a positive integer, or None for one noise, got {num_outputs!r}")
        if not (is_number(initial_std) and 0 < initial_std < math.inf):
            raise ValueError(f"initial_std must be positive and finite, got {initial_std!r}")
        shape = () if num_outputs is None else (num_outputs,)
        dtype = at_least_float32(dtype or torch.get_default_dtype())
        self.log_std = nn.Parameter(torch.full(shape, math.log(initial_std), device=device, dtype=dtype))

    @property
    def std(self) -> Tensor:
        """The noise σ, () or (K,)."""
        return self.log_std.exp()

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        self._check(prediction, target)
        residual = target.to(self.log_std.dtype) - prediction
        # −log N(y | f, σ²) = ½ log 2π + log σ + (y − f)² / 2σ²
        nats = 0.5 * math.log(2.0 * math.pi) + self.log_std + 0.5 * (residual * (-self.log_std).exp()).square()
        return nats.mean()

    @torch.no_grad()
    def fit_(self, prediction: Tensor, target: Tensor) -> None:
        """Set σ to what is likeliest for these predictions: the root mean square of what they miss.

        In training σ also makes up for the spread of the sampled weights. Given predictions of the posterior mean on
        the training data, when it is over, it stands for noise alone.

        >>> likelihood = GaussianLikelihood()
        >>> likelihood.fit_(torch.zeros(2), torch.tensor([3.0, -3.0]))
        >>> likelihood.std.item()
        3.0
        """
        self._check(prediction, target)
        squares = (target.to(self.log_std) - prediction.to(self.log_std)).square()
        mean = squares.mean() if self.log_std.dim() == 0 else squares.reshape(-1, len(self.log_std)).mean(0)
        self.log_std.copy_(0.5 * mean.clamp(min=torch.finfo(mean.dtype).tiny).log())

    def _check(self, prediction: Tensor, target: Tensor) -> None:
        for name, given in (("prediction", prediction), ("target", target)):
            if not isinstance(given, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(given).__name__}")
        if prediction.shape != target.shape:
            raise ValueError(
                f"prediction and target must have one shape, got {tuple(prediction.shape)} and {tuple(target.shape)}; "
                f"reshape one of them (they are not broadcast)"
            )
        if prediction.numel() == 0:
            raise ValueError(f"the mean over no entries is undefined, got shape {tuple(prediction.shape)}")
        if self.log_std.dim() == 1 and (prediction.dim() == 0 or prediction.shape[-1] != len(self.log_std)):
            raise ValueError(
                f"this likelihood has {len(self.log_std)} outputs, but the last dimension of the prediction does "
                f"not: got shape {tuple(prediction.shape)}"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GaussianLikelihood:
        super()._apply(sparing(fn, (self.log_std,)), recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        return "num_outputs=None" if self.log_std.dim() == 0 else f"num_outputs={len(self.log_std)}"
