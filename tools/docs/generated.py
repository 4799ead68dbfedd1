"""The tables of the pages that are made from result files: ``python tools/docs/generated.py`` writes them anew.

Every one stands between two marks in its page, so nobody types a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from rankfold.bench.aims import aims
from rankfold.bench.sheets import sheets
from rankfold.data.criteo import KAGGLE_SIZES
from rankfold.experiments.dlrm import MODES, table_name
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places
from rankfold.experiments.spec import read_rows
from rankfold.experiments.summary import Average, Row, Summary, summarize
from rankfold.experiments.tables import Grid, grids, label, render, write_between_markers

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


def aims_of_speed() -> str:
    """What was aimed at on an H200, and what is reached."""
    files = {name: ROOT / "benchmarks" / f"{name}-h200.json" for name in ("embedding", "linear", "step")}
    records = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    return render([aims(records)], "markdown")


def _benchmark_of(file: Path) -> str:
    record = json.loads(file.read_text(encoding="utf-8"))
    ceilings = record["ceilings"]
    reached = f" Ceilings: {_rates(ceilings)}." if ceilings else ""
    tables = render(sheets(record, quartiles=False), "markdown")
    return f"```sh\n{_command(record)}\n```\n\n{_where(record, file.name)}{reached}\n\n{tables}"


def _command(record: dict[str, Any]) -> str:
    """What measures such a record."""
    repeat = f" --repeat {record['repeat']}" if record["repeat"] else ""
    return f"rankfold bench {record['bench']} --device {record['device']['type']}{repeat}"


def _where(record: dict[str, Any], file: str) -> str:
    device = record["device"]
    threads = f", {device['threads']} threads" if device["type"] == "cpu" and record["bench"] != "inference" else ""
    return f"{device['name']}{threads}, torch {record['versions']['torch']}, from `benchmarks/{file}`."


def _rates(ceilings: dict[str, float]) -> str:
    rates = [
        f"{ceilings['bytes_per_second'] / 1e9:,.0f} GB/s",
        f"{ceilings['flops_per_second'] / 1e12:,.2f} TFLOP/s",
    ]
    if ceilings["tf32_flops_per_second"]:
        rates.append(f"{ceilings['tf32_flops_per_second'] / 1e12:,.0f} TFLOP/s with TF32")
    return ", ".join(rates)


# Tables of experiments --------------------------------------------------------------------------------


def table(name: str) -> str:
    """All that ``rankfold table`` shows."""
    return render(grids(_summary(name, PLACES)), "markdown")


@lru_cache
def _summary(name: str, places: Places) -> Summary:
    return summarize(Request(name), places)


def _run(name: str) -> list[Row]:
    """The rows that have results."""
    return [row for row in _summary(name, PLACES).rows if row.results]


def section(name: str, text: str, more: Callable[[str], str] | None = None) -> str:
    """A whole section with its heading, once there are results."""
    if not _run(name):
        return ""
    return "\n\n".join([text, table(name), *([more(name)] if more else [])])


def progress(name: str) -> str:
    """How many rows have been run."""
    run, rows = _run(name), _summary(name, PLACES).rows
    if len(run) == len(rows):
        return f"All {len(rows)} rows have been run."
    return (
        f"Of {len(rows)} rows, {len(run)} {'has' if len(run) == 1 else 'have'} been run so far. "
        "The others have not, and a dash stands in their place."
    )


def settings(name: str, title: str) -> str:
    """The settings of a table that are not those of MNIST."""
    mnist, other = (read_rows(PLACES.experiments / table)["ttm-ard-lu"].as_dict() for table in ("mnist", name))
    lines = [(f"`{key}`", f"{mnist[key]:g}", f"{other[key]:g}") for key in mnist if mnist[key] != other[key]]
    return render([Grid("", ("setting", "MNIST", title), tuple(lines), labels=1)], "markdown")


def ranks_left(name: str, layers: Mapping[str, str]) -> str:
    """The ranks of every run with rank determination, below those it may have; ``layers`` are names and headings."""
    lines = []
    rows = [row for row in _run(name) if row.spec.method == "ard"]
    for format in dict.fromkeys(row.spec.format for row in rows):
        chosen = [row for row in rows if row.spec.format == format]
        most = chosen[0].results[0]["ranks"]["before"]
        lines.append((_NAMES[format or ""], "at most", "", *(_joined(most[layer]) for layer in layers)))
        for row in chosen:
            lines += [("", label(row.spec), f"{r['seed']}", *(_found(r, layer) for layer in layers)) for r in row.results]
    return render([Grid("", ("format", "method", "seed", *layers.values()), tuple(lines))], "markdown")


def _found(result: dict[str, Any], layer: str) -> str:
    empty = any(warning.startswith(f"{layer}.tensor collapsed: ") for warning in result["warnings"])
    return _joined(result["ranks"]["after"][layer]) + (", empty" if empty else "")


def _joined(ranks: Iterable[int]) -> str:
    return "·".join(map(str, ranks))


def memory_and_time(name: str) -> str:
    """How long the runs took, and the most memory that any of them held."""
    lines = [
        (
            _NAMES.get(row.spec.format or "", ""),
            label(row.spec),
            row.results[0]["device"]["name"],
            _shown(row.average(lambda result: 1e3 * result["timing"]["seconds_per_step"]), ",.0f"),
            _shown(row.average(lambda result: result["timing"]["training_seconds"]), ",.0f"),
            f"{max(map(_peak_bytes, row.results)) / 2**20:,.0f}",
        )
        for row in _run(name)
    ]
    headings = ("format", "method", "device", "step, ms", "training, s", "memory, MiB")
    return render([Grid("", headings, tuple(lines), labels=3)], "markdown")


def _peak_bytes(result: dict[str, Any]) -> int:
    """On the GPU, or of the whole process where there is none."""
    peak = result["peak_memory"]
    return int(peak.get("device_bytes", peak["process_bytes"]))


# CIFAR-10 ---------------------------------------------------------------------------------------------

_RESNET18 = """\
## ResNet-18

