"""How to make the network of a checkpoint again, from its folder alone.

A checkpoint knows its factors, but not the code of the network around them. ``architecture.json`` beside
it names a function that makes the dense network, and what the network is called with; which layers are
factors, and at which ranks, the checkpoint itself says.

Loading a checkpoint runs no code that it brings along: a name that comes from a file is taken only if it
belongs to rankfold. Any other function is named by whoever loads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import tensors_of
from rankfold.checkpoint import load, read_manifest
from rankfold.config import CP, TT, TTM, TensorConfig, Tucker
from rankfold.manifest import StoredTensor
from rankfold.surgery import tensorize_
from rankfold.surgery.dense_layers import is_recurrent

ARCHITECTURE_FILE = "architecture.json"
_CONFIGS: dict[str, Callable[..., TensorConfig]] = {"CP": CP, "Tucker": Tucker, "TT": TT, "TTM": TTM}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.int64, torch.int32)}


@final
@dataclass(frozen=True)
class Input:
    """One input of a network: the shape of one example, without the batch, and the dtype.

    >>> Input.parse("3x32x32").example(8).shape
    torch.Size([8, 3, 32, 32])
    >>> Input.parse("200:int64")
    Input(shape=(200,), dtype='int64')
    >>> print(Input((3, 32, 32)), Input((200,), "int64"))
    3x32x32 200:int64
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if any(type(size) is not int or size < 1 for size in self.shape):
            raise ValueError(f"the shape of an input must be positive integers, got {self.shape}")
        if self.dtype not in _DTYPES:
            raise ValueError(f"the dtype of an input must be one of {', '.join(_DTYPES)}, got {self.dtype!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        if not re.fullmatch(r"\d+(x\d+)*(:\w+)?", text):
            raise ValueError(f"an input must look like 784, 3x32x32 or 200:int64, got {text!r}")
        sizes, _, dtype = text.partition(":")
        return cls(tuple(int(size) for size in sizes.split("x")), dtype or "float32")

    def __str__(self) -> str:
        """What :meth:`parse` reads."""
        return "x".join(map(str, self.shape)) + ("" if self.dtype == "float32" else f":{self.dtype}")

    def example(self, batch: int, below: int = 1) -> Tensor:
        """A batch of it: noise, or indices ``below`` some number; every table has the index 0."""
        dtype, generator = _DTYPES[self.dtype], torch.Generator().manual_seed(0)
        shape = (batch, *self.shape)
        if not dtype.is_floating_point:
            return torch.randint(below, shape, generator=generator, dtype=dtype)
        return torch.randn(shape, generator=generator, dtype=dtype)


@final
@dataclass(frozen=True)
class Architecture:
    """A dense network and its inputs.

    Args:
        network: the function that makes it, as ``package.module:name``.
        inputs: what it is called with.
        options: the function's keyword arguments, as JSON knows them.
    """

    network: str
    inputs: tuple[Input, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        network: Callable[..., nn.Module],
        inputs: Sequence[Tensor],
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """That of a function at the top level of a module, and of batches (B, …) as its network takes them."""
        name = f"{network.__module__}:{network.__qualname__}"
        if find_network(name) is not network:
            raise ValueError(f"{name} is another function; give one at the top level of a module")
        shapes = tuple(Input(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch.")) for x in inputs)
        return cls(name, shapes, dict(options or {}))

    def make(self) -> nn.Module:
        """The dense network, untrained."""
        return find_network(self.network)(**self.options)

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), indent=2) + "\n"
        (folder / ARCHITECTURE_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What the folder of a checkpoint says, or ``None`` if it says nothing."""
        file = folder / ARCHITECTURE_FILE
        if not file.exists():
            return None
        try:
            content: dict[str, Any] = json.loads(file.read_bytes())
            inputs = tuple(Input(**entry) for entry in content["inputs"])
            found = cls(str(content["network"]), inputs, dict(content.get("options", {})))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is damaged ({type(error).__name__}: {error}); remove it") from error
        if not found.network.startswith("rankfold."):
            raise ValueError(
                f"{file} names {found.network}, which is no part of rankfold, and what a file names is not run; "
                f"if you trust it, name the function yourself"
            )
        return found


def find_network(name: str) -> Callable[..., nn.Module]:
    """The function called ``package.module:name``."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise ValueError(
            f"there is no function {name!r} ({error}); give it as package.module:function, with the package installed "
            f"or on PYTHONPATH, or, for the command line, in the current folder"
        ) from error
    if not callable(found):
        raise ValueError(f"{name} must be a function that makes the network, got {type(found).__name__}")
    function: Callable[..., nn.Module] = found
    return function


def rebuild(network: nn.Module, folder: Path) -> nn.Module:
    """Tensorize a dense ``network`` as the checkpoint in ``folder`` says, and load it.

    A network that is tensorized already is only loaded.
    """
    manifest = read_manifest(folder)
    if manifest.tensors and not tensors_of(network):
        configs = {}
        for stored in manifest.tensors:
            config = _config(network, stored)
            configs.update({_layer(name): config for name in _all_names(stored.name, manifest.shared)})
        tensorize_(network, None, overrides=configs)
    return load(network, folder)


def _all_names(tensor: str, shared: Mapping[str, str]) -> set[str]:
    """The name of a tensor, and those it has in layers that share it."""
    further = {
        alias.removesuffix(owner.removeprefix(tensor))
        for alias, owner in shared.items()
        if owner.startswith(f"{tensor}.factors.")
    }
    return {tensor, *further}


def _layer(tensor: str) -> str:
    """The layer that a tensor belongs to; a recurrent one has several."""
    layer, _, part = tensor.rpartition(".")
    return layer if part == "tensor" else layer.removesuffix(".tensors")


def _config(network: nn.Module, stored: StoredTensor) -> TensorConfig:
    """The config that makes the stored factors of a layer, at any ranks."""
    layer, make = _layer(stored.name), _CONFIGS[stored.format]
    try:
        dense = network.get_submodule(layer)
    except AttributeError as error:
        raise ValueError(
            f"the checkpoint holds factors of the layer {layer}, which this {type(network).__name__} does not have; "
            f"give the function that makes the network which was trained"
        ) from error
    if is_recurrent(dense):  # several matrices, folded by the defaults
        return make(1, inference=stored.inference)
    in_dims, out_dims = stored.in_dims, stored.out_dims
    if isinstance(dense, nn.Conv1d | nn.Conv2d) and dense.weight[0, 0].numel() > 1:
        # the positions of the kernel are a mode that the format adds, and TTM an output mode of 1 beside it
        in_dims, out_dims = in_dims[:-1], out_dims[:-1] if stored.format == "TTM" else out_dims
    return make(stored.ranks, in_dims=in_dims, out_dims=out_dims, inference=stored.inference)
