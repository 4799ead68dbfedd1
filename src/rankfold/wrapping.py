"""What lies between the user's line and a model: wrappers such as ``torch.compile`` and DDP, and calls of torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

_COMPILED = "_orig_mod"  # where the module that torch.compile returns keeps the one it was given
_INNER = ("rankfold", "torch")  # packages whose calls no user wrote


def check_model(model: object) -> None:
    """Refuse what is no module: a path, a ``state_dict()``, a list of layers."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def check_values(named: Iterable[tuple[str, Tensor]], action: str) -> None:
    """Refuse parameters and buffers without values."""
    for name, value in named:
        if value.is_meta:
            raise ValueError(
                f"cannot {action} a model on the meta device: {name} has no values; "
                f"give it some first, as rankfold.tensorize_(model, config) does for the layers that it swaps, and "
                f"model.to_empty(device='cpu') with an initialisation for all"
            )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without what was wrapped around it and put a prefix before its names.

    Only wrappers of the whole model are taken off, in any number and order; parts of it that are
    wrapped stay so.

    >>> model = nn.Linear(3, 2)
    >>> unwrapped(nn.DataParallel(model)) is unwrapped(model) is model
    True
    """
    check_model(model)
    while True:
        if isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        elif (compiled := model._modules.get(_COMPILED)) is not None:
            model = compiled
        else:
            return model


def unwrapped_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself, without the wrapper that Accelerate puts around it."""
    inner = vars(optimizer).get("optimizer")
    return unwrapped_optimizer(inner) if isinstance(inner, Optimizer) else optimizer


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of the user's line, which is the innermost one outside of this package and of torch."""
    if torch.compiler.is_compiling():
        warnings.warn(message, category, stacklevel=2)  # which frames led here cannot be asked there
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INNER:
        frame = frame.f_back
    module, said = frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, said)
