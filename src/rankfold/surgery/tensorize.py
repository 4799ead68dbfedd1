"""``tensorize_`` swaps the layers of a model for tensorized ones, in place; ``to_dense`` is its inverse."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.bayesian_vector import BayesianVector
from rankfold.config import TensorConfig
from rankfold.layers import Embedding, EmbeddingBag, Linear, Recurrent, TensorizedLayer, TensorizedModule
from rankfold.surgery.decisions import Decision, decide
from rankfold.surgery.dense_layers import SUPPORTED, tensorized_names
from rankfold.surgery.materialize import stand_ins, take_over_
from rankfold.surgery.selection import LayerFilter, Overrides
from rankfold.surgery.swapping import carry_hooks, repoint, swap
from rankfold.surgery.tying import declare_ties
from rankfold.wrapping import unwrapped, warn

Progress = Callable[[str, int, int], None]


def tensorize_(
    model: nn.Module,
    config: TensorConfig | None,
    filter_fn: LayerFilter | None = None,
    *,
    overrides: Overrides | None = None,
    trained: bool = False,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """Replace layers of ``model`` by tensorized ones, in place, and return it.

    Everything is checked and built before anything is changed: after an error the model is as it was.
    Tied layers stay tied; hooks on calls, training mode, frozen parameters, dtype and device are kept.

    Args:
        model: any module, also one on the meta device. What stays dense is then initialised by its own
            ``reset_parameters``, so a model that does not fit into memory is never allocated.
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=20)``. It may be ``None``
            if ``overrides`` names all layers to tensorize.
        filter_fn: which layers: a predicate ``(module, name) -> bool``, a module type, a name pattern such
            as ``"encoder.*.fc?"``, or a sequence of types and patterns. If left out, every supported layer
            that becomes smaller, recurrent ones excepted.
        overrides: a config for single layers, by name or pattern; the last match wins, ``None`` keeps dense.
        trained: start from the weights the layers have, decomposed, instead of from random factors.
        device: where new parameters go; by default where the layer was, or the CPU for a meta model.
        progress: called as ``progress(name, number, total)`` when the turn of a layer comes.

    >>> from rankfold.config import TTM
    >>> model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    >>> tensorize_(model, TTM(max_rank=8), "0")
    Sequential(
      (0): Linear(in_features=784, out_features=512, bias=True, TTM [4, 4, 7, 7] x [8, 4, 4, 4], ranks [8, 8, 8])
      (1): ReLU()
      (2): Linear(in_features=512, out_features=10, bias=True)
    )
    """
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of a name, a number and a total, got {progress!r}")
    decisions = decide(model, config, filter_fn, overrides)
    chosen = [decision for decision in decisions if decision.config is not None]
    _check_refusals(decisions)
    if not chosen:
        raise ValueError(_nothing_to_do(model, decisions, filter_fn))
    if trained:
        _check_values(chosen)
    else:
        _warn_of_frozen(chosen)
    target = None if device is None else torch.device(device)
    replaced = {decision.layer.module for decision in chosen}
    rest = stand_ins(model, replaced, target or torch.device("cpu"))
    twins = _build_twins(chosen, trained, target, progress)
    # Nothing was changed so far, and from here on nothing can fail.
    biases = _share_biases(twins)
    swap(model, twins)
    repoint(model, biases)
    declare_ties(model)
    for module, stand_in in rest.items():
        take_over_(module, stand_in)
    return model


def to_dense(model: nn.Module) -> nn.Module:
    """A copy of ``model`` with plain ``torch.nn`` layers that hold the posterior means.

    Layers that share a tensor share one weight again. ``model`` itself is not changed; what ``torch.compile``, DDP or
    DataParallel wrapped around it is not copied.

    >>> from rankfold.config import TTM
    >>> to_dense(tensorize_(nn.Sequential(nn.Linear(784, 512)), TTM(max_rank=8)))
    Sequential(
      (0): Linear(in_features=784, out_features=512, bias=True)
    )
    """
    copied = copy.deepcopy(unwrapped(model))
    layers = [module for module in copied.modules() if isinstance(module, TensorizedModule)]
    pairs = [(layer, _plain_layer(layer)) for layer in layers]
    if layers and layers[0] is copied:
        return pairs[0][1]
    _tie_weights(pairs)
    biases = _tie_biases(pairs)
    swap(copied, dict(pairs))
    repoint(copied, biases)
    declare_ties(copied)
    return copied


# Building twins ---------------------------------------------------------------------------------------


def _check_refusals(decisions: Sequence[Decision]) -> None:
    """Refuse, before anything is changed, what cannot be done."""
    refused = [decision for decision in decisions if decision.refusal]
    if refused:
        reasons = "\n  ".join(f"{decision.layer.name}: {decision.refusal}" for decision in refused)
        raise ValueError(
            f"{len(refused)} of the chosen layers cannot be tensorized; the model is unchanged.\n  {reasons}\n"
            f"To keep a layer dense, pass overrides={{{refused[0].layer.name!r}: None}}."
        )


def _nothing_to_do(model: nn.Module, decisions: Sequence[Decision], filter_fn: LayerFilter | None) -> str:
    """Why no layer would be tensorized."""
    already = tensorized_names(model)
    reasons = "".join(f"\n  {decision.layer.name} {decision.note}" for decision in decisions)
    if already:
        others = f"\nNo other layer would be tensorized:{reasons}" if reasons else ""
        return (
            f"the model is already tensorized, at {', '.join(already)}; leave it as it is, or name other layers by "
            f"filter_fn.{others}"
        )
    if isinstance(filter_fn, type) and not any(isinstance(module, filter_fn) for module in model.modules()):
        return f"the model has no {filter_fn.__name__}, which filter_fn asks for"
    if reasons:
        return f"no layer would be tensorized; choose some with filter_fn or overrides, or lower max_rank.{reasons}"
    return f"the model has no layer that can be tensorized; supported are {SUPPORTED}"


def _check_values(chosen: Sequence[Decision]) -> None:
    """Refuse to start from weights that are not there or not numbers."""
    unloaded = [d.layer.name for d in chosen if any(p.is_meta for p in d.layer.module.parameters())]
    if unloaded:
        raise ValueError(
            f"trained=True needs the weights, but {', '.join(unloaded)} are on the meta device; "
            f"load them first, or leave trained=False to start from random factors"
        )
    for decision in chosen:
        if not all(bool(p.isfinite().all()) for p in decision.layer.module.parameters()):
            raise ValueError(f"trained=True needs finite weights, but {decision.layer.name} holds NaN or infinity")
    padded = [d.layer.name for d in chosen if _pads_with_more_than_zero(d)]
    if padded:
        warn(
            f"the row at padding_idx becomes zero, which it is not yet, in {', '.join(padded)}; to keep it, set "
            f"padding_idx=None before"
        )


def _warn_of_frozen(chosen: Sequence[Decision]) -> None:
    """Point out weights that are frozen and lost: nothing would train the random factors in their place."""
    weights = {d.layer.name: [d.layer.module.get_parameter(m.weight) for m in d.layer.matrices] for d in chosen}
    lost = [n for n, found in weights.items() if not any(weight.requires_grad or weight.is_meta for weight in found)]
    if lost:
        warn(
            f"frozen weights become random factors, which nothing will train, in {', '.join(lost)}; start from the "
            f"weights with trained=True, or keep them dense with overrides={{{lost[0]!r}: None}}"
        )


def _pads_with_more_than_zero(decision: Decision) -> bool:
    module = decision.layer.module
    if not isinstance(module, nn.Embedding) or module.padding_idx is None:
        return False  # bags never look at that row
    keeps = decision.tie is not None and decision.tie.frees_padding(decision.layer)
    return not keeps and bool(module.weight[module.padding_idx].any())


def _build_twins(
    chosen: Sequence[Decision], trained: bool, device: torch.device | None, progress: Progress | None
) -> dict[nn.Module, TensorizedModule]:
    """The tensorized twin of every chosen layer, by dense layer; lenders of tensors come first."""
    twins: dict[nn.Module, TensorizedModule] = {}
    for number, decision in enumerate(sorted(chosen, key=lambda d: d.lender is not d.layer), start=1):
        if progress is not None:
            progress(decision.layer.name, number, len(chosen))
        twins[decision.layer.module] = _twin(decision, twins, trained, device)
    return twins


def _twin(
    decision: Decision, twins: Mapping[nn.Module, TensorizedModule], trained: bool, device: torch.device | None
) -> TensorizedModule:
    layer, tie, config = decision.layer, decision.tie, decision.config
    assert config is not None
    if tie is None or tie.leader is layer:
        twin = layer.twin.from_dense(layer.module, config, trained=trained, device=device)
    else:
        # Its own tensor is dropped at once, so it is made as small as can be.
        small = replace(config, max_rank=1, in_dims=None, out_dims=None)
        twin = layer.twin.from_dense(layer.module, small, device=device)
        _borrow(twin, twins[tie.leader.module], tie.is_transposed(layer))
        twin.config = config
    if isinstance(twin, Embedding) and tie is not None and tie.frees_padding(layer):
        twin.padding_idx = None
    twin.train(layer.module.training)
    for name, part in _parts(twin).items():
        part.requires_grad_(layer.module.get_parameter(name).requires_grad)
    carry_hooks(layer.module, twin)
    return twin


def _borrow(twin: TensorizedModule, lender: TensorizedModule, transposed: bool) -> None:
    """Let ``twin`` use the tensor of ``lender``; recurrent layers are refused before they come here."""
    assert isinstance(lender, TensorizedLayer)
    if isinstance(twin, Linear):
        twin.tie_(lender.tensor, transposed=transposed)
    elif isinstance(twin, TensorizedLayer):
        twin.tensor = lender.tensor


# Back to torch.nn -------------------------------------------------------------------------------------


def _plain_layer(layer: TensorizedModule) -> nn.Module:
    dense = layer.to_dense()
    dense.train(layer.training)
    for name, part in _parts(layer).items():
        dense.get_parameter(name).requires_grad_(any(p.requires_grad for p in part.parameters()))
    carry_hooks(layer, dense)
    return dense


def _tie_weights(pairs: Sequence[tuple[TensorizedModule, nn.Module]]) -> None:
    """Give the dense layers of one tensor one weight, where they store it the same way round."""
    shared: dict[tuple[BayesianTensor, bool], nn.Parameter] = {}
    # a bag with a padding row holds zeros there, so another layer's weight goes first
    for layer, dense in sorted(pairs, key=lambda pair: isinstance(pair[0], EmbeddingBag)):
        if isinstance(layer, TensorizedLayer):
            outputs_first = isinstance(layer, Linear) and not (layer.transposed or layer.inputs_first)
            weight = shared.setdefault((layer.tensor, outputs_first), dense.get_parameter("weight"))
            dense.register_parameter("weight", weight)


def _tie_biases(pairs: Sequence[tuple[TensorizedModule, nn.Module]]) -> dict[nn.Parameter, nn.Parameter]:
    """Give the dense layers of one bias vector one bias; returns the dense bias by the mean it replaces."""
    shared: dict[nn.Parameter, nn.Parameter] = {}
    for layer, dense in pairs:
        for name, vector in _vectors(layer):
            setattr(dense, name, shared.setdefault(vector.entries.mean[0], dense.get_parameter(name)))
    return shared


# Both ways --------------------------------------------------------------------------------------------


def _parts(twin: TensorizedModule) -> dict[str, nn.Module]:
    """What stands in for the parameters of the dense layer, by their names there."""
    if isinstance(twin, Recurrent):
        return {**dict(twin.tensors.items()), **dict(twin.vectors.items())}
    assert isinstance(twin, TensorizedLayer)
    return {"weight": twin.tensor} | ({} if twin.bias_vector is None else {"bias": twin.bias_vector})


def _vectors(twin: TensorizedModule) -> list[tuple[str, BayesianVector]]:
    return [(name, part) for name, part in _parts(twin).items() if isinstance(part, BayesianVector)]


def _share_biases(twins: Mapping[nn.Module, TensorizedModule]) -> dict[nn.Parameter, nn.Parameter]:
    """Give the twins of one dense bias one vector; returns its mean by the dense bias it replaces."""
    shared: dict[nn.Parameter, BayesianVector] = {}
    for dense, twin in twins.items():
        for name, vector in _vectors(twin):
            common = shared.setdefault(dense.get_parameter(name), vector)
            if isinstance(twin, Recurrent):
                twin.vectors[name] = common
            elif isinstance(twin, TensorizedLayer):
                twin.bias_vector = common
    return {bias: vector.entries.mean[0] for bias, vector in shared.items()}
