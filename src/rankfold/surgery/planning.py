"""``plan``: what ``tensorize_`` would do to a model, without creating a single tensor."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn
from torch.nn.parameter import is_lazy

from rankfold.accounting import training_parameters
from rankfold.accounting_text import bytes_text
from rankfold.config import Inference, TensorConfig
from rankfold.formats import TensorFormat
from rankfold.surgery.decisions import Decision, decide
from rankfold.surgery.dense_layers import Matrix
from rankfold.surgery.selection import LayerFilter, Overrides

Action = Literal["tensorize", "dense", "refused"]

_WIDTH = 118
_HEADER = ("layer", "type", "format", "ranks", "padding", "dense", "training", "final")
_LEFT_ALIGNED = 4  # the first columns are words, the others numbers
_LONGEST = {2: 34, 3: 14}  # the most characters of a format and of ranks


@dataclass(frozen=True)
class PlanRow:
    """One weight of the model and what becomes of it.

    Attributes:
        name: the layer, or layer and weight for a layer with several.
        layer: the torch.nn class, such as ``"Linear"`` or ``"LSTM"``.
        action: ``"tensorize"``, ``"dense"`` (it stays) or ``"refused"`` (``tensorize_`` would raise).
        format, in_dims, out_dims, ranks: the format and its modes; empty if it stays dense.
        padding: the share of entries that exist only as padding.
        dense_parameters: weight and bias as they are. What layers share is counted at the first.
        factor_parameters: factors and bias; the size of the layer after training, if no rank is cut.
        training_parameters: what is learned: for ``"bayes"`` twice the factors and bias, plus one λ per rank.
        dense_bytes, final_bytes: memory of the dense and of the factor parameters.
        note: why it stays dense or is refused, or what to look at.
    """

    name: str
    layer: str
    action: Action
    format: str
    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    ranks: tuple[int, ...]
    padding: float
    dense_parameters: int
    factor_parameters: int
    training_parameters: int
    dense_bytes: int
    final_bytes: int
    note: str


@dataclass(frozen=True)
class Totals:
    """Sums over the whole model, its other parameters included."""

    dense_parameters: int
    factor_parameters: int
    training_parameters: int
    dense_bytes: int
    final_bytes: int


@dataclass(frozen=True, repr=False)
class Plan:
    """What ``tensorize_`` would do; it shows itself as a table.

    Attributes:
        rows: one per layer that has a tensorized twin, in the order of the model.
        other_parameters, other_bytes: all parameters outside these layers; they stay as they are.
    """

    rows: tuple[PlanRow, ...]
    other_parameters: int
    other_bytes: int

    @property
    def totals(self) -> Totals:
        rows = self.rows
        return Totals(
            self.other_parameters + sum(row.dense_parameters for row in rows),
            self.other_parameters + sum(row.factor_parameters for row in rows),
            self.other_parameters + sum(row.training_parameters for row in rows),
            self.other_bytes + sum(row.dense_bytes for row in rows),
            self.other_bytes + sum(row.final_bytes for row in rows),
        )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "totals": asdict(self.totals)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    def __repr__(self) -> str:
        return _table(self)


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
    parameters, num_bytes = _size(model.parameters(), seen)
    return Plan(tuple(rows), parameters, num_bytes)


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
        padding=(1.0 + format.inputs.padding) * (1.0 + format.outputs.padding) - 1.0,
        dense_parameters=dense + bias,
        factor_parameters=entries + bias,
        training_parameters=training,
        dense_bytes=dense_bytes + bias_bytes,
        final_bytes=entries * weight.element_size() + bias_bytes,
        note=note,
    )


def _size(parameters: Iterable[nn.Parameter], seen: set[nn.Parameter]) -> tuple[int, int]:
    """Number and bytes of the parameters not ``seen`` before, which are seen from now on."""
    count = num_bytes = 0
    for parameter in parameters:
        if parameter not in seen and not is_lazy(parameter):
            seen.add(parameter)
            count += parameter.numel()
            num_bytes += parameter.numel() * parameter.element_size()
    return count, num_bytes


# The table to read -----------------------------------------------------------------------------------


def _table(plan: Plan) -> str:
    """Rows, other parameters and totals in aligned columns, then bytes and notes."""
    totals = plan.totals
    rows = [_cells(row) for row in plan.rows]
    if plan.other_parameters:
        rows.append(("other parameters", "", "dense", "", "", *[f"{plan.other_parameters:,}"] * 3))
    numbers = (totals.dense_parameters, totals.training_parameters, totals.factor_parameters)
    lines = _aligned([_HEADER, *rows, ("total", "", "", "", "", *(f"{n:,}" for n in numbers))])
    rule = "-" * max(map(len, lines))
    size = f"size: {bytes_text(totals.dense_bytes)} dense, {bytes_text(totals.final_bytes)} final"
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], size, *_notes(plan)])


def _cells(row: PlanRow) -> tuple[str, ...]:
    if row.action == "tensorize":
        modes = " x ".join("·".join(map(str, side)) for side in (row.in_dims, row.out_dims))
        ranks = str(row.ranks[0]) if len(set(row.ranks)) == 1 else " ".join(map(str, row.ranks))
        words = (f"{row.format} {modes}", ranks, f"{row.padding:.1%}")
    else:
        words = (row.action, "", "")
    counts = (row.dense_parameters, row.training_parameters, row.factor_parameters)
    return (row.name, row.layer, *words, *(f"{n:,}" for n in counts))


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns of equal width; the name column gives way when the table would be too wide."""
    cut = [tuple(_shorten(cell, _LONGEST.get(n, _WIDTH)) for n, cell in enumerate(row)) for row in rows]
    widths = [max(len(row[n]) for row in cut) for n in range(len(_HEADER))]
    others = sum(widths[1:]) + 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(_WIDTH - others, len("other parameters")))
    return ["  ".join(_place(cell, n, widths[n]) for n, cell in enumerate(row)).rstrip() for row in cut]


def _place(cell: str, column: int, width: int) -> str:
    if column == 0 and len(cell) > width:
        cell = "…" + cell[len(cell) - width + 1 :]  # the end of a name tells most
    return cell.ljust(width) if column < _LEFT_ALIGNED else cell.rjust(width)


def _shorten(cell: str, longest: int) -> str:
    return cell if len(cell) <= longest else cell[: longest - 1] + "…"


def _notes(plan: Plan) -> list[str]:
    notes = [f"{row.name}: {row.note}" for row in plan.rows if row.note]
    if not any(row.action == "tensorize" for row in plan.rows):
        notes.append("no layer would be tensorized")
    return [line for note in notes for line in textwrap.wrap(f"note: {note}", _WIDTH, subsequent_indent="      ")]
