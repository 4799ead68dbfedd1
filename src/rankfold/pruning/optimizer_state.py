"""Cutting an optimizer's state along with the parameters it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Number

from torch import Tensor, nn
from torch.optim import LBFGS, Adafactor, Optimizer

_REMEDY = (
    "so ranks cannot be cut out of it; use another, such as Adam, AdamW or SGD, or train with "
    "pruning=rankfold.Pruning(at=()) and call rankfold.prune_(model) afterwards"
)


def check_kind(optimizers: Iterable[Optimizer], tensors: Iterable[nn.Module]) -> None:
    """Refuse torch's optimizers that are known to keep other state than :func:`check_state` admits, before they do."""
    parameters = {p for tensor in tensors for p in tensor.parameters()}
    for optimizer in optimizers:
        trained = {p for group in optimizer.param_groups for p in group["params"]}
        if isinstance(optimizer, LBFGS | Adafactor) and trained & parameters:
            raise TypeError(f"{type(optimizer).__name__} keeps state that is not shaped like its parameters, {_REMEDY}")


def check_state(optimizers: Iterable[Optimizer], tensors: Iterable[nn.Module]) -> None:
    """Refuse optimizers whose state for the parameters of these tensors cannot be cut entry by entry.

    Known state is shaped like its parameter (momentum, Adam's moments, Adagrad's sums …) or a scalar.
    """
    parameters = [p for tensor in tensors for p in tensor.parameters()]
    for optimizer in optimizers:
        for parameter in parameters:
            for key, value in optimizer.state.get(parameter, {}).items():
                if not (_is_scalar(value) or _is_shaped_like(value, parameter)):
                    raise TypeError(
                        f"{type(optimizer).__name__} keeps a state {key!r} that is not shaped like its parameter "
                        f"{tuple(parameter.shape)}, {_REMEDY}"
                    )


def cut_state(optimizers: Sequence[Optimizer], parameter: nn.Parameter, cut: Callable[[Tensor], Tensor]) -> None:
    """Apply ``cut`` to everything the optimizers keep in the shape of ``parameter``."""
    for optimizer in optimizers:
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if _is_shaped_like(value, parameter):
                state[key] = cut(value)


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1)


def _is_shaped_like(value: object, parameter: nn.Parameter) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape
