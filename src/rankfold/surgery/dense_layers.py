"""The layers of a model that have a tensorized twin: their matrices, and what keeps one from being replaced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from rankfold.config import TensorConfig
from rankfold.formats import TensorFormat
from rankfold.layers import Conv1d, Conv2d, Embedding, EmbeddingBag, Linear, Recurrent, TensorizedModule
from rankfold.layers.linear import is_transformers_conv1d
from rankfold.layers.row_checks import check_mode, refuse_row_options

_TWINS: tuple[tuple[type[nn.Module], type[TensorizedModule]], ...] = (
    (nn.Linear, Linear),
    (nn.Embedding, Embedding),
    (nn.EmbeddingBag, EmbeddingBag),
    (nn.Conv1d, Conv1d),
    (nn.Conv2d, Conv2d),
    (nn.LSTM, Recurrent),
    (nn.GRU, Recurrent),
    (nn.RNN, Recurrent),
)

SUPPORTED = ", ".join(dense.__name__ for dense, _ in _TWINS)

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Matrix:
    """One weight of a dense layer as the matrix ``A`` of I inputs and J outputs.

    Attributes:
        weight: the name of its parameter.
        bias: the name of the bias that goes with it, or ``None``.
        in_size, out_size, kernel_size: I (without the kernel positions), J, and the kernel positions.
    """

    weight: str
    bias: str | None
    in_size: int
    out_size: int
    kernel_size: int = 1

    def build(self, config: TensorConfig) -> TensorFormat:
        return config.build(self.in_size, self.out_size, kernel_size=self.kernel_size)


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A layer of a model that looks like one of ``torch.nn`` with a tensorized twin.

    Attributes:
        names: every name it has in the model; the first one stands for it.
        module: the layer itself.
        base: the torch.nn class it is or derives from.
        twin: the tensorized class.
    """

    names: tuple[str, ...]
    module: nn.Module
    base: type[nn.Module]
    twin: type[TensorizedModule]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return matrices(self.module)


def dense_layers(model: nn.Module) -> list[DenseLayer]:
    """Every layer of ``model`` that looks convertible, each once, in the order of the model."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in _walk(model, ""):
        names.setdefault(module, []).append(name)
    layers = []
    for module, found in names.items():
        kind = _kind(module)
        if kind is not None:
            layers.append(DenseLayer(tuple(found), module, *kind))
    return layers


def tensorized_names(model: nn.Module) -> list[str]:
    """The layers of ``model`` that are tensorized already."""
    return [name for name, module in model.named_modules() if isinstance(module, TensorizedModule)]


def is_unsupported(kind: type[nn.Module]) -> bool:
    """Whether no layer of this type of torch's can have a twin; types from elsewhere may be anything."""
    related = any(issubclass(kind, dense) or issubclass(dense, kind) for dense, _ in _TWINS)
    return kind.__module__.startswith("torch.") and not related


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Every module under every name it has, stopping at layers that are tensorized already."""
    yield name, module
    if isinstance(module, TensorizedModule):
        return
    for key, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{name}.{key}" if name else key)


def _kind(module: nn.Module) -> tuple[type[nn.Module], type[TensorizedModule]] | None:
    if is_transformers_conv1d(module):
        return type(module), Linear
    return next((pair for pair in _TWINS if isinstance(module, pair[0])), None)


def is_recurrent(module: nn.Module) -> bool:
    """Whether this is one of torch.nn's LSTM, GRU and RNN."""
    return isinstance(module, nn.RNNBase)


