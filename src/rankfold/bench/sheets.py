"""The tables of a benchmark, made from its JSON record alone: for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankfold.bench import peers
from rankfold.bench.cases import FORMATS
from rankfold.bench.contender import BAYESIAN, FIXED
from rankfold.bench.profile import KINDS
from rankfold.grids import Grid

NOTHING = "–"
_Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Sheet:
    """What a cell may look at besides its row."""

    rows: Sequence[_Row]  # of the same case
    beside_peers: bool
    quartiles: bool


@dataclass(frozen=True)
class _Column:
    heading: str
    cell: Callable[[_Row, _Sheet], str]


def sheets(record: Mapping[str, Any], quartiles: bool = True) -> list[Grid]:
    """One table per case; columns without a figure are left out, and notes say what is missing."""
    columns = _COLUMNS.get(record.get("bench", ""), _LAYER)
    cases = dict.fromkeys(row["case"] for row in record["rows"])
    beside_peers = peers.DEVICE in record["device"]["name"]
    found = []
    for case in cases:
        rows = _grouped([row for row in record["rows"] if row["case"] == case])
        found.append(_grid(case, columns, _Sheet(rows, beside_peers, quartiles)))
        if any(row.get("kernels") for row in rows):
            found.append(_grid(f"{case}: µs of its kernels", _KERNELS, _Sheet(rows, beside_peers, quartiles)))
    return found


def _grouped(rows: Sequence[_Row]) -> list[_Row]:
    """Rows of a format next to each other, the dense ones first."""
    return sorted(rows, key=lambda row: ("dense", *FORMATS).index(row["format"]))


def _grid(case: str, columns: Sequence[_Column], sheet: _Sheet) -> Grid:
    filled = [[column.cell(row, sheet) for row in sheet.rows] for column in columns]
    kept = [n for n, cells in enumerate(filled) if any(cell != NOTHING for cell in cells)]
    lines = [
        (row["format"], _name(row), *(filled[n][position] for n in kept)) for position, row in enumerate(sheet.rows)
    ]
    notes = tuple(f"{_name(row)}, {row['format']}: {row['note']}" for row in sheet.rows if row.get("note"))
    return Grid(case, ("format", "layer", *(columns[n].heading for n in kept)), tuple(lines), notes=notes)


def _name(row: _Row) -> str:
    return f"{row['library']}, {row['layout']}" if row.get("layout", "dense") != "dense" else str(row["library"])


# Cells ----------------------------------------------------------------------------------------------------


def milliseconds(value: float) -> str:
    """Two digits after the point, three below a millisecond.

    >>> milliseconds(1234.5), milliseconds(0.0164)
    ('1,234.50', '0.016')
    """
    return f"{value:,.2f}" if value >= 1 else f"{value:.3f}"


def _time(key: str, show: Callable[[float], str] = milliseconds) -> Callable[[_Row, _Sheet], str]:
    def cell(row: _Row, sheet: _Sheet) -> str:
        timing = row.get(key)
        if timing is None:
            return NOTHING
        around = f" [{show(timing['lower_ms'])} – {show(timing['upper_ms'])}]" if sheet.quartiles else ""
        return f"{show(timing['median_ms'])}{around}"

    return cell


def _microseconds(value_ms: float) -> str:
    return f"{1e3 * value_ms:,.1f}"


def _value(key: str, show: Callable[[Any], str] = "{:,}".format) -> Callable[[_Row, _Sheet], str]:
    """What a row has under a key: a count, unless it is shown in another way."""
    return lambda row, sheet: NOTHING if row.get(key) is None else show(row[key])


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _over_floor(*keys: str) -> Callable[[_Row, _Sheet], str]:
    """The fastest of these times over the floor."""

    def cell(row: _Row, sheet: _Sheet) -> str:
        floor, fastest = row.get("floor_ms"), _fastest(row, *keys)
        return NOTHING if not floor or fastest is None else f"{fastest / floor:,.1f}×"

    return cell


def _fastest(row: _Row, *keys: str) -> float | None:
    medians = [row[key]["median_ms"] for key in keys if row.get(key) is not None]
    return min(medians, default=None)


def _fastest_peer(row: _Row, sheet: _Sheet) -> str:
    found = peers.fastest(row["case"], row["format"]) if sheet.beside_peers else None
    return NOTHING if found is None else f"{found.ms:.2f} ({found.peer})"


def _smallest_peer(row: _Row, sheet: _Sheet) -> str:
    found = peers.smallest(row["case"], row["format"]) if sheet.beside_peers else None
    return NOTHING if found is None else f"{found.extra_mib:,} ({found.peer})"


def _over_fixed(row: _Row, sheet: _Sheet) -> str:
    """A Bayesian step over the fixed-rank step of the same format."""
    key = "step_graph" if row.get("step_graph") else "step"
    fixed = [r for r in sheet.rows if (r["library"], r["format"]) == (FIXED, row["format"])]
    if row["library"] != BAYESIAN or not fixed:
        return NOTHING
    return f"{row[key]['median_ms'] / fixed[0][key]['median_ms']:.2f}×"


def _epoch(row: _Row, sheet: _Sheet) -> str:
    steps, fastest = row.get("steps_per_epoch"), _fastest(row, "step", "step_graph")
    return NOTHING if steps is None or fastest is None else f"{steps * fastest / 1e3:.2f}"


def _over_dense(row: _Row, sheet: _Sheet) -> str:
    """How many times faster an answer is than the dense network's, run in the same way."""
    dense = [r for r in sheet.rows if (r["library"], r["format"]) == (row["library"], "dense")]
    if row["format"] == "dense" or row.get("answer") is None or not dense or dense[0].get("answer") is None:
        return NOTHING
    return f"{dense[0]['answer']['median_ms'] / row['answer']['median_ms']:.2f}×"


