"""What a checkpoint says of itself, apart from its numbers: the content of ``rankfold.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.bayesian_vector import BayesianVector
from rankfold.priors import HalfCauchy, LogUniform, ShrinkagePrior

FORMAT_VERSION = 1


@dataclass(frozen=True)
class StoredTensor:
    """One :class:`BayesianTensor`: what must match the code, and what is restored from here."""

    name: str
    format: str
    in_size: int
    in_dims: tuple[int, ...]
    out_size: int
    out_dims: tuple[int, ...]
    inference: str
    ranks: tuple[int, ...]
    max_ranks: tuple[int, ...]
    prior: dict[str, Any]
    weak_std: float
    num_updates: int

    @classmethod
    def of(cls, name: str, tensor: BayesianTensor) -> StoredTensor:
        return cls(
            name,
            **_architecture(tensor),
            ranks=tensor.format.ranks,
            max_ranks=tensor.max_ranks,
            prior=_prior_to_dict(tensor.prior),
            weak_std=tensor.weak_std,
            num_updates=tensor.num_updates,
        )

    def __post_init__(self) -> None:
        """Check what was read from a file."""
        for field in ("in_dims", "out_dims", "ranks", "max_ranks"):
            values = tuple(getattr(self, field))
            object.__setattr__(self, field, values)
            if any(type(value) is not int or value < 1 for value in values):
                raise ValueError(f"{field} of {self.name} must be positive integers, got {values}")
        if len(self.ranks) != len(self.max_ranks):
            raise ValueError(f"{self.name} has {len(self.ranks)} ranks but {len(self.max_ranks)} max_ranks")
        if type(self.num_updates) is not int or not self.weak_std > 0:
            raise ValueError(f"{self.name} has num_updates {self.num_updates!r} and weak_std {self.weak_std!r}")
        _prior_from_dict(self.prior)

    def differences(self, tensor: BayesianTensor) -> Iterator[str]:
        """What of the architecture differs from ``tensor``."""
        for key, ours in _architecture(tensor).items():
            stored = getattr(self, key)
            if stored != ours:
                yield f"{self.name}: {key} is {stored} in the checkpoint, {ours} in the model"
                return
        if len(self.ranks) != len(tensor.format.ranks):
            yield f"{self.name}: {len(self.ranks)} ranks in the checkpoint, {len(tensor.format.ranks)} in the model"

    def restore(self, tensor: BayesianTensor) -> None:
        tensor.max_ranks = self.max_ranks
        tensor.prior = _prior_from_dict(self.prior)
        tensor.weak_std = self.weak_std
        tensor.num_updates = self.num_updates


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint.

    Attributes:
        tensors: every tensor once.
        weak_stds: σ₀ of every bias, by name.
        shared: further names of stored arrays, and the name each stands for.
    """

    format_version: int
    rankfold_version: str
    torch_version: str
    tensors: tuple[StoredTensor, ...]
    weak_stds: dict[str, float]
    shared: dict[str, str]

    @classmethod
    def of(cls, model: nn.Module, shared: Mapping[str, str]) -> Manifest:
        from rankfold import __version__

        return cls(
            FORMAT_VERSION,
            __version__,
            torch.__version__,
            tuple(StoredTensor.of(name, tensor) for name, tensor in tensors_of(model).items()),
            {name: module.weak_std for name, module in _biases(model).items()},
            dict(shared),
        )

    def restore(self, model: nn.Module) -> None:
        """Give the model what is not in its ``state_dict()``."""
        for stored in self.tensors:
            stored.restore(_tensor(model, stored.name))
        for name, bias in _biases(model).items():
            bias.weak_std = self.weak_stds.get(name, bias.weak_std)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, source: str) -> Manifest:
        """Read it; ``source`` says in errors where the text comes from."""
        try:
            content = json.loads(text)
            version = content["format_version"]
            if version <= FORMAT_VERSION:
                return cls._from_content(content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{source} is damaged ({type(error).__name__}: {error}); restore it from a copy, or save again"
            ) from error
        raise ValueError(
            f"{source} has format version {version}, and this rankfold reads versions up to {FORMAT_VERSION}; "
            f"update rankfold (it was written by {content.get('rankfold_version', 'an unknown version')})"
        )

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Manifest:
        tensors = tuple(StoredTensor(**entry) for entry in content.pop("tensors"))
        manifest = cls(tensors=tensors, **content)
        strings = [*manifest.shared, *manifest.shared.values(), *manifest.weak_stds, *(t.name for t in tensors)]
        if not all(isinstance(string, str) for string in strings):
            raise ValueError("names must be strings")
        if not all(std > 0 for std in manifest.weak_stds.values()):
            raise ValueError("weak_stds must be positive")
        return manifest


def _architecture(tensor: BayesianTensor) -> dict[str, Any]:
    format = tensor.format
    return {
        "format": format.name,
        "in_size": format.inputs.size,
        "in_dims": format.inputs.dims,
        "out_size": format.outputs.size,
        "out_dims": format.outputs.dims,
        "inference": tensor.inference,
    }


def _prior_to_dict(prior: ShrinkagePrior) -> dict[str, Any]:
    if isinstance(prior, LogUniform):
        return {"name": "LogUniform"}
    if isinstance(prior, HalfCauchy):
        return {"name": "HalfCauchy", "eta": prior.eta}
    raise TypeError(f"only LogUniform and HalfCauchy priors can be saved, got {prior!r}")


def _prior_from_dict(entry: dict[str, Any]) -> ShrinkagePrior:
    if entry == {"name": "LogUniform"}:
        return LogUniform()
    if entry.keys() == {"name", "eta"} and entry["name"] == "HalfCauchy":
        return HalfCauchy(entry["eta"])
    raise ValueError(f"unknown prior {entry}")


def _biases(model: nn.Module) -> dict[str, BayesianVector]:
    return {name: module for name, module in model.named_modules() if isinstance(module, BayesianVector)}


def _tensor(model: nn.Module, name: str) -> BayesianTensor:
    module = model.get_submodule(name)
    if not isinstance(module, BayesianTensor):
        raise TypeError(f"{name} is {type(module).__name__}, not a tensor")
    return module
