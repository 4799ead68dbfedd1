"""How many numbers a model holds: as a dense model, in training, and when deployed.

Three counts of one layer with F factor entries, a bias of b entries and ranks R_n:

- *dense*: what the ``torch.nn`` layer would have, ``I·J + b``;
- *training*: ``2 (F + b) + ΣR_n`` in the Bayesian mode (a mean and a log-std for everything, one λ per
  rank), ``F + b + ΣR_n`` for MAP, ``F + b`` at fixed rank;
- *final*: ``F + b``, what is left when only the posterior mean is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.bayesian_vector import BayesianVector
from rankfold.config import Inference
from rankfold.formats import TensorFormat
from rankfold.priors import VARIANCE_FLOOR
from rankfold.pruning.rules import InformationRule, PruningRule
from rankfold.tensorized_weights import TensorizedWeight, tensorized_weights
from rankfold.wrapping import unwrapped


@dataclass(frozen=True)
class Counts:
    """Parameters and their bytes. Sums of layers are sums of these."""

    dense_parameters: int
    training_parameters_at_start: int
    training_parameters: int
    final_parameters: int
    dense_bytes: int
    training_bytes: int
    final_bytes: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    @property
    def compression(self) -> float | None:
        """Dense over final parameters; ``None`` when nothing is counted, as for a shared tensor."""
        return self.dense_parameters / self.final_parameters if self.final_parameters else None


_NOTHING = Counts(0, 0, 0, 0, 0, 0, 0)
_ORDINALS = {1: "st", 2: "nd", 3: "rd"}  # no tensor has 21 ranks


@dataclass(frozen=True)
class LayerAccount:
    """One tensorized layer, or one weight of a recurrent layer. Without a prior, the last three are ``None``.

    Attributes:
        name, type: as in :class:`~rankfold.tensorized_weights.TensorizedWeight`.
        ranks_before, ranks: the ranks at the start and now.
        shared_with: the layer that owns the tensor when it is tied; it is counted there.
        collapsed: no rank of some rank group carries anything.
        kl_nats: KL between posterior and prior, bias included; for MAP −log prior, up to a constant.
        variance_range: the smallest and the largest λ.
        num_updates: how many times λ was updated.
    """

    name: str
    type: str
    format: str
    inference: str
    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    ranks_before: tuple[int, ...]
    ranks: tuple[int, ...]
    counts: Counts
    shared_with: str | None
    collapsed: bool
    kl_nats: float | None
    variance_range: tuple[float, float] | None
    num_updates: int | None


@dataclass(frozen=True)
class Accounting:
    """The account of a whole model.

    Attributes:
        layers: the tensorized layers.
        other: the parameters of everything else, the layers that stay dense.
        total: layers and other together; every shared tensor once.
        num_buffers: how many numbers the floating-point buffers hold, such as batch norm's running
            statistics. They are no parameters and are counted nowhere else.
        warnings: what needs attention.
    """

    layers: tuple[LayerAccount, ...]
    other: Counts
    total: Counts
    num_buffers: int
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as dicts, lists, strings and finite numbers, with the compression ratios."""
        plain: dict[str, Any] = _plain(asdict(self))
        for layer, entry in zip(self.layers, plain["layers"], strict=True):
            entry["counts"]["compression"] = layer.counts.compression
        plain["total"]["compression"] = self.total.compression
        return plain

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)


def accounting(model: nn.Module) -> Accounting:
    """Count what ``model`` holds, layer by layer. It also works for a model without tensorized layers.

    >>> import rankfold as rf
    >>> config = rf.CP(max_rank=50, in_dims=(28, 28), out_dims=(16, 32))
    >>> total = accounting(rf.Linear(784, 512, config=config)).total
    >>> total.dense_parameters, total.training_parameters, total.final_parameters
    (401920, 11474, 5712)
    """
    model = unwrapped(model)
    owner: dict[nn.Module, str] = {}
    layers = tuple(_account(weight, owner) for weight in tensorized_weights(model))
    other = _other_counts(model, owner)
    total = sum((layer.counts for layer in layers), start=other)
    return Accounting(layers, other, total, _num_buffers(model), tuple(_warnings(layers)))


def training_parameters(format: TensorFormat, inference: Inference, bias_size: int = 0) -> int:
    """How many numbers training holds for one layer, counted from shapes alone.

    >>> import rankfold as rf
    >>> config = rf.TTM(max_rank=16, in_dims=(200, 220, 250), out_dims=(4, 4, 8))
    >>> training_parameters(config.build(10_131_227, 128), "bayes")
    540192
    """
    per_entry = 2 if inference == "bayes" else 1  # μ and log σ, or a point
    num_variances = 0 if inference == "fixed" else sum(format.ranks)  # λ
    return per_entry * (format.num_entries + bias_size) + num_variances


# Walking the model --------------------------------------------------------------------------------