def _kernels(kind: str) -> Callable[[_Row, _Sheet], str]:
    return lambda row, sheet: f"{row['kernels'][kind]:,.1f}" if kind in (row.get("kernels") or {}) else NOTHING


def _all_kernels(row: _Row, sheet: _Sheet) -> str:
    return f"{sum(row['kernels'].values()):,.1f}" if row.get("kernels") else NOTHING


_KERNELS = (*(_Column(kind, _kernels(kind)) for kind in KINDS), _Column("all", _all_kernels))
_LAYER = (
    _Column("parameters", _value("parameters")),
    _Column("forward, ms", _time("forward")),
    _Column("forward + backward, ms", _time("forward_backward")),
    _Column("graph: forward, ms", _time("forward_graph")),
    _Column("graph: forward + backward, ms", _time("forward_backward_graph")),
    _Column("memory, MiB", _value("extra_bytes", _mib)),
    _Column("floor, ms", _value("floor_ms", milliseconds)),
    _Column("over floor", _over_floor("forward_backward", "forward_backward_graph")),
    _Column("fastest peer, ms", _fastest_peer),
)
_COLUMNS = {
    "step": (
        _Column("parameters", _value("parameters")),
        _Column("step, ms", _time("step")),
        _Column("graph: step, ms", _time("step_graph")),
        _Column("over fixed rank", _over_fixed),
        _Column("epoch, s", _epoch),
        _Column("memory, MiB", _value("memory_bytes", _mib)),
        _Column("kernel launches", _value("launches")),
        _Column("floor, ms", _value("floor_ms", milliseconds)),
        _Column("over floor", _over_floor("step", "step_graph")),
    ),
    "memory": (
        _Column("parameters", _value("parameters")),
        _Column("peak, MiB", _value("peak_bytes", _mib)),
        _Column("least, MiB", _value("least_bytes", _mib)),
        _Column("how", _value("how", str)),
        _Column("smallest peer, MiB", _smallest_peer),
    ),
    "inference": (
        _Column("parameters", _value("parameters")),
        _Column("answer, µs", _time("answer", _microseconds)),
        _Column("faster than dense", _over_dense),
    ),
}