A network that people know, with a 3×3 stem for small images: all convolutions but the stem are tensor trains. \
Channels stay one mode, so the ranks are the widths of a chain of 1×1, 3×3 and 1×1 convolutions.

```sh
rankfold reproduce cifar10-resnet18
rankfold table cifar10-resnet18
```"""


def cifar10_step() -> str:
    """Time and memory of dense, fixed-rank and Bayesian training steps, without where the time goes."""
    record = json.loads((ROOT / "benchmarks" / "step-h200.json").read_text(encoding="utf-8"))
    kept = ("format", "layer", "parameters", "graph: step, ms", "over fixed rank", "epoch, s", "memory, MiB")
    whole = next(grid for grid in sheets(record, quartiles=False) if "CIFAR-10" in grid.title)
    places = [whole.headings.index(heading) for heading in kept]
    grid = Grid("", kept, tuple(tuple(line[n] for n in places) for line in whole.rows))
    return f"{whole.title}, as a CUDA graph; {_where(record, 'step-h200.json')}\n\n{render([grid], 'markdown')}"


# Clicks -----------------------------------------------------------------------------------------------

_WORD_TABLE = {"embedding": "ranks"}
_LARGE_TABLES = {table_name(n): f"table of {KAGGLE_SIZES[n]:,} rows" for n in MODES}
_KAGGLE_ROWS = 45_840_617
_EXTRA = """\
### More rows to train on

The same, with a second sample beside the first. Its rows are mostly of the first day and not in the order of time, \
so they are trained on and never looked at. The rows that are looked at are the same.

```sh
rankfold reproduce dlrm-extra
rankfold table dlrm-extra
```"""
_PLANTED = """\
### Made-up clicks

