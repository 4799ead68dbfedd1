"""Cutting an optimizer's state along with the parameters it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Number

from torch import Tensor, nn
from torch.optim import Optimizer


def check_state(optimizers: Iterable[Optimizer], parameters: Iterable[nn.Parameter]) -> None:
    """Refuse optimizers whose state for these parameters cannot be cut entry by entry.

    Known state is shaped like its parameter (momentum, Adam's moments, Adagrad's sums …) or a scalar.
    """
    parameters = list(parameters)
    for optimizer in optimizers:
        for parameter in parameters:
            for key, value in optimizer.state.get(parameter, {}).items():
                if not (_is_scalar(value) or _is_shaped_like(value, parameter)):
                    raise TypeError(
                        f"{type(optimizer).__name__} keeps a state {key!r} that is not shaped like its parameter "
                        f"{tuple(parameter.shape)}, so ranks cannot be cut out of it; prune after training with "
                        f"rankfold.prune_(model), or use SGD, Adam, AdamW, Adagrad or RMSprop"
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
