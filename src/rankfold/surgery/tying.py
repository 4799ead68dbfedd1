"""Parameters that several modules share, and how tensorized layers go on sharing them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from rankfold.config import TensorConfig
from rankfold.layers.base import TensorizedModule
from rankfold.surgery.dense_layers import DenseLayer, is_recurrent, own_forward

Holder = tuple[nn.Module, str]

# Where a model of transformers names its tied weights, and where what it says itself is kept in the meantime.
_TIES, _OWN_TIES = "_tied_weights_keys", "_own_tied_weights_keys"


@dataclass(frozen=True)
class Tie:
    """Layers that share one weight.

    Attributes:
        members: the layers, the one that lends its tensor first: an embedding if there is one.
        outsiders: other places that hold the weight, such as ``"head.weight"``.
    """

    members: tuple[DenseLayer, ...]
    outsiders: tuple[str, ...]

    @property
    def leader(self) -> DenseLayer:
        return self.members[0]

    def problem(self, configs: Mapping[DenseLayer, TensorConfig | None]) -> str:
        """Why these layers cannot stay tied once tensorized with ``configs``, or an empty string."""
        names = ", ".join([member.name for member in self.members] + list(self.outsiders))
        shared = f"it shares one weight with others ({names}), and they must stay tied"
        remedy = f"; keep {names} dense, or untie them by giving each its own weight"
        reasons = {member.name: own_forward(member) for member in self.members}
        dense_for_good = [*self.outsiders, *(f"{name} ({reason})" for name, reason in reasons.items() if reason)]
        if dense_for_good:
            return f"{shared}, but {', '.join(dense_for_good)} cannot be tensorized{remedy}"
        dense = [member.name for member in self.members if configs[member] is None]
        if dense:
            return f"{shared}, but {', '.join(dense)} stays dense; choose all of them or none"
        if len({repr(configs[member]) for member in self.members}) > 1:
            sides = f"in_dims and out_dims in it are those of {self.leader.name}"
            return f"{shared}, but their configs differ; give all of them the same one ({sides})"
        if any(is_recurrent(m.module) for m in self.members) or len({_family(m) for m in self.members}) > 1:
            return f"{shared}, but layers of these types cannot share factors{remedy}"
        return ""

    def is_transposed(self, member: DenseLayer) -> bool:
        """Whether ``member`` uses the transpose of the leader's matrix, as a head does of an embedding."""
        return _is_table(self.leader.module) and not _is_table(member.module)

    def frees_padding(self, member: DenseLayer) -> bool:
        """Whether ``member`` is an embedding whose padding row another layer reads too, such as a head.

        torch.nn only keeps the lookup's gradient away from that row; the other layer still trains it. Zeroing
        the row in the lookup would make two different weights of one.
        """
        padding = _padding(member.module)
        is_lookup = isinstance(member.module, nn.Embedding) and padding is not None
        return is_lookup and any(_padding(other.module) != padding for other in self.members)


def find_ties(model: nn.Module, layers: Iterable[DenseLayer]) -> dict[DenseLayer, Tie]:
    """The ties of ``model``, by layer; a layer with a weight of its own is not listed."""
    by_module = {layer.module: layer for layer in layers}
    names = {module: name for name, module in model.named_modules()}
    held = holders(model)
    ties: dict[DenseLayer, Tie] = {}
    for layer in by_module.values():
        for matrix in layer.matrices:
            weight = layer.module._parameters.get(matrix.weight)
            if weight is None or len(held[weight]) == 1 or layer in ties:
                continue
            members = [by_module[m] for m, name in held[weight] if _is_weight(by_module, m, name)]
            outsiders = [
                f"{names[module]}.{name}".lstrip(".")
                for module, name in held[weight]
                if not _is_weight(by_module, module, name)
            ]
            members.sort(key=lambda member: not _is_table(member.module))  # stable: embeddings first
            ties.update(dict.fromkeys(members, Tie(tuple(members), tuple(outsiders))))
    return ties


def holders(model: nn.Module) -> dict[nn.Parameter, list[Holder]]:
    """Every place that holds a parameter, by parameter."""
    found: dict[nn.Parameter, list[Holder]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, []).append((module, name))
    return found


def declare_ties(model: nn.Module) -> None:
    """Tell the models of transformers in ``model`` under which names their weights are tied now.

    They tie by name, in ``tie_weights``, and ``save_pretrained`` leaves out what is tied. They name the dense weights,
    in their class or in ``__init__``; for tensorized layers the names of the shared factors take their place.
    """
    pretrained = [module for module in model.modules() if _is_pretrained(module)]
    for module in pretrained:
        if _OWN_TIES in vars(module):
            vars(module).pop(_TIES, None)
            vars(module).update(vars(module).pop(_OWN_TIES))
    for module in pretrained:
        if module._tied_weights_keys and any(isinstance(m, TensorizedModule) for m in module.modules()):
            vars(module)[_OWN_TIES] = {name: ties for name, ties in vars(module).items() if name == _TIES}
            module._tied_weights_keys = _shared_names(module)  # type: ignore[assignment]
    for module in pretrained:  # a model looks at those of the models in it, so these must have changed before
        expand: Callable[..., dict[str, str]] = module.get_expanded_tied_weights_keys  # type: ignore[assignment]
        module.all_tied_weights_keys = expand(all_submodels=True)  # type: ignore[assignment]


def _is_pretrained(module: nn.Module) -> bool:
    return any(base.__module__ == "transformers.modeling_utils" for base in type(module).__mro__)


def _shared_names(model: nn.Module) -> dict[str, str]:
    """Patterns for every further name of a shared parameter or buffer, each with one for its first name."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[Tensor, str] = {}
    pairs = [(name, first.setdefault(tensor, name)) for name, tensor in named]
    return {re.escape(name) + "$": re.escape(source) + "$" for name, source in pairs if name != source}


def _is_weight(layers: Mapping[nn.Module, DenseLayer], module: nn.Module, name: str) -> bool:
    return module in layers and any(matrix.weight == name for matrix in layers[module].matrices)


def _is_table(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding | nn.EmbeddingBag)


def _padding(module: nn.Module) -> int | None:
    return module.padding_idx if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None


def _family(layer: DenseLayer) -> str:
    """Layers of one family store the same matrix the same way, up to the transpose a head takes."""
    return "matrix" if isinstance(layer.module, nn.Linear) or _is_table(layer.module) else layer.base.__name__