Here the five tables do matter, and it is known how much. Categories come as often as in the sample. Clicks are drawn \
from a planted model whose five tables have a low rank in every format, so no model can have a higher AUC but by luck. \
The network is the same at full size, and no data are needed.

```sh
rankfold reproduce dlrm-planted
rankfold table dlrm-planted
```"""


def sample() -> str:
    """How many rows of the Kaggle file the runs have seen."""
    data = _run("dlrm")[0].results[0]["data"]
    train, looked_at = data["num_train"], data["num_evaluation"]
    return (
        f"The runs train on {train:,} rows and look at {looked_at:,}. "
        f"That is {(train + looked_at) / _KAGGLE_ROWS:.1%} of the {_KAGGLE_ROWS:,} rows of the whole file."
    )


def beside_planted(name: str) -> str:
    """AUC of every row, and that of the model that made the clicks."""
    scores = ("posterior_mean", "planted")
    lines = [
        (_NAMES.get(row.spec.format or "", ""), label(row.spec), *(_shown(row.score(s, "auc"), ".4f") for s in scores))
        for row in _run(name)
    ]
    grid = Grid("AUC beside that of the planted model", ("format", "method", "AUC", "planted model"), tuple(lines))
    return render([grid], "markdown")


_IMDB, _LARGE = "docs/results/imdb.md", "docs/results/large-tables.md"
SECTIONS: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/index.md", "results"): results,
    ("docs/faq.md", "kl weights"): kl_weights,
    ("docs/results/cifar10.md", "cifar10 settings"): partial(settings, "cifar10", "CIFAR-10"),
    ("docs/results/cifar10.md", "table cifar10"): partial(table, "cifar10"),
    ("docs/results/cifar10.md", "cifar10 step"): cifar10_step,
    ("docs/results/cifar10.md", "resnet-18"): partial(section, "cifar10-resnet18", _RESNET18),
    (_IMDB, "imdb rows"): partial(progress, "imdb"),
    (_IMDB, "imdb settings"): partial(settings, "imdb", "IMDB"),
    (_IMDB, "table imdb"): partial(table, "imdb"),
    (_IMDB, "imdb ranks"): partial(ranks_left, "imdb", _WORD_TABLE),
    (_IMDB, "imdb memory"): partial(memory_and_time, "imdb"),
    (_LARGE, "ngram rows"): partial(progress, "ngram"),
    (_LARGE, "ngram settings"): partial(settings, "ngram", "n-grams"),
    (_LARGE, "table ngram"): partial(table, "ngram"),
    (_LARGE, "ngram ranks"): partial(ranks_left, "ngram", _WORD_TABLE),
    (_LARGE, "ngram memory"): partial(memory_and_time, "ngram"),
    (_LARGE, "dlrm sample"): sample,
    (_LARGE, "dlrm rows"): partial(progress, "dlrm"),
    (_LARGE, "dlrm settings"): partial(settings, "dlrm", "DLRM"),
    (_LARGE, "table dlrm"): partial(table, "dlrm"),
    (_LARGE, "dlrm ranks"): partial(ranks_left, "dlrm", _LARGE_TABLES),
    (_LARGE, "dlrm memory"): partial(memory_and_time, "dlrm"),
    (_LARGE, "dlrm-extra"): partial(section, "dlrm-extra", _EXTRA),
    (_LARGE, "dlrm-planted"): partial(section, "dlrm-planted", _PLANTED, beside_planted),
    ("docs/explanation/peers.md", "layers on a CPU"): layers_cpu,
    ("docs/explanation/peers.md", "layers on a GPU"): layers_gpu,
    ("docs/explanation/performance.md", "aims"): aims_of_speed,
    **{("docs/explanation/performance.md", f"bench {name}"): partial(benchmark, name) for name in _BENCHMARKS},
}

if __name__ == "__main__":
    main()
