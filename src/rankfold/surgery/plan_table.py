"""A plan: what becomes of every weight of a model, as data and as a table to read."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rankfold.counts_table import bytes_text, modes_text, ranks_text

Action = Literal["tensorize", "tensorized", "dense", "refused"]

_WIDTH = 118
_HEADER = ("layer", "type", "format", "ranks", "padding", "dense", "training", "final")
_WORDS = ("layer", "type", "format", "ranks")  # they begin at the left; numbers end at the right
_LONGEST = {"format": 34, "ranks": 20}  # the most characters
_SHORTEST_NAME = len("other parameters")
_DISPENSABLE = ("type", "padding", "training")  # in the order in which they give way where there is little room


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

    def table(self, width: int = _WIDTH) -> str:
        """The table in lines of at most ``width`` characters, if its columns can be made so narrow.

        Long names are cut first; then columns give way: the padding if there is none, the type, and so on.
        """
        return _table(self, width)

    def __repr__(self) -> str:
        return self.table()


def _table(plan: Plan, width: int) -> str:
    """Rows, other parameters and totals in aligned columns, then bytes and notes."""
    totals = plan.totals
    rows = [_cells(row) for row in plan.rows]
    if plan.other_parameters:
        rows.append(("other parameters", "", "dense", "", "", *[f"{plan.other_parameters:,}"] * 3))
    numbers = (totals.dense_parameters, totals.training_parameters, totals.factor_parameters)
    rows.append(("total", "", "", "", "", *(f"{n:,}" for n in numbers)))
    spare = () if any(row.padding for row in plan.rows) else ("padding",)
    lines = _aligned([dict(zip(_HEADER, row, strict=True)) for row in [_HEADER, *rows]], (*spare, *_DISPENSABLE), width)
    rule = "-" * max(map(len, lines))
    size = f"size: {bytes_text(totals.dense_bytes)} dense, {bytes_text(totals.final_bytes)} final"
    return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], size, *_notes(plan, width)])


def _cells(row: PlanRow) -> tuple[str, ...]:
    if row.format:
        words = (
            f"{row.format} {modes_text(row.in_dims, row.out_dims)}",
            ranks_text(row.ranks, row.ranks),
            f"{row.padding:.1%}",
        )
    else:
        words = (row.action, "", "")
    counts = (row.dense_parameters, row.training_parameters, row.factor_parameters)
    return (row.name, row.layer, *words, *(f"{n:,}" for n in counts))


def _aligned(rows: Sequence[dict[str, str]], dispensable: Sequence[str], width: int) -> list[str]:
    """Columns of equal width; where the table would be too wide, names are cut and ``dispensable`` columns go."""
    cut = [{name: _shorten(cell, _LONGEST.get(name, len(cell))) for name, cell in row.items()} for row in rows]
    widths = {name: max(len(row[name]) for row in cut) for name in _HEADER}
    for name in dispensable:
        if min(widths["layer"], _SHORTEST_NAME) + _others(widths) > width:
            widths.pop(name, None)
    widths["layer"] = min(widths["layer"], max(width - _others(widths), _SHORTEST_NAME))
    return ["  ".join(_place(row[name], name, wide) for name, wide in widths.items()).rstrip() for row in cut]


def _others(widths: Mapping[str, int]) -> int:
    """The width of all columns but that of the names, with what is between them."""
    return sum(widths.values()) - widths["layer"] + 2 * (len(widths) - 1)


def _place(cell: str, column: str, width: int) -> str:
    if column == "layer" and len(cell) > width:
        cell = "…" + cell[len(cell) - width + 1 :]  # the end of a name tells most
    return cell.ljust(width) if column in _WORDS else cell.rjust(width)


def _shorten(cell: str, longest: int) -> str:
    return cell if len(cell) <= longest else cell[: longest - 1] + "…"


def _notes(plan: Plan, width: int) -> list[str]:
    names: dict[str, list[str]] = {}  # of the layers, by what there is to say of them
    for row in plan.rows:
        if row.note:
            names.setdefault(row.note, []).append(row.name)
    notes = [f"{', '.join(found)}: {note}" for note, found in names.items()] + list(plan.notes)
    if not any(row.action == "tensorize" for row in plan.rows):
        notes.append("no layer would be tensorized")
    return [line for note in notes for line in textwrap.wrap(f"note: {note}", width, subsequent_indent="      ")]
