"""What rankfold should reach on an H200, a bar and a goal beyond it, beside what records of the benchmarks say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rankfold.bench.cases import FORMATS
from rankfold.bench.contender import BAYESIAN, FIXED
from rankfold.bench.peers import fastest, smallest
from rankfold.grids import Grid

# A record by the name of its benchmark.
Records = Mapping[str, Mapping[str, Any]]

_NOTHING = "–"
_ROWS = "Embedding 10,131,227 × 128, {} rows, {}"
_SMALL, _SQUARE = "Linear 784 → 512, batch 128", "Linear 4096 → 4096, batch 4096"
_WAYS = ("forward_backward_graph", "forward_backward")
# Milliseconds for 65,536 rows. The goal is the dense table with sparse SGD, which was timed beside the peers.
_BARS_OF_ROWS = {"CP": 2.0, "Tucker": 2.0, "TT": 1.0, "TTM": 0.6}


def aims(records: Records) -> Grid:
    """One line for every aim: its peer, the bar and the goal, and what was measured, in ms unless a cell says MiB or ×.

    Args:
        records: of ``rankfold bench embedding``, ``linear`` and ``step``.
    """
    headings = ("work", "format", "best peer", "bar", "goal", "in a graph", "as it is", "reached")
    lines = [*_rows(records), *_memory(records), *_linear(records), *_steps(records)]
    return Grid("", headings, tuple(lines), labels=2)


def _rows(records: Records) -> Iterator[tuple[str, ...]]:
    many = [_ROWS.format("65,536", skew) for skew in ("uniform", "skewed")]
    goal = _peer(many[1], "dense")
    for format in FORMATS:
        graph, eager = (max(_ms(records, "embedding", case, format, way) for case in many) for way in _WAYS)
        yield _line("65,536 rows", format, _peer(many[1], format), _BARS_OF_ROWS[format], goal, graph, eager)
    few = [_ROWS.format("2,048", skew) for skew in ("uniform", "skewed")]
    graph, eager = (max(_ms(records, "embedding", case, "TTM", way) for case in few) for way in _WAYS)
    cells = (_two(_peer(few[1], "TTM")), "0.50 as it is", "0.10", _two(graph), _two(eager))
    yield ("2,048 rows", "TTM", *cells, _reached(eager, 0.5, graph, 0.1))


def _memory(records: Records) -> Iterator[tuple[str, ...]]:
    """Extra memory, which was measured as it is, not in a graph."""
    many = [_ROWS.format("65,536", skew) for skew in ("uniform", "skewed")]
    for format in FORMATS:
        mib = max(_row(records, "embedding", case, format, FIXED)["extra_bytes"] for case in many) / 2**20
        cells = (f"{_smallest_peer(many[1], format):,} MiB", "70 MiB", "40 MiB", _NOTHING, f"{mib:.0f} MiB")
        yield ("65,536 rows, memory", format, *cells, _reached(mib, 70, mib, 40))


def _linear(records: Records) -> Iterator[tuple[str, ...]]:
    dense = _row(records, "linear", _SMALL, "dense", "torch.nn")["forward_backward_graph"]["median_ms"]
    for format in FORMATS:
        peer = _peer(_SMALL, format)
        graph, eager = (_ms(records, "linear", _SMALL, format, way) for way in _WAYS)
        yield _line(_SMALL, format, peer, peer, 2 * dense, graph, eager)
    graph, eager = (_ms(records, "linear", _SQUARE, "CP", way) for way in _WAYS)
    fast = _ms(records, "linear", f"{_SQUARE}, TF32", "CP", _WAYS[0])
    shown = f"{graph:.2f}, {fast:.2f} with TF32"
    cells = (_two(_peer(_SQUARE, "CP")), "4.00", "1.00 with TF32", shown, _two(eager))
    yield (_SQUARE, "CP", *cells, _reached(graph, 4.0, fast, 1.0))


def _steps(records: Records) -> Iterator[tuple[str, ...]]:
    case = "Training step of the MNIST network, batch 128"
    graph, eager = (_ms(records, "step", case, "TTM", way, BAYESIAN) for way in ("step_graph", "step"))
    yield _line("Bayesian step, MNIST", "TTM", None, 0.35, 0.15, graph, eager)
    for format in FORMATS:
        graph, eager = (
            _ms(records, "step", case, format, way, BAYESIAN) / _ms(records, "step", case, format, way, FIXED)
            for way in ("step_graph", "step")
        )
        cells = (_NOTHING, "1.50×", "1.15×", f"{graph:.2f}×", f"{eager:.2f}×")
        yield ("Bayesian over fixed rank", format, *cells, _reached(graph, 1.5, graph, 1.15))


def _line(
    work: str, format: str, peer: float | None, bar: float, goal: float, graph: float, eager: float
) -> tuple[str, ...]:
    numbers = (_two(bar), _two(goal), _two(graph), _two(eager))
    return (work, format, _NOTHING if peer is None else f"{peer:.2f}", *numbers, _reached(graph, bar, graph, goal))


def _peer(case: str, format: str) -> float:
    """Milliseconds of the fastest peer."""
    figure = fastest(case, format)
    if figure is None:
        raise LookupError(f"no peer was measured for {format} in {case!r}; see rankfold.bench.peers")
    return figure.ms


def _smallest_peer(case: str, format: str) -> int:
    """MiB of the peer that needs the least extra memory."""
    figure = smallest(case, format)
    if figure is None or figure.extra_mib is None:
        raise LookupError(f"no peer's memory was measured for {format} in {case!r}; see rankfold.bench.peers")
    return figure.extra_mib


def _two(ms: float) -> str:
    return f"{ms:.2f}" if ms >= 0.2 else f"{ms:.3f}"


def _reached(found: float, bar: float, further: float, goal: float) -> str:
    match found <= bar, further <= goal:
        case True, True:
            return "goal"
        case True, False:
            return "bar"
        case False, True:
            return "goal in a graph, bar missed"
    return "no"


def _ms(records: Records, name: str, case: str, format: str, way: str, library: str = FIXED) -> float:
    return float(_row(records, name, case, format, library)[way]["median_ms"])


def _row(records: Records, name: str, case: str, format: str, library: str) -> dict[str, Any]:
    """The line of a record that a case, a format and a library have."""
    wanted = (case, format, library)
    return next(row for row in records[name]["rows"] if (row["case"], row["format"], row["library"]) == wanted)
