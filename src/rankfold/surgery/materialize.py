"""Bringing the dense rest of a model from the meta device to a real one, initialised as its modules do it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Set
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rankfold.layers import TensorizedModule


def stand_ins(model: nn.Module, leave_out: Set[nn.Module], device: torch.device) -> dict[nn.Module, nn.Module]:
    """Initialised copies on ``device`` of every module that owns meta tensors; ``model`` is not changed.

    A copy owns only its own parameters and buffers. Modules in ``leave_out`` and tensorized layers are
    passed over. Whatever cannot be initialised is an error that names it.
    """
    skipped = {m for m in model.modules() if isinstance(m, TensorizedModule)} | set(leave_out)
    below = {child for module in skipped for child in module.modules()}
    found: dict[nn.Module, nn.Module] = {}
    shared: dict[nn.Parameter, nn.Parameter] = {}
    problems = []
    for name, module in reversed(list(model.named_modules())):  # children before their parents
        blank = [] if module in below else _meta_names(module)
        if module not in below and _is_parametrized_on_meta(module):
            problems.append(f"{name or 'the model itself'} ({type(module).__name__}) has parametrizations")
        elif blank and not isinstance(module, parametrize.ParametrizationList):
            found[module] = _empty_copy(module, found, shared, device)
            with device:  # what reset_parameters makes anew is made there
                problem = _initialise(found[module], blank)
            problems += [f"{name or 'the model itself'} ({type(module).__name__}) {problem}"] if problem else []
    if problems:
        raise ValueError(
            "these parts of the model are on the meta device and cannot be initialised:\n  "
            + "\n  ".join(reversed(problems))
            + "\nBuild them on a real device, or give their class a reset_parameters() that fills all they own."
        )
    return found


def materialized(model: nn.Module, device: torch.device) -> nn.Module:
    """``model`` with all that is on the meta device made and initialised on ``device``."""
    for module, stand_in in stand_ins(model, set(), device).items():
        take_over_(module, stand_in)
    return model


def take_over_(module: nn.Module, stand_in: nn.Module) -> None:
    """Give ``module`` the parameters and buffers of its initialised copy."""
    for name in _meta_names(module):
        setattr(module, name, getattr(stand_in, name))


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, buffers and plain tensor attributes of this module alone."""
    for group in (module._parameters, module._buffers, vars(module)):
        yield from ((name, tensor) for name, tensor in group.items() if isinstance(tensor, Tensor))


def _is_parametrized_on_meta(module: nn.Module) -> bool:
    if not parametrize.is_parametrized(module):
        return False
    lists = cast(nn.ModuleDict, module.parametrizations)
    return any(tensor.is_meta for part in lists.modules() for _, tensor in _own_tensors(part))


def _meta_names(module: nn.Module) -> list[str]:
    return [name for name, tensor in _own_tensors(module) if tensor.is_meta]


def _empty_copy(
    module: nn.Module,
    found: dict[nn.Module, nn.Module],
    shared: dict[nn.Parameter, nn.Parameter],
    device: torch.device,
) -> nn.Module:
    """A shallow copy with blank tensors in place of the meta ones; tied parameters stay tied."""
    stand_in = copy.copy(module)
    stand_in._parameters = dict(module._parameters)
    stand_in._buffers = dict(module._buffers)
    stand_in._modules = {
        key: None if child is None else found.get(child, child) for key, child in module._modules.items()
    }
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_meta:
            if parameter not in shared:
                shared[parameter] = nn.Parameter(_blank(parameter, device), parameter.requires_grad)
            stand_in._parameters[name] = shared[parameter]
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_meta:
            stand_in._buffers[name] = _blank(buffer, device)
    return stand_in


def _blank(tensor: Tensor, device: torch.device) -> Tensor:
    """An unset tensor of the same shape and dtype: NaN where there is such a number."""
    blank = torch.empty_like(tensor, device=device, requires_grad=False)
    return blank.fill_(torch.nan) if blank.is_floating_point() else blank


def _initialise(stand_in: nn.Module, blank: list[str]) -> str:
    """Run the module's own initialisation; says which of the ``blank`` tensors are still unset, if any."""
    reset = _initialiser(stand_in)
    if reset is None:
        return f"owns {', '.join(blank)} and has no reset_parameters"
    before = {name: (tensor, tensor._version) for name, tensor in _own_tensors(stand_in)}
    reset()
    unset = [name for name, tensor in _own_tensors(stand_in) if name in blank and _is_unset(tensor, *before[name])]
    return f"has a reset_parameters that does not fill {', '.join(unset)}" if unset else ""


def _initialiser(module: nn.Module) -> Callable[[], object] | None:
    if isinstance(module, nn.MultiheadAttention):
        return module._reset_parameters
    reset = getattr(module, "reset_parameters", None)
    return reset if callable(reset) else None


def _is_unset(tensor: Tensor, before: Tensor, version: int) -> bool:
    """Whether nobody wrote to it: still on meta, still NaN, or the same object at the same version."""
    if tensor.is_meta or tensor.is_floating_point():
        return tensor.is_meta or bool(tensor.isnan().any())
    return tensor is before and tensor._version == version
