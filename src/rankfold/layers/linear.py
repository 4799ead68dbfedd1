"""A tensorized ``torch.nn.Linear``."""

from __future__ import annotations

from typing import Self, final

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import TensorConfig, check_config
from rankfold.layers.base import (
    TensorizedLayer,
    check_input,
    copy_bias_,
    like_dense,
    make_bias,
    real_device,
    uniform_std,
    wrong_layer,
)
from rankfold.shapes import check_positive

# Standard deviation of the default weights of transformers' Conv1D.
_CONV1D_STD = 0.02


@final
class Linear(TensorizedLayer):
    """``y = x A + b`` with ``A`` (in_features, out_features) held as factors.

    Args: those of :class:`torch.nn.Linear`, and
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=20)``.
        matrix: start from this dense ``A`` instead of from random factors.

    Shape: (*, in_features) to (*, out_features).

    Attributes:
        transposed: its weight is the transpose of ``tensor``, which belongs to an embedding.
        inputs_first: it stands in for the ``Conv1D`` of transformers, which stores its weight (in, out).

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
        check_config(config)
        check_positive(in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.config = config
        self.transposed = False
        self.inputs_first = False
        std = config.init_std or uniform_std(in_features)
        self.tensor = BayesianTensor(
            config.build(in_features, out_features), config, std, matrix=matrix, device=device, dtype=dtype
        )
        self.bias_vector = make_bias(out_features, in_features, config, device, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        check_input(x)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"expected {self.in_features} input features in the last dimension, got shape {tuple(x.shape)}"
            )
        flat = x.reshape(-1, self.in_features)  # (B, I)
        y = self.tensor.apply_to(flat, transposed=self.transposed, bias=self.bias_vector)  # (B, J)
        return y.reshape(*x.shape[:-1], self.out_features)

    @property
    def weight(self) -> Tensor:
        matrix = self.tensor.matrix()
        # (out_features, in_features), for a Conv1D the other way round
        return matrix if self.transposed or self.inputs_first else matrix.T

    def tie_(self, tensor: BayesianTensor, *, transposed: bool) -> None:
        """Share the tensor of another layer, as its transpose when the other is an embedding."""
        self.tensor = tensor
        self.transposed = transposed

    @classmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        inputs_first = is_transformers_conv1d(dense)
        if not inputs_first and not isinstance(dense, nn.Linear):
            raise wrong_layer(dense, "a torch.nn.Linear")
        weight, bias = dense.get_parameter("weight"), dense._parameters.get("bias")
        matrix = weight if inputs_first else weight.T  # (in, out)
        layer = cls(
            matrix.shape[0],
            matrix.shape[1],
            bias=bias is not None,
            device=real_device(matrix, device),
            dtype=matrix.dtype,
            config=like_dense(config, matrix, _CONV1D_STD if inputs_first else uniform_std(matrix.shape[0])),
            matrix=matrix if trained else None,
        )
        copy_bias_(layer.bias_vector, bias)
        layer.inputs_first = inputs_first
        return layer

    def _without_storage(self) -> nn.Module:
        if not self.inputs_first:
            return nn.Linear(self.in_features, self.out_features, self.bias_vector is not None, "meta")
        from transformers.pytorch_utils import Conv1D

        with torch.device("meta"):
            return Conv1D(self.out_features, self.in_features)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias_vector is not None}"


def is_transformers_conv1d(module: object) -> bool:
    """Whether this is Hugging Face's ``Conv1D``, a linear layer with its weight stored (in, out)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"
