"""A tensorized ``torch.nn.Linear``."""

from __future__ import annotations

from typing import Self, final

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import TensorConfig
from rankfold.layers.base import (
    TensorizedLayer,
    copy_bias_,
    like_dense,
    make_bias,
    posterior_mean,
    real_device,
    uniform_std,
)


@final
class Linear(TensorizedLayer):
    """``y = x A + b`` with ``A`` (in_features, out_features) held as factors.

    Args: those of :class:`torch.nn.Linear`, and
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=20)``.
        matrix: start from this dense ``A`` instead of from random factors.

    Shape: (*, in_features) to (*, out_features).

    >>> import rankfold as rf
    >>> rf.Linear(784, 512, config=rf.TTM(max_rank=20))(torch.randn(3, 784)).shape
    torch.Size([3, 512])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        config: TensorConfig,
        matrix: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.config = config
        self.transposed = False
        std = config.init_std or uniform_std(in_features)
        self.tensor = BayesianTensor(
            config.build(in_features, out_features), config, std, matrix=matrix, device=device, dtype=dtype
        )
        self.bias_vector = make_bias(out_features, in_features, config, device, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise ValueError(
                f"expected {self.in_features} input features in the last dimension, got shape {tuple(x.shape)}"
            )
        flat = x.reshape(-1, self.in_features)  # (B, I)
        y = self.tensor.apply_to(flat, transposed=self.transposed, bias=self.bias_vector)  # (B, J)
        return y.reshape(*x.shape[:-1], self.out_features)

    @property
    def weight(self) -> Tensor:
        matrix = self.tensor.matrix()
        return matrix if self.transposed else matrix.T  # (out_features, in_features)

    def tie_(self, tensor: BayesianTensor, *, transposed: bool) -> None:
        """Share the tensor of another layer, as its transpose when the other is an embedding."""
        self.tensor = tensor
        self.transposed = transposed

    @classmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        matrix, bias = matrix_and_bias(dense)
        layer = cls(
            matrix.shape[0],
            matrix.shape[1],
            bias=bias is not None,
            device=real_device(matrix, device),
            dtype=matrix.dtype,
            config=like_dense(config, matrix, uniform_std(matrix.shape[0])),
            matrix=matrix if trained else None,
        )
        copy_bias_(layer.bias_vector, bias)
        return layer

    def to_dense(self) -> nn.Linear:
        with torch.no_grad(), posterior_mean(self):
            weight, bias = self.weight, self.bias
            dense = nn.Linear(self.in_features, self.out_features, bias is not None, weight.device, weight.dtype)
            dense.weight.copy_(weight)
            if bias is not None:
                dense.bias.copy_(bias)
        return dense

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias_vector is not None}"


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Whether this is Hugging Face's ``Conv1D``, a linear layer with its weight stored (in, out)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


def matrix_and_bias(dense: nn.Module) -> tuple[Tensor, Tensor | None]:
    """``A`` (in, out) and the bias of a linear layer of torch.nn or transformers."""
    weight, bias = dense.get_parameter("weight"), dense._parameters.get("bias")
    return (weight if is_transformers_conv1d(dense) else weight.T), bias
