"""Parameter groups, whether an optimizer suits a tensorized model, and gradients that are added by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankfold.health import check_finite
from rankfold.likelihood import GaussianLikelihood
from rankfold.posterior import FactorPosterior, GaussianPosterior
from rankfold.shapes import is_number
from rankfold.wrapping import check_model, check_values


def param_groups(model: nn.Module, lr: float | Tensor = 2e-3, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Parameter groups for any ``torch.optim`` optimizer.

    ``weight_decay`` applies to the layers that stay dense. Factors and biases of tensorized layers
    are decayed by their prior already, and decay would ruin log-stds, so it is 0 there. Several modules,
    such as a model and its :class:`~rankfold.GaussianLikelihood`, go in as ``nn.ModuleList([model, likelihood])``.

    >>> import torch, rankfold as rf
    >>> model = torch.nn.Sequential(rf.Linear(8, 6, config=rf.CP(max_rank=3)), torch.nn.Linear(6, 2))
    >>> optimizer = torch.optim.AdamW(rf.param_groups(model, lr=2e-3, weight_decay=0.01))
    >>> [group["weight_decay"] for group in optimizer.param_groups]
    [0.01, 0.0, 0.0]
    """
    check_model(model)
    for name, value in (("lr", float(lr) if isinstance(lr, Tensor) else lr), ("weight_decay", weight_decay)):
        if not (is_number(value) and 0 <= value < math.inf):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
    log_std = _log_std_parameters(model)
    governed = [p for m in model.modules() if isinstance(m, FactorPosterior) for p in m.mean]
    special = {id(p) for p in (*log_std, *governed)}
    dense = [p for p in model.parameters() if id(p) not in special]
    groups = [
        {"params": dense, "lr": lr, "weight_decay": weight_decay, "name": "dense"},
        {"params": governed, "lr": lr, "weight_decay": 0.0, "name": "mean"},
        {"params": log_std, "lr": lr, "weight_decay": 0.0, "name": "log_std"},
    ]
    return [group for group in groups if group["params"]]


def check_optimizers(model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
    """Refuse a model without good values, and optimizers that miss parameters of it or decay log-stds."""
    check_values(model.named_parameters(), "train")
    check_finite(model, "train")
    decay = {
        id(p): group.get("weight_decay", 0.0) for o in optimizers for group in o.param_groups for p in group["params"]
    }
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in decay]
    if missing:
        raise ValueError(
            f"the optimizer misses {len(missing)} parameters of the model, such as {missing[0]!r}; make it from "
            f"rankfold.param_groups(model) after tensorize_, or freeze them with requires_grad_(False)"
        )
    if any(decay.get(id(p), 0.0) for p in _log_std_parameters(model)):
        raise ValueError(
            "the optimizer decays log standard deviations, which pulls every std towards 1; "
            "use rankfold.param_groups(model, weight_decay=...), which sets weight_decay to 0 there"
        )


def check_scaler(scaler: object) -> None:
    """Refuse what scales no gradients: a loss, a factor."""
    if not (scaler is None or isinstance(scaler, torch.amp.GradScaler)):
        raise TypeError(
            f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}; leave it out where no gradients "
            f"are scaled, and give a loss its own backward()"
        )


def add_gradients(parameters: Sequence[Tensor], gradients: Iterable[Tensor]) -> bool:
    """Add to the gradients of parameters that are trained, in one operation where there are some; if any is trained."""
    trained: dict[Tensor, Tensor] = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.requires_grad:  # one of several tensors gets the sum: nothing is added to it twice at once
            trained[parameter] = trained[parameter] + gradient if parameter in trained else gradient
    started = [(p.grad, gradient) for p, gradient in trained.items() if p.grad is not None]
    if started:
        torch._foreach_add_([old for old, _ in started], [new for _, new in started])
    if len(started) < len(trained):
        for parameter, gradient in trained.items():
            parameter.grad = gradient if parameter.grad is None else parameter.grad
    return bool(trained)


def _log_std_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those of the posteriors, and of a likelihood with learned noise."""
    owners = [m for m in model.modules() if isinstance(m, GaussianPosterior | GaussianLikelihood)]
    found = [p for m in owners for p in ((m.log_std,) if isinstance(m.log_std, nn.Parameter) else m.log_std)]
    return list(dict.fromkeys(found))
