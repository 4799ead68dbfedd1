"""Putting modules and parameters in the place of others, wherever a model holds those."""

from __future__ import annotations

from collections import OrderedDict
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
        for name, value in list(vars(parent).items()):  # its dict of modules is among them
            replaced = _replaced(value, new, set())
            if replaced is not value:
                vars(parent)[name] = replaced


def _replaced(value: Any, new: Mapping[nn.Module, nn.Module], seen: set[int]) -> Any:
    """A value with new modules in the place of old ones, also in plain lists, tuples and dicts within it.

    Lists and dicts are changed where they lie, as others may hold them too. Of tuples with a class of their own only
    named ones are made anew: nobody knows what others take.
    """
    if isinstance(value, nn.Module):
        return new.get(value, value)
    if id(value) in seen:  # a list may hold itself
        return value
    kind = type(value)
    if kind in (list, dict, OrderedDict):
        seen.add(id(value))
        for key, part in list(enumerate(value) if kind is list else value.items()):
            replaced = _replaced(part, new, seen)
            if replaced is not part:
                value[key] = replaced
    elif kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_make")):
        parts = [_replaced(part, new, seen) for part in value]
        if any(part is not before for part, before in zip(parts, value, strict=True)):
            return getattr(kind, "_make", kind)(parts)  # a named tuple takes its parts by _make
    return value


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