def matrices(module: nn.Module) -> tuple[Matrix, ...]:
    """The weights of a dense layer, read off its attributes; no tensor is touched."""
    bias = "bias" if module._parameters.get("bias") is not None else None
    match module:
        case nn.Linear():
            return (Matrix("weight", bias, module.in_features, module.out_features),)
        case nn.Embedding() | nn.EmbeddingBag():
            return (Matrix("weight", None, module.num_embeddings, module.embedding_dim),)
        case nn.Conv1d() | nn.Conv2d():
            positions = math.prod(module.kernel_size)
            return (Matrix("weight", bias, module.in_channels // module.groups, module.out_channels, positions),)
        case nn.RNNBase():
            return _recurrent_matrices(module)
    in_size, out_size = module.get_parameter("weight").shape  # transformers' Conv1D
    return (Matrix("weight", bias, in_size, out_size),)


def _recurrent_matrices(module: nn.RNNBase) -> tuple[Matrix, ...]:
    """All matrices; ``weight_ih_l0`` goes with ``bias_ih_l0``, and a projection ``weight_hr_l0`` with none."""
    found = []
    for name, weight in module._parameters.items():
        if weight is not None and name.startswith("weight"):
            bias = name.replace("weight", "bias")
            outputs, inputs = weight.shape
            found.append(Matrix(name, bias if bias in module._parameters else None, inputs, outputs))
    return tuple(found)


# What keeps a layer from being replaced ---------------------------------------------------------------


def obstacle(layer: DenseLayer) -> str:
    """Why ``layer`` cannot be replaced, or an empty string."""
    module = layer.module
    parameters = [p for p in module._parameters.values() if p is not None]
    if any(is_lazy(p) for p in parameters):
        return "it is lazy and has no shape yet; run the model once first"
    return (
        own_forward(layer)
        or _unplain_parameters(layer)
        or _unsupported_option(module)
        or _hooks_that_would_be_lost(module)
        or next((f"its dtype {p.dtype} is not supported" for p in parameters if p.dtype not in _DTYPES), "")
    )


def own_forward(layer: DenseLayer) -> str:
    """Why calling ``layer`` may do something else than its torch.nn class, or an empty string."""
    if "forward" in vars(layer.module):
        return "its forward was replaced"
    kind = type(layer.module)
    kept = all(
        getattr(kind, method) is getattr(layer.base, method)
        for method in ("forward", "_conv_forward")
        if method in dir(layer.base)
    )
    return "" if kept else f"{kind.__name__} has a forward of its own"


def _unplain_parameters(layer: DenseLayer) -> str:
    """Parametrizations, pruning and the like keep the weight somewhere else than in ``weight``."""
    if parametrize.is_parametrized(layer.module):
        return "it has parametrizations; call torch.nn.utils.parametrize.remove_parametrizations on it first"
    held = {name for name, p in layer.module._parameters.items() if p is not None}
    if any(name.endswith("_orig") for name in held):
        return "it is pruned or normalised by torch.nn.utils; call prune.remove or remove_spectral_norm on it first"
    if any(name.endswith(("_g", "_v")) for name in held):
        return "it has weight normalisation; call torch.nn.utils.remove_weight_norm on it first"
    expected = {name for m in layer.matrices for name in (m.weight, m.bias) if name is not None}
    if held != expected:
        return f"its parameters are {sorted(held)}, where a plain {layer.base.__name__} has {sorted(expected)}"
    others = _other_belongings(layer.module)
    return f"it also holds {', '.join(others)}, which would be lost; move that to another module" if others else ""


def _other_belongings(module: nn.Module) -> list[str]:
    """Buffers, modules and plain tensors; no layer that has a twin comes with any."""
    owned = [name for group in (module._buffers, module._modules) for name, part in group.items() if part is not None]
    return owned + [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]


def _unsupported_option(module: nn.Module) -> str:
    try:
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            refuse_row_options(module.max_norm, module.scale_grad_by_freq, module.sparse)
        if isinstance(module, nn.EmbeddingBag):
            check_mode(module.mode)
    except ValueError as error:
        return str(error)
    return ""


def _hooks_that_would_be_lost(module: nn.Module) -> str:
    """Hooks on calls carry over to the twin; those on the dense weight itself cannot."""
    for name, parameter in module._parameters.items():
        if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            return f"its {name} has a gradient hook, which factors cannot carry; remove the hook first"
    if any(
        (
            module._state_dict_hooks,
            module._state_dict_pre_hooks,
            module._load_state_dict_pre_hooks,
            module._load_state_dict_post_hooks,
        )
    ):
        return "it has state_dict hooks, written for the dense weight; remove them first"
    return ""
