"""How an exported model holds the weights of its layers: small, fast or plain."""

from __future__ import annotations

import copy
from typing import Literal, cast, final, get_args

from torch import Tensor, nn

from rankfold.bayesian_tensor import tensors_of
from rankfold.layers import Linear
from rankfold.layers.base import posterior_mean
from rankfold.surgery import to_dense

Layout = Literal["factors", "halves", "dense"]


def laid_out(model: nn.Module, layout: Layout) -> nn.Module:
    """A copy of ``model`` in the given layout.

    ``factors`` is the smallest. ``halves`` multiplies the factors of linear layers out to two matrices, ``L`` (I, r)
    of the input modes and ``R`` (r, J) of the others, or to one where that is smaller still: fewer and larger
    operations, so it is the fastest at small batches. TTM has no such halves and stays as it is, as do all
    other layers. ``dense`` has ``torch.nn`` layers only.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"layout must be one of {', '.join(get_args(Layout))}, got {layout!r}")
    if layout == "dense":
        return to_dense(model)
    copied = copy.deepcopy(model)
    return _with_halves(copied) if layout == "halves" else copied


def changes(model: nn.Module, layout: Layout) -> bool:
    """Whether a layout differs from that of the factors in any layer of ``model``.

    >>> import rankfold as rf
    >>> [changes(rf.Linear(8, 6, config=config(2)), "halves") for config in (rf.TT, rf.TTM)]
    [True, False]
    """
    if layout == "halves":
        return any(_two_layers(layer) is not None for layer in model.modules() if isinstance(layer, Linear))
    return layout == "dense" and bool(tensors_of(model))


def _with_halves(model: nn.Module) -> nn.Module:
    halved = {layer: _two_layers(layer) for layer in model.modules() if isinstance(layer, Linear)}
    if model in halved:
        return halved[model] or model
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # a shared one by each of its names
            if child in halved:
                setattr(module, name, halved[child] or child)
    return model


def _two_layers(layer: Linear) -> nn.Module | None:
    """``x L R + b`` as two linear layers, or as one if that is smaller; ``None`` if there are no halves."""
    with posterior_mean(layer):
        halves = None if layer.transposed else layer.tensor.format.halves(list(layer.tensor.factors.mean))
        bias = layer.bias
    if halves is None:
        return None
    if sum(half.numel() for half in halves) >= layer.in_features * layer.out_features:
        return layer.to_dense()
    return _Halves(_linear(halves[0], None), _linear(halves[1], bias))


@final
class _Halves(nn.Sequential):
    """``x L R + b`` in two layers, for those who ask for weight and bias, such as attention, one."""

    @property
    def weight(self) -> Tensor:
        first, second = (layer.get_parameter("weight") for layer in self)
        return second @ first

    @property
    def bias(self) -> Tensor | None:
        return cast(nn.Linear, self[1]).bias


def _linear(matrix: Tensor, bias: Tensor | None) -> nn.Linear:
    """``x A + b`` for a matrix (I, J)."""
    rows, columns = matrix.shape
    linear = nn.Linear(rows, columns, bias is not None, matrix.device, matrix.dtype)
    linear.weight = nn.Parameter(matrix.detach().T.contiguous())
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone())
    return linear
