"""Putting modules and parameters in the place of others, wherever a model holds those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from rankfold.surgery.tying import holders


def repoint(model: nn.Module, renewed: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Let every other module that holds one of the parameters hold the new one."""
    for parameter, places in holders(model).items():
        if parameter in renewed:
            for module, name in places:
                setattr(module, name, renewed[parameter])


def swap(model: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """Put the new modules wherever the old ones are used."""
    for parent in list(model.modules()):
        _swap_in(parent, new)


def _swap_in(parent: nn.Module, new: Mapping[nn.Module, nn.Module]) -> None:
    """In the modules of ``parent``, and in its plain lists, tuples and dicts, of which torch knows nothing."""
    for name, value in list(vars(parent).items()):
        if isinstance(value, dict):
            value.update({key: new[part] for key, part in value.items() if _is_among(part, new)})
        elif isinstance(value, list | tuple) and any(_is_among(part, new) for part in value):
            parts = [new[part] if _is_among(part, new) else part for part in value]
            if isinstance(value, list):
                value[:] = parts
            else:
                setattr(parent, name, tuple(parts))


def _is_among(part: Any, modules: Mapping[nn.Module, nn.Module]) -> bool:
    return isinstance(part, nn.Module) and part in modules


def carry_hooks(source: nn.Module, target: nn.Module) -> None:
    """Let ``target`` run the hooks of ``source``; it shares the dicts, so that their handles still remove them."""
    target._forward_hooks = source._forward_hooks
    target._forward_hooks_with_kwargs = source._forward_hooks_with_kwargs
    target._forward_hooks_always_called = source._forward_hooks_always_called
    target._forward_pre_hooks = source._forward_pre_hooks
    target._forward_pre_hooks_with_kwargs = source._forward_pre_hooks_with_kwargs
    target._backward_hooks = source._backward_hooks
    target._backward_pre_hooks = source._backward_pre_hooks
    target._is_full_backward_hook = source._is_full_backward_hook
