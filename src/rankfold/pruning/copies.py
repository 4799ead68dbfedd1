"""Averaged copies of a model (EMA, a teacher), which are cut together with it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from rankfold.bayesian_tensor import BayesianTensor, tensors_of

# What torch.compile, DDP and AveragedModel put before the names of the model's own modules.
_WRAPPERS = re.compile(r"((module|_orig_mod)\.)+")
_REMEDY = "make the copy with copy.deepcopy(model) or AveragedModel(model)"


def copies_of(model: nn.Module, copies: nn.Module | Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    """One averaged copy or several, as a tuple; each has every tensor of ``model``, and shares none."""
    several = (copies,) if isinstance(copies, nn.Module) else copies
    if not isinstance(several, Sequence) or not all(isinstance(copy, nn.Module) for copy in several):
        raise TypeError(
            f"copies must be an averaged copy of the model or a list of them, torch modules all, got {_named(copies)}; "
            f"{_REMEDY}, or leave copies out if there is none"
        )
    seen = dict.fromkeys(tensors_of(model).values(), "of the model itself")
    for n, copy in enumerate(several):
        for name, tensor in tensors_of(copy).items():
            if tensor in seen:
                raise ValueError(f"copies[{n}] must have factors of its own, and {name} is {seen[tensor]}; {_REMEDY}")
            seen[tensor] = f"that of copies[{n}] too"
    for copy in several:
        _check_architecture(tensors_of(model), copy)
    return tuple(several)


def same_in_copies(
    tensors: Mapping[str, BayesianTensor], copies: Sequence[nn.Module]
) -> dict[str, list[BayesianTensor]]:
    """The tensors of these names in every averaged copy, at the same ranks; model and copies may be wrapped."""
    found: dict[str, list[BayesianTensor]] = {name: [] for name in tensors}
    for copy in copies:
        inside = _by_own_name(copy)
        for name, tensor in tensors.items():
            other = inside.get(_own_name(name))
            if other is None or other.format != tensor.format:
                raise _mismatch(name, tensor, other)
            found[name].append(other)
    return found


def followers_of(
    tensors: Mapping[str, BayesianTensor], copies: Sequence[nn.Module]
) -> list[tuple[BayesianTensor, BayesianTensor]]:
    """Every tensor of a model with that of the same name in every averaged copy, two by two."""
    pairs = []
    for copy in copies:
        inside = _by_own_name(copy)
        pairs += [(tensor, inside[own]) for name, tensor in tensors.items() if (own := _own_name(name)) in inside]
    return pairs


def carry_marks(followers: Iterable[tuple[BayesianTensor, BayesianTensor]]) -> None:
    """Note in the copies what is no number of theirs to average: how often λ was updated, and whether all is dead."""
    for tensor, other in followers:
        other.num_updates, other.collapsed = tensor.num_updates, tensor.collapsed


def _check_architecture(tensors: Mapping[str, BayesianTensor], copy: nn.Module) -> None:
    """Compare all but the ranks: a checkpoint that is loaded before the first step may bring those."""
    inside = _by_own_name(copy)
    for name, tensor in tensors.items():
        other = inside.get(_own_name(name))
        if other is None or _architecture(other) != _architecture(tensor):
            raise _mismatch(name, tensor, other)


def _architecture(tensor: BayesianTensor) -> tuple[object, ...]:
    return (tensor.format.name, tensor.format.inputs, tensor.format.outputs, len(tensor.format.ranks))


def _by_own_name(model: nn.Module) -> dict[str, BayesianTensor]:
    """Its tensors by the names they have without wrappers."""
    return {_own_name(name): tensor for name, tensor in tensors_of(model).items()}


def _own_name(name: str) -> str:
    wrappers = _WRAPPERS.match(name)
    return name[wrappers.end() :] if wrappers else name


def _mismatch(name: str, tensor: BayesianTensor, other: BayesianTensor | None) -> ValueError:
    found = "no such tensor" if other is None else str(other.format)
    return ValueError(
        f"the averaged copy does not match the model at {name}: it has {found}, the model {tensor.format}; {_REMEDY}"
    )


def _named(copies: object) -> str:
    if isinstance(copies, Sequence) and not isinstance(copies, str):
        return f"{_named(next(c for c in copies if not isinstance(c, nn.Module)))} among them"
    return "a dictionary, as of a state_dict()" if isinstance(copies, dict) else reprlib.repr(copies)
