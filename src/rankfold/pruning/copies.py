"""Averaged copies of a model (EMA, a teacher), which are cut together with it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    for name, tensor, other in _beside(tensors_of(model), several):
        # all but the ranks: a checkpoint that is loaded before the first step may bring those
        if other is None or _architecture(other) != _architecture(tensor):
            raise _mismatch(name, tensor, other)
    return tuple(several)


def same_in_copies(
    tensors: Mapping[str, BayesianTensor], copies: Sequence[nn.Module]
) -> dict[str, list[BayesianTensor]]:
    """The tensors of these names in every averaged copy, at the same ranks; model and copies may be wrapped."""
    found: dict[str, list[BayesianTensor]] = {name: [] for name in tensors}
    for name, tensor, other in _beside(tensors, copies):
        if other is None or other.format != tensor.format:
            raise _mismatch(name, tensor, other)
        found[name].append(other)
    return found


def followers_of(
    tensors: Mapping[str, BayesianTensor], copies: Sequence[nn.Module]
) -> list[tuple[BayesianTensor, BayesianTensor]]:
    """Every tensor of a model with that of the same name in every averaged copy, two by two."""
    return [(tensor, other) for _, tensor, other in _beside(tensors, copies) if other is not None]


def carry_marks(followers: Iterable[tuple[BayesianTensor, BayesianTensor]]) -> None:
    """Note in the copies what is no number of theirs to average: how often λ was updated, and whether all is dead."""
    for tensor, other in followers:
        other.num_updates, other.collapsed = tensor.num_updates, tensor.collapsed


def _beside(
    tensors: Mapping[str, BayesianTensor], copies: Sequence[nn.Module]
) -> Iterator[tuple[str, BayesianTensor, BayesianTensor | None]]:
    """Every tensor by its name and that of the same name in every copy, if there is one."""
    for copy in copies:
        inside = {_own_name(name): tensor for name, tensor in tensors_of(copy).items()}
        for name, tensor in tensors.items():
            yield name, tensor, inside.get(_own_name(name))


def _architecture(tensor: BayesianTensor) -> tuple[object, ...]:
    return (tensor.format.name, tensor.format.inputs, tensor.format.outputs, len(tensor.format.ranks))


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
