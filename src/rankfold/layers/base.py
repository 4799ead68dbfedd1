"""What all tensorized layers share: a tensor, perhaps a bias, and ways from and to ``torch.nn``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.bayesian_vector import BayesianVector
from rankfold.config import TensorConfig, check_config
from rankfold.posterior import INITIAL_STD_RATIO
from rankfold.wrapping import check_model


class TensorizedModule(nn.Module, ABC):
    """A module that stands in for one of ``torch.nn``, with weights that exist only as factors.

    Attributes:
        config: the options it was made with.
    """

    config: TensorConfig

    @classmethod
    @abstractmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        """A tensorized twin of a ``torch.nn`` layer.

        Args:
            trained: start from the layer's weight and bias, the weight decomposed. Otherwise start from
                random factors that give weights of the same standard deviation.
            device: where to put it; the dense layer's device if left out.
        """

    @abstractmethod
    def to_dense(self) -> nn.Module:
        """The ``torch.nn`` layer with the posterior mean as its weight."""


class TensorizedLayer(TensorizedModule):
    """A layer with one weight, which exists only as factors, and perhaps a bias.

    Attributes:
        tensor: the weight.
        bias_vector: the bias, or ``None``.
    """

    tensor: BayesianTensor
    bias_vector: BayesianVector | None

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """The dense weight in the layout of ``torch.nn``: a sample in training, the mean in eval.

        It is rebuilt on every access.
        """

    @property
    def bias(self) -> Tensor | None:
        """The bias: a sample in training, the mean in eval."""
        return None if self.bias_vector is None else self.bias_vector()

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        if name in ("weight", "bias"):
            raise AttributeError(
                f"{name} of {type(self).__name__} is computed from factors and cannot be set. Set or tie weights "
                f"before rankfold.tensorize_, which keeps ties; start from them with trained=True, or give the config "
                f"an init_std for random weights of another size"
            )
        super().__setattr__(name, value)

    def to_dense(self) -> nn.Module:
        dense = self._without_storage()
        device = next(self.parameters()).device
        with torch.no_grad(), posterior_mean(self), in_own_precision(device):
            for name in list(dense._parameters):  # weight, and mostly bias
                mean = getattr(self, name)
                copied = None if mean is None else nn.Parameter(mean.clone(memory_format=torch.contiguous_format))
                dense.register_parameter(name, copied)
        return dense

    @abstractmethod
    def _without_storage(self) -> nn.Module:
        """The layer of ``torch.nn`` it stands in for, on the meta device."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()}, {self.tensor.extra_repr()})"


def in_own_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast lowers nothing.

    Where it is off there is nothing to do, but a program that is traced now may run where it is on. Shapes on the meta
    device have no precision.
    """
    lowered = device.type != "meta" and (torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type))
    return torch.autocast(device.type, enabled=False) if lowered else nullcontext()


def wrong_layer(dense: object, expected: str) -> TypeError:
    """The error for a layer that a ``from_dense`` does not stand in for."""
    return TypeError(
        f"expected {expected}, got {type(dense).__name__}; every layer has a class of its own in rankfold, and "
        f"rankfold.tensorize_(model, config) finds it"
    )


def check_input(x: object) -> None:
    """Refuse an input that is no tensor, or holds integers: those are for embeddings."""
    if not isinstance(x, Tensor):
        raise TypeError(f"expected a tensor as input, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"expected floating-point numbers as input, got {x.dtype}; convert them with .float()")


def uniform_std(fan_in: int) -> float:
    """Standard deviation of torch.nn's default weights, uniform on ±1/√fan_in."""
    return 1.0 / math.sqrt(3.0 * fan_in)


def make_bias(
    size: int, fan_in: int, config: TensorConfig, device: torch.device | str | None, dtype: torch.dtype | None
) -> BayesianVector:
    """A bias as torch.nn makes it, uniform on ±1/√fan_in."""
    bound = 1.0 / math.sqrt(fan_in)
    mean = torch.empty(size, device=device, dtype=dtype).uniform_(-bound, bound)
    return BayesianVector(mean, INITIAL_STD_RATIO * uniform_std(fan_in), config)


def like_dense(config: TensorConfig, weight: Tensor, default_std: float) -> TensorConfig:
    """``config`` with the initial standard deviation of a dense ``weight``, unless it names its own.

    A weight on the meta device has no values; then it is torch.nn's default.
    """
    check_config(config)
    if config.init_std is not None:
        return config
    if weight.is_meta or weight.numel() < 2:
        return replace(config, init_std=default_std)
    std = float(weight.detach().float().std())
    return replace(config, init_std=std if std > 0 else default_std)


@contextmanager
def posterior_mean(module: nn.Module) -> Iterator[None]:
    """Within this context the module and all below it are in eval mode, so weights are their means."""
    check_model(module)
    training = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for m, mode in training.items():
            m.training = mode


def copy_bias_(vector: BayesianVector | None, bias: Tensor | None) -> None:
    """Start from the bias of a dense layer, unless it has no values."""
    if vector is not None and bias is not None and not bias.is_meta:
        with torch.no_grad():
            vector.entries.mean[0].copy_(bias)


def real_device(tensor: Tensor, device: torch.device | None) -> torch.device:
    """Where a tensorized twin of a layer goes: ``device``, else the layer's own, never ``meta``."""
    if device is not None:
        return device
    return torch.device("cpu") if tensor.is_meta else tensor.device
