"""Weights as bytes: each array becomes int8 numbers and a scale per slice, ``w = s · q``.

onnxruntime's own dynamic quantization covers MatMul, Gemm and Gather of stored weights, but not Einsum,
which is what factors are contracted with. So the arrays are stored as int8 and restored by a cast and a product with
their scales, once, when a session starts; all arithmetic stays in float32. (A ``DequantizeLinear`` before a MatMul
would not do: onnxruntime makes one operation of the two, which rounds the input as well.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# Arrays with fewer entries stay in float32: their node in the graph would outweigh what they save.
MIN_ENTRIES = 128
# Scales take 4 bytes each; there are at most this many per entry.
_SCALES_PER_ENTRY = 1 / 16
_LARGEST = 127
# What stands behind the name of an array, in the names of its bytes and of their scales.
_VALUES, _SCALES, _CAST = ".int8", ".int8_scale", ".int8_cast"


class Bytes(NamedTuple):
    """An array as int8 ``values`` and ``scale``: of shape (n,) for the n slices of ``axis``, or () for one."""

    values: Tensor
    scale: Tensor
    axis: int | None

    def restored(self) -> Tensor:
        if self.axis is None:
            return self.values * self.scale
        return self.values * _along(self.scale, self.axis, self.values.dim())


def round_(model: nn.Module) -> dict[str, Bytes]:
    """Round the weights of ``model`` to int8 in place; returns them by the name of the parameter.

    Vectors, such as biases and the parameters of normalisations, are left alone, and so are small arrays.
    """
    stored = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and parameter.numel() >= MIN_ENTRIES and parameter.dtype == torch.float32:
            stored[name] = to_bytes(parameter.detach())
            parameter.data = stored[name].restored()
    return stored


def to_bytes(weight: Tensor) -> Bytes:
    """The closest of a scale for all entries and a scale per slice of some axis that has few slices.

    >>> to_bytes(torch.tensor([[0.5, -1.0], [0.25, 0.0]])).values
    tensor([[  64, -127],
            [  32,    0]], dtype=torch.int8)
    """
    axes = [n for n, size in enumerate(weight.shape) if size <= _SCALES_PER_ENTRY * weight.numel()]
    candidates = [_rounded(weight, axis) for axis in (None, *axes)]
    return min(candidates, key=lambda candidate: float((candidate.restored() - weight).square().sum()))


def _rounded(weight: Tensor, axis: int | None) -> Bytes:
    size = weight.abs()
    largest = size.amax() if axis is None else size.movedim(axis, 0).flatten(1).amax(1)
    # q = round(w / s) with s = max |w| / 127; an array of zeros keeps a scale of 1
    scale = torch.where(largest > 0, largest / _LARGEST, 1.0)
    spread = scale if axis is None else _along(scale, axis, weight.dim())
    return Bytes((weight / spread).round().to(torch.int8), scale, axis)


def _along(scale: Tensor, axis: int, dimensions: int) -> Tensor:
    return scale.reshape([-1 if n == axis else 1 for n in range(dimensions)])


def store_bytes_(graph: Any, stored: Mapping[str, Bytes]) -> None:
    """Replace initializers of an ONNX graph by their int8 twins, each restored by nodes of its own.

    Do so before the graph is optimized: a weight into which a batch norm has been multiplied is another one.
    """
    from onnx import TensorProto, helper, numpy_helper

    kept, added, nodes = [], [], []
    for initializer in graph.initializer:
        if initializer.name not in stored:
            kept.append(initializer)
            continue
        name, (values, scale, axis) = initializer.name, stored[initializer.name]
        added.append(numpy_helper.from_array(values.numpy(), name + _VALUES))
        spread = scale if axis is None else _along(scale, axis, values.dim())
        added.append(numpy_helper.from_array(spread.numpy().astype(np.float32), name + _SCALES))
        nodes.append(helper.make_node("Cast", [name + _VALUES], [name + _CAST], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [name + _CAST, name + _SCALES], [name]))
    _replace(graph.initializer, kept + added)
    _replace(graph.node, nodes + list(graph.node))


def names_kept(graph: Any) -> set[str]:
    """The names of all arrays that a graph holds, as they are or as bytes."""
    return {initializer.name.removesuffix(_VALUES) for initializer in graph.initializer}


def _replace(field: Any, content: Iterable[Any]) -> None:
    content = list(content)
    del field[:]
    field.extend(content)
