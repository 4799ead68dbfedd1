"""The tables of the pages that are made from result files: ``python tools/docs/generated.py`` writes them anew.

Every one stands between two marks in its page, so nobody types a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankfold.bench.sheets import sheets
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places
from rankfold.experiments.summary import Average, Row, summarize
from rankfold.experiments.tables import Grid, label, render, write_between_markers

ROOT = Path(__file__).parents[2]
PLACES = Places(ROOT / "experiments", ROOT / "results")
_NAMES = {"cp": "CP", "tucker": "Tucker", "tt": "TT", "ttm": "TTM"}
_NOTHING = "–"


def main() -> None:
    """Write all sections into their pages."""
    for (page, name), make in SECTIONS.items():
        if write_between_markers(ROOT / page, name, make()):
            print(f"{page}: {name} written anew")


# MNIST, in short --------------------------------------------------------------------------------------


def results() -> str:
    """Dense, fixed rank and found ranks of every format, beside the paper's rank determination."""
    rows = {row.name: row for row in summarize(Request("mnist"), PLACES).rows}
    chosen = ["dense", *(f"{name}-{method}" for name in _NAMES for method in ("fr", "ard-lu"))]
    headings = ("parameters", "smaller", "accuracy, %", "paper: parameters", "accuracy, %")
    lines = [_result_line(rows[name]) for name in chosen if name in rows and rows[name].results]
    return render([Grid("", ("format", "ranks", *headings), tuple(lines))], "markdown")


def _result_line(row: Row) -> tuple[str, ...]:
    final = row.final
    assert final is not None
    return (
        _NAMES.get(row.spec.format or "", "dense"),
        {"fr": "fixed", "ard": "found"}.get(row.spec.method, ""),
        _shown(final, ",.0f"),
        f"{row.results[0]['parameters']['dense'] / final.mean:.1f}×",
        _shown(row.accuracy, ".2f"),
        f"{row.paper['final']:,}" if row.paper else _NOTHING,
        f"{row.paper['accuracy']:.2f}" if row.paper else _NOTHING,
    )


def _shown(average: Average | None, digits: str) -> str:
    if average is None:
        return _NOTHING
    return f"{average.mean:{digits}}" + (f" ± {average.std:{digits}}" if average.std else "")


def kl_weights() -> str:
    """Size and accuracy of every format over KL weights, on MNIST."""
    found = [row for row in _over_weights() if row.results]
    lines = [
        (
            _NAMES[row.spec.format or ""],
            f"{row.spec.kl_weight:g}",
            _shown(row.final, ",.0f"),
            _shown(row.accuracy, ".2f"),
        )
        for row in sorted(found, key=lambda row: (list(_NAMES).index(row.spec.format or ""), row.spec.kl_weight))
    ]
    grid = Grid("", ("format", "`kl_weight`", "parameters", "accuracy, %"), tuple(lines), labels=1)
    return render([grid], "markdown")


def _over_weights() -> Iterable[Row]:
    yield from (row for row in summarize(Request("mnist"), PLACES).rows if label(row.spec) == "ARD-LU")
    yield from summarize(Request("mnist-curve"), PLACES).rows


# Layers side by side ----------------------------------------------------------------------------------

_LIBRARIES = ("torch.nn", "tensorly-torch", "rankfold, fixed rank", "rankfold, Bayesian")


def layers_cpu() -> str:
    """Forward + backward on one CPU core, beside tensorly-torch."""
    return _layers(("layers-cpu.json",), _LIBRARIES)


def layers_gpu() -> str:
    """The same on a GPU; tensorly-torch was not measured there."""
    files = ("embedding-h200.json", "linear-h200.json", "conv-h200.json")
    return _layers(files, tuple(name for name in _LIBRARIES if name != "tensorly-torch"))


def _layers(files: Sequence[str], libraries: tuple[str, ...]) -> str:
    records = [json.loads((ROOT / "benchmarks" / file).read_text(encoding="utf-8")) for file in files]
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


# Benchmarks -------------------------------------------------------------------------------------------

_BENCHMARKS = ("embedding", "linear", "conv", "step", "memory", "inference")


def benchmark(name: str) -> str:
    """Every record that is kept of a benchmark, or how to make one."""
    files = sorted((ROOT / "benchmarks").glob(f"{name}-*.json"))
    if not files:
        command = f"rankfold bench {name} --device cuda --out benchmarks/{name}-h200.json"
        return f"No figures are kept yet. This writes them, by the name of your device:\n\n```sh\n{command}\n```"
    return "\n\n".join(_benchmark_of(file) for file in files)


def _benchmark_of(file: Path) -> str:
    record = json.loads(file.read_text(encoding="utf-8"))
    device, ceilings = record["device"], record["ceilings"]
    threads = f", {device['threads']} threads" if device["type"] == "cpu" and record["bench"] != "inference" else ""
    where = f"{device['name']}{threads}, torch {record['versions']['torch']}, from `benchmarks/{file.name}`."
    reached = f" Ceilings: {_rates(ceilings)}." if ceilings else ""
    return f"{where}{reached}\n\n{render(sheets(record, quartiles=False), 'markdown')}"


def _rates(ceilings: dict[str, float]) -> str:
    rates = [
        f"{ceilings['bytes_per_second'] / 1e9:,.0f} GB/s",
        f"{ceilings['flops_per_second'] / 1e12:,.2f} TFLOP/s",
    ]
    if ceilings["tf32_flops_per_second"]:
        rates.append(f"{ceilings['tf32_flops_per_second'] / 1e12:,.0f} TFLOP/s with TF32")
    return ", ".join(rates)


SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/index.md", "results"): results,
    ("docs/faq.md", "kl weights"): kl_weights,
    ("docs/explanation/peers.md", "layers on a CPU"): layers_cpu,
    ("docs/explanation/peers.md", "layers on a GPU"): layers_gpu,
    **{("docs/explanation/performance.md", f"bench {name}"): partial(benchmark, name) for name in _BENCHMARKS},
}

if __name__ == "__main__":
    main()
