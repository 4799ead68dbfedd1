"""The tensorized weights of a model, each with the name and the bias it has in its layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import nn

from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.bayesian_vector import BayesianVector
from rankfold.layers import Recurrent, TensorizedLayer

_DIGITS = 5  # of λ in files


@dataclass(frozen=True, eq=False)
class TensorizedWeight:
    """One weight that exists as factors.

    Attributes:
        name: the layer; layer and weight for a recurrent layer, as in ``"memory.weight_ih_l0"``.
        type: the layer's class, for a recurrent layer ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        bias: the bias that goes with it, or ``None``.
    """

    name: str
    type: str
    tensor: BayesianTensor
    bias: BayesianVector | None

    @property
    def parts(self) -> list[BayesianTensor | BayesianVector]:
        return [self.tensor] if self.bias is None else [self.tensor, self.bias]


def tensorized_weights(model: nn.Module) -> Iterator[TensorizedWeight]:
    """Every tensorized weight of every layer, and every tensor that belongs to no layer.

    Layers that share a tensor yield it each.
    """
    taken: set[BayesianTensor] = set()
    for name, module in model.named_modules():
        found = list(_weights(name, module, taken))
        taken.update(weight.tensor for weight in found)
        yield from found


def weight_name(tensor: str) -> str:
    """What a tensor is called where its layer is meant.

    >>> weight_name("fc.tensor"), weight_name("memory.tensors.weight_ih_l0")
    ('fc', 'memory.weight_ih_l0')
    """
    layer, _, last = tensor.rpartition(".")
    if last == "tensor":
        return layer or tensor
    owner, _, weights = layer.rpartition(".")
    return f"{owner}.{last}".lstrip(".") if weights == "tensors" else tensor


def current_ranks(model: nn.Module) -> dict[str, list[int]]:
    """The ranks of every tensorized weight, by its name."""
    return {weight_name(name): list(tensor.format.ranks) for name, tensor in tensors_of(model).items()}


def current_variances(model: nn.Module) -> dict[str, list[list[float]]]:
    """λ of every tensorized weight, a list for each of its ranks, to the digits that a file needs."""
    return {
        weight_name(name): [[float(f"{value:.{_DIGITS}g}") for value in group.tolist()] for group in tensor.variances()]
        for name, tensor in tensors_of(model).items()
    }


def _weights(name: str, module: nn.Module, taken: set[BayesianTensor]) -> Iterator[TensorizedWeight]:
    match module:
        case TensorizedLayer():
            yield TensorizedWeight(name, type(module).__name__, module.tensor, module.bias_vector)
        case Recurrent():
            yield from _recurrent_weights(name, module)
        case BayesianTensor() if module not in taken:
            yield TensorizedWeight(name, type(module).__name__, module, None)


def _recurrent_weights(name: str, layer: Recurrent) -> Iterator[TensorizedWeight]:
    """``weight_ih_l0`` goes with ``bias_ih_l0``, and a projection ``weight_hr_l0`` with none."""
    kind = layer.mode.split("_")[0]  # RNN_TANH and RNN_RELU are RNN
    for weight, tensor in layer.tensors.items():
        bias = weight.replace("weight", "bias")
        vector = cast(BayesianVector, layer.vectors[bias]) if bias in layer.vectors else None
        yield TensorizedWeight(f"{name}.{weight}".lstrip("."), kind, cast(BayesianTensor, tensor), vector)