def _account(weight: TensorizedWeight, owner: dict[nn.Module, str]) -> LayerAccount:
    """The account of one weight; ``owner`` says who counts what, and is added to."""
    tensor, shared_with = weight.tensor, owner.get(weight.tensor)
    fresh = [part for part in weight.parts if part not in owner]
    owner.update(dict.fromkeys(fresh, weight.name))
    has_values = tensor.has_prior and not tensor.variance.is_meta
    return LayerAccount(
        name=weight.name,
        type=weight.type,
        format=tensor.format.name,
        inference=tensor.inference,
        in_dims=tensor.format.inputs.dims,
        out_dims=tensor.format.outputs.dims,
        ranks_before=tensor.max_ranks,
        ranks=tensor.format.ranks,
        counts=counts_of(fresh),
        shared_with=shared_with,
        collapsed=has_values and _is_collapsed(tensor),
        kl_nats=_kl_nats(fresh) if has_values else None,
        variance_range=_extremes(tensor.variance) if has_values else None,
        num_updates=tensor.num_updates if tensor.has_prior else None,
    )


def counts_of(parts: Iterable[BayesianTensor | BayesianVector]) -> Counts:
    """What these tensors and biases hold together."""
    counts = (_tensor_counts(part) if isinstance(part, BayesianTensor) else _vector_counts(part) for part in parts)
    return sum(counts, start=_NOTHING)


def _tensor_counts(tensor: BayesianTensor) -> Counts:
    format, means = tensor.format, list(tensor.factors.mean)
    dense = format.inputs.size * format.outputs.size
    return Counts(
        dense_parameters=dense,
        training_parameters_at_start=training_parameters(format.with_ranks(tensor.max_ranks), tensor.inference),
        training_parameters=training_parameters(format, tensor.inference),
        final_parameters=format.num_entries,
        dense_bytes=dense * means[0].element_size(),
        training_bytes=_bytes([*tensor.factors.parameters(), tensor.variance]),
        final_bytes=_bytes(means),
    )


def _vector_counts(bias: BayesianVector) -> Counts:
    (mean,), trained = bias.entries.mean, list(bias.entries.parameters())
    size, in_training = mean.numel(), sum(p.numel() for p in trained)
    return Counts(size, in_training, in_training, size, _bytes([mean]), _bytes(trained), _bytes([mean]))


def _other_counts(model: nn.Module, owner: dict[nn.Module, str]) -> Counts:
    """The parameters outside the layers: plain ones, and biases that stand alone."""
    bayesian = [m for m in model.modules() if isinstance(m, (BayesianTensor, BayesianVector))]
    ours = {p for module in bayesian for p in module.parameters()}
    plain = [p for p in model.parameters() if p not in ours]
    size, size_bytes = sum(p.numel() for p in plain), _bytes(plain)
    counts = Counts(size, size, size, size, size_bytes, size_bytes, size_bytes)
    return counts + counts_of(part for part in bayesian if part not in owner)


def _num_buffers(model: nn.Module) -> int:
    """Entries of the floating-point buffers that are saved with the model, without λ."""
    ours = {id(m.variance) for m in model.modules() if isinstance(m, BayesianTensor)}
    saved = model.state_dict().keys()
    floats = [b for name, b in model.named_buffers() if name in saved and b.is_floating_point() and id(b) not in ours]
    return sum(buffer.numel() for buffer in floats)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# Facts that need values, not only shapes ----------------------------------------------------------


@torch.no_grad()
def _kl_nats(parts: Sequence[BayesianTensor | BayesianVector]) -> float:
    return sum(float(part.kl()) for part in parts)


def _extremes(values: Tensor) -> tuple[float, float]:
    smallest, largest = values.aminmax()
    return float(smallest), float(largest)


def _is_collapsed(tensor: BayesianTensor) -> bool:
    """Whether all ranks of some group are dead: without information, or for points with λ at its floor."""
    if tensor.inference == "bayes":
        dead = InformationRule().dead(tensor)
    else:
        dead = [variance < 10.0 * VARIANCE_FLOOR for variance in tensor.variances()]
    return any(bool(group.all()) for group in dead)


def _warnings(layers: Sequence[LayerAccount]) -> Iterator[str]:
    learned = [layer for layer in layers if layer.num_updates is not None and layer.shared_with is None]
    idle = [layer.name or "the model" for layer in learned if layer.num_updates == 0]
    if idle:
        which = "λ" if len(idle) == len(learned) else f"λ of {', '.join(idle)}"
        yield f"{which} was never updated: call ranks.step() after optimizer.step()"
    for layer in learned:
        name = layer.name or "the model"
        if layer.collapsed:
            yield f"{name} collapsed: its weights are practically zero. To avoid it, {PruningRule.remedy}"
        elif falls := ", ".join(_falls_to_1(layer)):
            yield f"{name}: {falls}; lower kl_weight if accuracy suffers"
        if layer.kl_nats is not None and not math.isfinite(layer.kl_nats):
            yield f"{name}: its KL is {layer.kl_nats}; the factors hold NaN or infinity"


def _falls_to_1(layer: LayerAccount) -> Iterator[str]:
    """Which ranks are down to 1, as in ``its 2nd rank fell from 10 to 1``."""
    for n, (before, now) in enumerate(zip(layer.ranks_before, layer.ranks, strict=True), start=1):
        if now == 1 < before:
            which = "rank" if len(layer.ranks) == 1 else f"{n}{_ORDINALS.get(n, 'th')} rank"
            yield f"its {which} fell from {before} to 1"


def _plain(value: Any) -> Any:
    """``value`` with lists for tuples, and ``None`` for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
