"""A plan: what becomes of every weight of a model, as data and as a table to read."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rankfold.accounting_text import bytes_text, ranks_text

Action = Literal["tensorize", "tensorized", "dense", "refused"]

_WIDTH = 118
_HEADER = ("layer", "type", "format", "ranks", "padding", "dense", "training", "final")
_LEFT_ALIGNED = 4  # the first columns are words, the others numbers
_LONGEST = {2: 34, 3: 20}  # the most characters of a format and of ranks


@dataclass(frozen=True)
class PlanRow:
    """One weight of the model and what becomes of it.

    Attributes:
        name: the layer, or layer and weight for a layer with several.
        layer: the torch.nn class, such as ``"Linear"`` or ``"LSTM"``.
        action: ``"tensorize"``, ``"tensorized"`` (it is already), ``"dense"`` (it stays) or ``"refused"``
            (``tensorize_`` would raise).
        format, in_dims, out_dims, ranks: the format and its modes; empty if it stays dense.
        padding: the share of entries that exist only as padding.
        dense_parameters: weight and bias of the dense layer. What layers share is counted at the first.
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
        rows: one per layer that has a tensorized twin, in the order of the model, then those that are
            tensorized already.
        other_parameters, other_bytes: all parameters outside these layers; they stay as they are.
        notes: what is tensorized already, and which layers of torch.nn cannot be.
    """

    rows: tuple[PlanRow, ...]
    other_parameters: int
    other_bytes: int
    notes: tuple[str, ...] = ()

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
    if row.format:
        modes = " x ".join("·".join(map(str, side)) for side in (row.in_dims, row.out_dims))
        words = (f"{row.format} {modes}", ranks_text(row.ranks, row.ranks), f"{row.padding:.1%}")
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
    names: dict[str, list[str]] = {}  # of the layers, by what there is to say of them
    for row in plan.rows:
        if row.note:
            names.setdefault(row.note, []).append(row.name)
    notes = [f"{', '.join(found)}: {note}" for note, found in names.items()] + list(plan.notes)
    if not any(row.action == "tensorize" for row in plan.rows):
        notes.append("no layer would be tensorized")
    return [line for note in notes for line in textwrap.wrap(f"note: {note}", _WIDTH, subsequent_indent="      ")]
