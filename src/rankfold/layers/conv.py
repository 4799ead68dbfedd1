"""Tensorized ``torch.nn.Conv1d`` and ``torch.nn.Conv2d``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import TensorConfig, check_config
from rankfold.convolution import build_kernels, chain_is_cheaper, stages
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
from rankfold.shapes import check_positive, is_integer

Size = int | tuple[int, ...]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

# What torch has for every number of spatial dimensions: the layer and the function.
_DENSE: dict[int, Callable[..., nn.Conv1d | nn.Conv2d]] = {1: nn.Conv1d, 2: nn.Conv2d}
_CONVOLVE: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d}


class _Convolution(TensorizedLayer):
    """A convolution whose kernel is held as factors of ``A`` (in_channels / groups · positions, out_channels).

    The positions of the kernel are one whole mode, after those of the input channels.
    """

    dimensions: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        config: TensorConfig,
        matrix: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_config(config)
        check_positive(in_channels=in_channels, out_channels=out_channels, groups=groups)
        self._check_sizes(1, kernel_size=kernel_size, stride=stride, dilation=dilation)
        if not isinstance(padding, str):
            self._check_sizes(0, padding=padding)
        # a torch.nn layer without storage checks the arguments and gives every size its tuple
        dense = _DENSE[self.dimensions](
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, "meta"
        )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size: tuple[int, ...] = dense.kernel_size
        self.stride: tuple[int, ...] = dense.stride
        self.padding: tuple[int, ...] | str = dense.padding
        self.dilation: tuple[int, ...] = dense.dilation
        self.groups = groups
        self.padding_mode = padding_mode
        self.config = config
        positions = math.prod(self.kernel_size)
        fan_in = in_channels // groups * positions
        self.tensor = BayesianTensor(
            config.build(in_channels // groups, out_channels, kernel_size=positions),
            config,
            config.init_std or uniform_std(fan_in),
            matrix=matrix,
            device=device,
            dtype=dtype,
        )
        self.bias_vector = make_bias(out_channels, fan_in, config, device, dtype) if bias else None

    def _check_sizes(self, smallest: int, **sizes: object) -> None:
        """Refuse what is neither one integer nor one for every spatial dimension."""
        for name, size in sizes.items():
            entries = tuple(size) if isinstance(size, tuple | list) else (size,) * self.dimensions
            if len(entries) != self.dimensions or not all(is_integer(n) and n >= smallest for n in entries):
                raise ValueError(
                    f"{name} must be an integer of at least {smallest}, or {self.dimensions} of them, got {size!r}"
                )

    def forward(self, x: Tensor) -> Tensor:
        check_input(x)
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._edges(), mode=self.padding_mode), "valid"
        convolve = _CONVOLVE[self.dimensions]
        parts = stages(self.tensor.format) if self._chain_pays(x) else None
        if parts is None:
            return convolve(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        inward, middle, outward = build_kernels(parts, self.tensor.format, self.tensor.factors(), self.kernel_size)
        x = convolve(x, inward)  # (N, R, …)
        x = convolve(x, middle, None, self.stride, padding, self.dilation, parts.groups)  # (N, S, …)
        return convolve(x, outward, self.bias)  # (N, O, …)

    def _chain_pays(self, x: Tensor) -> bool:
        """Whether three small convolutions are cheaper for this input than one with the rebuilt kernel."""
        positions = math.prod(self.kernel_size)
        if self.groups > 1 or positions == 1 or x.dim() < self.dimensions + 1:
            return False
        pixels = x.numel() // self.in_channels
        return chain_is_cheaper(self.tensor.format, positions, pixels, -(-pixels // math.prod(self.stride)))

    def _edges(self) -> list[int]:
        """How much to pad before and after every spatial dimension, the last one first, as ``F.pad`` wants it."""
        if self.padding == "valid":
            before = after = (0,) * self.dimensions
        elif self.padding == "same":
            # the output keeps its size if d·(k − 1) entries are added; an odd one goes behind
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            before, after = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        else:
            before = after = tuple(int(p) for p in self.padding)
        return [edge for pair in zip(before[::-1], after[::-1], strict=True) for edge in pair]

    @property
    def weight(self) -> Tensor:
        kernels = self.tensor.matrix().T  # (out_channels, in_channels / groups · positions)
        return kernels.reshape(self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    @classmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        if not isinstance(dense, (nn.Conv1d, nn.Conv2d)) or len(dense.kernel_size) != cls.dimensions:
            raise wrong_layer(dense, f"a torch.nn.{cls.__name__}")
        matrix = dense.weight.flatten(1).T
        layer = cls(
            dense.in_channels,
            dense.out_channels,
            dense.kernel_size,
            dense.stride,
            dense.padding,
            dense.dilation,
            dense.groups,
            dense.bias is not None,
            dense.padding_mode,
            real_device(matrix, device),
            matrix.dtype,
            config=like_dense(config, matrix, uniform_std(matrix.shape[0])),
            matrix=matrix if trained else None,
        )
        copy_bias_(layer.bias_vector, dense.bias)
        return layer

    def _without_storage(self) -> nn.Conv1d | nn.Conv2d:
        return _DENSE[self.dimensions](
            self.in_channels,
            self.out_channels,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.bias_vector is not None,
            self.padding_mode,
            "meta",
        )

    def extra_repr(self) -> str:
        dense: nn.Module = self._without_storage()
        return dense.extra_repr()


@final
class Conv1d(_Convolution):
    """A one-dimensional convolution.

    Args: those of :class:`torch.nn.Conv1d`, and
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=20)``.
        matrix: start from this dense ``A`` (in_channels / groups · positions, out_channels).

    Shape: (N, in_channels, L) to (N, out_channels, L'), or both without N.

    >>> from rankfold.config import CP
    >>> Conv1d(16, 33, 3, stride=2, config=CP(max_rank=8))(torch.randn(20, 16, 50)).shape
    torch.Size([20, 33, 24])
    """

    dimensions = 1


@final
class Conv2d(_Convolution):
    """A two-dimensional convolution.

    Args: those of :class:`torch.nn.Conv2d`, and
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=20)``.
        matrix: start from this dense ``A`` (in_channels / groups · positions, out_channels).

    Shape: (N, in_channels, H, W) to (N, out_channels, H', W'), or both without N.

    >>> from rankfold.config import TTM
    >>> Conv2d(3, 64, 3, padding="same", config=TTM(max_rank=8))(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 64, 32, 32])
    """

    dimensions = 2
