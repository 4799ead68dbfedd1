"""Which layers of a model to tensorize, and with which config: ``filter_fn`` and ``overrides``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from rankfold.config import TensorConfig, check_config
from rankfold.layers import TensorizedModule
from rankfold.layers.linear import is_transformers_conv1d
from rankfold.surgery.dense_layers import (
    SUPPORTED,
    DenseLayer,
    dense_layers,
    is_recurrent,
    is_unsupported,
    own_forward,
)
from rankfold.wrapping import check_model, unwrapped

LayerFilter = Callable[[nn.Module, str], bool] | type[nn.Module] | str | Sequence[str | type[nn.Module]]
Overrides = Mapping[str, TensorConfig | None]

_NAMES_SHOWN = 8


@dataclass(frozen=True)
class Choice:
    """What the user wants for one layer.

    Attributes:
        config: what to tensorize it with, or ``None`` to keep it dense.
        by_default: nobody chose it, so it is tensorized only if it becomes smaller.
        reason: why it stays dense.
    """

    layer: DenseLayer
    config: TensorConfig | None = None
    by_default: bool = False
    reason: str = ""


def choose(
    model: nn.Module, config: TensorConfig | None, filter_fn: LayerFilter | None, overrides: Overrides | None
) -> list[Choice]:
    """One choice for every layer of ``model`` that looks convertible."""
    _check_arguments(model, config, overrides)
    model = unwrapped(model)
    layers = dense_layers(model)
    if layers and layers[0].module is model:
        raise ValueError(
            f"the model itself is a {type(model).__name__} and cannot be replaced in place; "
            f"use rankfold.{layers[0].twin.__name__}.from_dense(layer, config), which returns the new layer"
        )
    wanted = overrides or {}
    for pattern in (*wanted, *_patterns(filter_fn)):
        _check_matches(pattern, model, layers)
    return [_choice(layer, config, filter_fn, wanted) for layer in layers]


def _choice(
    layer: DenseLayer, config: TensorConfig | None, filter_fn: LayerFilter | None, overrides: Overrides
) -> Choice:
    if own_forward(layer) and layer.name not in overrides:
        return Choice(layer, reason=own_forward(layer))
    for pattern in reversed(list(overrides)):
        if _matches(layer, pattern):
            return Choice(layer, overrides[pattern], reason="overrides keep it")
    if filter_fn is None:
        return _default_choice(layer, config)
    if not _accepts(filter_fn, layer):
        return Choice(layer, reason="filter_fn leaves it out")
    if config is None:
        raise ValueError(
            f"filter_fn chooses {layer.name!r}, but config is None and no override names it; "
            f"give a config such as rankfold.TTM(max_rank=20)"
        )
    return Choice(layer, config)


def _default_choice(layer: DenseLayer, config: TensorConfig | None) -> Choice:
    if config is None:
        return Choice(layer, reason="no override names it")
    if is_recurrent(layer.module):
        return Choice(layer, reason="recurrent layers must be chosen by filter_fn or overrides")
    return Choice(layer, config, by_default=True)


def _accepts(filter_fn: LayerFilter, layer: DenseLayer) -> bool:
    if isinstance(filter_fn, str | type):
        return _matches(layer, filter_fn)
    if isinstance(filter_fn, Sequence):
        return any(_matches(layer, item) for item in filter_fn)
    return any(filter_fn(layer.module, name) for name in layer.names)


def _matches(layer: DenseLayer, wanted: str | type[nn.Module]) -> bool:
    if isinstance(wanted, str):
        return any(fnmatchcase(name, wanted) for name in layer.names)
    counts_as_linear = is_transformers_conv1d(layer.module) and issubclass(nn.Linear, wanted)
    return counts_as_linear or isinstance(layer.module, wanted)


# Checking what was asked ------------------------------------------------------------------------------


def _check_arguments(model: nn.Module, config: object, overrides: Overrides | None) -> None:
    check_model(model)
    if isinstance(model, TensorizedModule):
        raise ValueError(f"the model is a {type(model).__name__} of rankfold already; there is nothing to tensorize")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("tensorize the model before wrapping it in DistributedDataParallel, which tracks parameters")
    if not isinstance(overrides, Mapping | None):
        raise TypeError(f"overrides must be a dictionary of layer names and configs, got {overrides!r}")
    if config is None and not overrides:
        raise ValueError("config is None; give one, such as rankfold.TTM(max_rank=20), or name layers in overrides")
    for given in (config, *(overrides or {}).values()):
        if given is not None:
            check_config(given)


def _patterns(filter_fn: LayerFilter | None) -> list[str]:
    """The name patterns in a filter, and a check of its types."""
    if filter_fn is None:
        return []
    if not isinstance(filter_fn, str | Sequence) and not callable(filter_fn):
        raise TypeError(
            f"filter_fn must be a predicate (module, name) -> bool, a module type, a name pattern or a "
            f"sequence of them, got {filter_fn!r}"
        )
    items = filter_fn if isinstance(filter_fn, Sequence) and not isinstance(filter_fn, str) else [filter_fn]
    for item in items:
        if isinstance(item, type) and issubclass(item, nn.Module):
            _check_type(item)
        elif not isinstance(item, str) and item is not filter_fn:
            raise TypeError(f"a sequence in filter_fn holds name patterns or module types, got {item!r}")
    return [item for item in items if isinstance(item, str) and item]


def _check_type(kind: type[nn.Module]) -> None:
    if is_unsupported(kind):
        raise ValueError(f"filter_fn names {kind.__name__}, a type that is not supported; supported are {SUPPORTED}")


def _check_matches(pattern: str, model: nn.Module, layers: Sequence[DenseLayer]) -> None:
    if not isinstance(pattern, str):
        raise TypeError(f"overrides are keyed by layer names or patterns, got {pattern!r}")
    if any(_matches(layer, pattern) for layer in layers):
        return
    modules = dict(model.named_modules(remove_duplicate=False))
    names = [name for layer in layers for name in layer.names]
    if isinstance(modules.get(pattern), TensorizedModule):
        hint = "it is tensorized already"
    elif pattern in modules and is_unsupported(type(modules[pattern])) and not any(modules[pattern].children()):
        hint = f"it names a {type(modules[pattern]).__name__}, which is not supported; supported are {SUPPORTED}"
    elif pattern in modules:
        hint = f"it names a {type(modules[pattern]).__name__}; for the layers in it use {pattern + '.*'!r}"
    elif close := difflib.get_close_matches(pattern, names, n=3):
        hint = "did you mean " + " or ".join(map(repr, close)) + "?"
    else:
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        hint = f"the layers are {names[:_NAMES_SHOWN]}{more}"
    raise ValueError(f"{pattern!r} matches no layer that can be tensorized: {hint}")
