"""``plan``: what ``tensorize_`` would do to a model, without creating a single tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import nn
from torch.nn.parameter import is_lazy

from rankfold.config import Inference, TensorConfig
from rankfold.counts import counts_of, training_parameters
from rankfold.formats import TensorFormat
from rankfold.surgery.decisions import Decision, decide
from rankfold.surgery.dense_layers import Matrix
from rankfold.surgery.plan_table import Plan, PlanRow
from rankfold.surgery.selection import LayerFilter, Overrides
from rankfold.surgery.unsupported import unsupported_notes
from rankfold.tensorized_weights import tensorized_weights


def plan(
    model: nn.Module,
    config: TensorConfig | None,
    filter_fn: LayerFilter | None = None,
    *,
    overrides: Overrides | None = None,
) -> Plan:
    """Say what :func:`~rankfold.tensorize_` would do with the same arguments; nothing is allocated.

    The model may be on the meta device.

    >>> from torch import nn
    >>> from rankfold.config import TTM
    >>> model = nn.Sequential(nn.Linear(784, 512, device="meta"), nn.ReLU(), nn.Linear(512, 10, device="meta"))
    >>> row = plan(model, TTM(max_rank=20, in_dims=(28, 28), out_dims=(16, 32)), "0").rows[0]
    >>> row.ranks, row.dense_parameters, row.factor_parameters
    ((20,), 401920, 27392)
    """
    seen: set[nn.Parameter] = set()
    rows = [row for decision in decide(model, config, filter_fn, overrides) for row in _rows(decision, seen)]
    already = list(_tensorized_already(model, seen))
    parameters, num_bytes = _size(model.parameters(), seen)
    return Plan((*rows, *already), parameters, num_bytes, tuple(_notes(model, already)))


def _notes(model: nn.Module, already: Sequence[PlanRow]) -> Iterator[str]:
    if already:
        yield f"already tensorized, and left as they are: {', '.join(row.name for row in already)}"
    yield from unsupported_notes(model)


# Counting ---------------------------------------------------------------------------------------------


def _rows(decision: Decision, seen: set[nn.Parameter]) -> Iterator[PlanRow]:
    if decision.config is None:
        yield _dense_row(decision, seen)
        return
    pairs = zip(decision.layer.matrices, decision.formats, strict=True)
    for n, (matrix, format) in enumerate(pairs):
        yield _tensorized_row(decision, decision.config.inference, matrix, format, seen, "" if n else decision.note)


def _dense_row(decision: Decision, seen: set[nn.Parameter]) -> PlanRow:
    layer = decision.layer
    count, num_bytes = _size(layer.module.parameters(), seen)
    return PlanRow(
        name=layer.name,
        layer=layer.base.__name__,
        action="refused" if decision.refusal else "dense",
        format="",
        in_dims=(),
        out_dims=(),
        ranks=(),
        padding=0.0,
        dense_parameters=count,
        factor_parameters=count,
        training_parameters=count,
        dense_bytes=num_bytes,
        final_bytes=num_bytes,
        note=decision.note,
    )


def _tensorized_row(
    decision: Decision, inference: Inference, matrix: Matrix, format: TensorFormat, seen: set[nn.Parameter], note: str
) -> PlanRow:
    layer = decision.layer
    weight = layer.module.get_parameter(matrix.weight)
    dense, dense_bytes = _size([weight], seen)
    bias, bias_bytes = _size([] if matrix.bias is None else [layer.module.get_parameter(matrix.bias)], seen)
    training = training_parameters(format, inference, bias)
    entries = format.num_entries
    if decision.lender is not layer:  # its factors and λ are counted at the lender
        training, entries = training - training_parameters(format, inference), 0
    return PlanRow(
        name=f"{layer.name}.{matrix.weight}" if len(decision.formats) > 1 else layer.name,
        layer=layer.base.__name__,
        action="tensorize",
        format=format.name,
        in_dims=format.inputs.dims,
        out_dims=format.outputs.dims,
        ranks=format.ranks,
        padding=_padding(format),
        dense_parameters=dense + bias,
        factor_parameters=entries + bias,
        training_parameters=training,
        dense_bytes=dense_bytes + bias_bytes,
        final_bytes=entries * weight.element_size() + bias_bytes,
        note=note,
    )


def _tensorized_already(model: nn.Module, seen: set[nn.Parameter]) -> Iterator[PlanRow]:
    counted: set[nn.Module] = set()
    for weight in tensorized_weights(model):
        fresh = [part for part in weight.parts if part not in counted]
        counted.update(fresh)
        seen.update(parameter for part in fresh for parameter in part.parameters())
        counts, format = counts_of(fresh), weight.tensor.format
        yield PlanRow(
            name=weight.name,
            layer=weight.type,
            action="tensorized",
            format=format.name,
            in_dims=format.inputs.dims,
            out_dims=format.outputs.dims,
            ranks=format.ranks,
            padding=_padding(format),
            dense_parameters=counts.dense_parameters,
            factor_parameters=counts.final_parameters,
            training_parameters=counts.training_parameters,
            dense_bytes=counts.dense_bytes,
            final_bytes=counts.final_bytes,
            note="",
        )


def _padding(format: TensorFormat) -> float:
    return (1.0 + format.inputs.padding) * (1.0 + format.outputs.padding) - 1.0


def _size(parameters: Iterable[nn.Parameter], seen: set[nn.Parameter]) -> tuple[int, int]:
    """Number and bytes of the parameters not ``seen`` before, which are seen from now on."""
    count = num_bytes = 0
    for parameter in parameters:
        if parameter not in seen and not is_lazy(parameter):
            seen.add(parameter)
            count += parameter.numel()
            num_bytes += parameter.numel() * parameter.element_size()
    return count, num_bytes
