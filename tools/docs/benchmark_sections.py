"""Sections of pages that are made from records of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.bench.aims import aims
from rankfold.bench.cases import FORMATS
from rankfold.bench.ceilings import Ceilings
from rankfold.bench.contender import BAYESIAN
from rankfold.bench.memory import DLRM_BATCH, MIN_ROWS, WITH_SNAPSHOTS
from rankfold.bench.sheets import milliseconds, sheets
from rankfold.grids import Grid, render

ROOT = Path(__file__).parents[2]
_NOTHING = "–"


def _record(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / file).read_text(encoding="utf-8"))
    return found


# Layers side by side ----------------------------------------------------------------------------------

_CPU_LAYERS, _GPU_LAYERS = ("layers-cpu.json",), ("embedding-h200.json", "linear-h200.json", "conv-h200.json")
_LIBRARIES = ("torch.nn", "tensorly-torch", "rankfold, fixed rank", "rankfold, Bayesian")


def layers_cpu() -> str:
    """Forward + backward on one CPU core, beside tensorly-torch."""
    return _layers(_CPU_LAYERS, _LIBRARIES)


def layers_gpu() -> str:
    """The same on a GPU; tensorly-torch was not measured there."""
    return _layers(_GPU_LAYERS, tuple(name for name in _LIBRARIES if name != "tensorly-torch"))


def _layers(files: Sequence[str], libraries: tuple[str, ...]) -> str:
    records = [_record(file) for file in files]
    record = records[0]
    timed = [row for one in records for row in one["rows"] if row["forward_backward"]]
    cases = dict.fromkeys((row["case"], row["format"]) for row in timed if row["format"] != "dense")
    lines = []
    for case, format in cases:
        cells = [_best(timed, case, format, library) for library in libraries]
        lines.append((case, format, *cells))
    names = ", ".join(f"`benchmarks/{file}`" for file in files)
    where = f"{record['device']['name']}, torch {record['versions']['torch']}, from {names}"
    grid = Grid(
        f"Forward + backward in ms (extra memory in MiB); {where}", ("layer", "format", *libraries), tuple(lines)
    )
    return render([grid], "markdown")


def _best(rows: list[dict[str, Any]], case: str, format: str, library: str) -> str:
    """The fastest way that a library offers, of the same format; of torch.nn the dense layer."""
    format = "dense" if library == "torch.nn" else format
    found = [r for r in rows if (r["case"], r["format"]) == (case, format) and r["library"].startswith(library)]
    if not found:
        return _NOTHING
    best = min(found, key=lambda row: float(row["forward_backward"]["median_ms"]))
    return f"{best['forward_backward']['median_ms']:,.2f} ({best['extra_bytes'] / 2**20:,.0f})"


def formats_beside() -> str:
    """The formats in one line for every layer, on both devices; the fastest of them stands out."""
    return render([_formats(_GPU_LAYERS, "in a graph"), _formats(_CPU_LAYERS, "as they are")], "markdown")


def _formats(files: Sequence[str], how: str) -> Grid:
    records = [_record(file) for file in files]
    timed = [row for record in records for row in record["rows"] if row["forward_backward"]]
    lines = []
    for case in dict.fromkeys(row["case"] for row in timed):
        libraries = ("torch.nn", *["rankfold, fixed rank"] * len(FORMATS))
        cells = [_fastest(timed, case, *pair) for pair in zip(("dense", *FORMATS), libraries, strict=True)]
        best = min(ms for ms in cells[1:] if ms is not None)
        texts = [_NOTHING if ms is None else milliseconds(ms) for ms in cells]
        lines.append(
            (case, texts[0], *(f"**{t}**" if ms == best else t for t, ms in zip(texts[1:], cells[1:], strict=True)))
        )
    device = records[0]["device"]
    threads = f", {device['threads']} threads" if device["type"] == "cpu" else ""
    title = f"Forward + backward in ms, {how}; {device['name']}{threads}"
    return Grid(title, ("layer", "dense", *FORMATS), tuple(lines), labels=1)


def _fastest(rows: Sequence[dict[str, Any]], case: str, format: str, library: str) -> float | None:
    """In a graph where there is one."""
    for row in rows:
        if (row["case"], row["format"]) == (case, format) and row["library"].startswith(library):
            return float((row["forward_backward_graph"] or row["forward_backward"])["median_ms"])
    return None


# Benchmarks -------------------------------------------------------------------------------------------

BENCHMARKS = ("embedding", "linear", "conv", "step", "memory", "inference")


def benchmark(name: str) -> str:
    """Every record that is kept of a benchmark, or how to make one."""
    files = sorted((ROOT / "benchmarks").glob(f"{name}-*.json"))
    if not files:
        command = f"rankfold bench {name} --device cuda --out benchmarks/{name}-h200.json"
        return f"No figures are kept yet. This writes them, by the name of your device:\n\n```sh\n{command}\n```"
    return "\n\n".join(_benchmark_of(file.name) for file in files)


def aims_of_speed() -> str:
    """What was aimed at on an H200, and what is reached."""
    records = {name: _record(f"{name}-h200.json") for name in ("embedding", "linear", "step")}
    return render([aims(records)], "markdown")


def _benchmark_of(file: str) -> str:
    record = _record(file)
    reached = f" Ceilings: {Ceilings(**record['ceilings']).rates}." if record["ceilings"] else ""
    tables = render(sheets(record, quartiles=False), "markdown")
    return f"```sh\n{_command(record)}\n```\n\n{_where(record, file)}{reached}\n\n{tables}"


def _command(record: dict[str, Any]) -> str:
    """What measures such a record."""
    repeat = f" --repeat {record['repeat']}" if record["repeat"] else ""
    return f"rankfold bench {record['bench']} --device {record['device']['type']}{repeat}"


def _where(record: dict[str, Any], file: str) -> str:
    device = record["device"]
    threads = f", {device['threads']} threads" if device["type"] == "cpu" and record["bench"] != "inference" else ""
    return f"{device['name']}{threads}, torch {record['versions']['torch']}, from `benchmarks/{file}`."


def dlrm_on_a_cpu() -> str:
    """Peak memory of a process that trains DLRM: dense as computed, tensorized in every way that was measured."""
    record = _record("memory-cpu.json")
    rows = [row for row in record["rows"] if row["case"].startswith("DLRM")]
    with_snapshots = {(r["case"], r["format"]): r["peak_bytes"] for r in rows if r["library"] == WITH_SNAPSHOTS}
    dense = next(row for row in rows if row["how"] == "modelled")
    lines = [("nothing", _NOTHING, _millions(dense), f"{_gigabytes(dense['peak_bytes'])}, computed", _NOTHING)]
    for row in rows:
        if row["library"] == BAYESIAN:
            peaks = row["peak_bytes"], with_snapshots.get((row["case"], row["format"]))
            lines.append((_tensorized(row["case"]), row["format"], _millions(row), *map(_gigabytes, peaks)))
    headings = ("tensorized", "format", "parameters in training", "peak memory, GB", "with snapshots, GB")
    table = render([Grid("", headings, tuple(lines))], "markdown")
    return f"{table}\n\nBatches of {DLRM_BATCH:,}; {_where(record, 'memory-cpu.json')}"


def _tensorized(case: str) -> str:
    """Which tables, in words."""
    by_size = f"every table of at least {MIN_ROWS:,} rows"
    return f"{by_size}, as below" if by_size in case else "the five largest tables, at the paper's ranks"


def _millions(row: dict[str, Any]) -> str:
    return f"{row['parameters'] / 1e6:,.1f} million"


def _gigabytes(count: int | None) -> str:
    return _NOTHING if count is None else f"{count / 1e9:.1f}"


def cifar10_step() -> str:
    """Time and memory of dense, fixed-rank and Bayesian training steps, without where the time goes."""
    record = _record("step-h200.json")
    kept = ("format", "layer", "parameters", "graph: step, ms", "over fixed rank", "epoch, s", "memory, MiB")
    whole = next(grid for grid in sheets(record, quartiles=False) if "CIFAR-10" in grid.title)
    places = [whole.headings.index(heading) for heading in kept]
    grid = Grid("", kept, tuple(tuple(line[n] for n in places) for line in whole.rows))
    return f"{whole.title}, as a CUDA graph; {_where(record, 'step-h200.json')}\n\n{render([grid], 'markdown')}"
