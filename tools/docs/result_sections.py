"""Sections of pages that are made from result files of experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rankfold.data.criteo import KAGGLE_SIZES
from rankfold.experiments.dlrm import MODES, table_name
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places, read_result
from rankfold.experiments.spec import Spec, read_rows
from rankfold.experiments.summary import Row, Summary, summarize
from rankfold.experiments.tables import brief_grid, grids, label, shown
from rankfold.experiments.task import CONFIGS, format_label
from rankfold.grids import Grid, render
from rankfold.reporting.cautions import collapsed

ROOT = Path(__file__).parents[2]
PLACES = Places(ROOT / "experiments", ROOT / "results")
_NOTHING = "–"

# MNIST, in short --------------------------------------------------------------------------------------


def results() -> str:
    """Dense, fixed rank and found ranks of every format, beside the paper's rank determination."""
    rows = {row.name: row for row in summarize(Request("mnist"), PLACES).rows}
    chosen = ["dense", *(f"{name}-{method}" for name in CONFIGS for method in ("fr", "ard-lu"))]
    headings = ("parameters", "smaller", "accuracy, %", "paper: parameters", "accuracy, %")
    lines = [_result_line(rows[name]) for name in chosen if name in rows and rows[name].results]
    return render([Grid("", ("format", "ranks", *headings), tuple(lines))], "markdown")


def _result_line(row: Row) -> tuple[str, ...]:
    final = row.final
    assert final is not None
    return (
        format_label(row.spec.format, "dense"),
        {"fr": "fixed", "ard": "found"}.get(row.spec.method, ""),
        shown(final, ",.0f"),
        f"{row.results[0]['parameters']['dense'] / final.mean:.1f}×",
        shown(row.accuracy, ".2f"),
        f"{row.paper['final']:,}" if row.paper else _NOTHING,
        f"{row.paper['accuracy']:.2f}" if row.paper else _NOTHING,
    )


_TASKS = {
    "mnist": "MNIST, fully connected layers",
    "cifar10": "CIFAR-10, convolutions",
    "imdb": "IMDB, a table of words",
    "ngram": "IMDB, a table of n-grams",
    "dlrm": "Criteo sample, five tables",
    "dlrm-planted": "made-up clicks, five tables",
}


def overview(row: str = "cp-ard-lu") -> str:
    """The same row of every task beside its dense one."""
    lines = []
    for name, task in _TASKS.items():
        rows = {row.name: row for row in _run(name)}
        dense, found = rows["dense"], rows[row]
        assert dense.final is not None
        assert found.final is not None
        smaller = dense.final.mean / found.final.mean
        sizes = (shown(dense.final, ",.0f"), shown(found.final, ",.0f"), f"{smaller:,.0f}×")
        lines.append((task, *sizes, shown(dense.accuracy, ".2f"), shown(found.accuracy, ".2f")))
    headings = ("task", "dense: parameters", "ranks found", "smaller", "dense: accuracy, %", "ranks found")
    return render([Grid("", headings, tuple(lines), labels=1)], "markdown")


def kl_weights() -> str:
    """Size and accuracy of every format over KL weights, on MNIST."""
    found = [row for row in _over_weights() if row.results]
    lines = [
        (
            format_label(row.spec.format),
            f"{row.spec.kl_weight:g}",
            shown(row.final, ",.0f"),
            shown(row.accuracy, ".2f"),
        )
        for row in sorted(found, key=lambda row: (list(CONFIGS).index(row.spec.format), row.spec.kl_weight))
    ]
    grid = Grid("", ("format", "`kl_weight`", "parameters", "accuracy, %"), tuple(lines), labels=1)
    return render([grid], "markdown")


def _over_weights() -> Iterable[Row]:
    yield from (row for row in summarize(Request("mnist"), PLACES).rows if label(row.spec) == "ARD-LU")
    yield from summarize(Request("mnist-curve"), PLACES).rows


# Tables of experiments --------------------------------------------------------------------------------


_EMPTY = (
    "*Empty*: no rank carried anything. One of each is kept, since a layer needs one, but the table is switched off."
)


def brief(name: str) -> str:
    """Size and accuracy of the main rows of a table."""
    return render([brief_grid(_summary(name, PLACES))], "markdown")


def table(name: str) -> str:
    """All that ``rankfold table`` shows."""
    return render(grids(_summary(name, PLACES)), "markdown")


@lru_cache
def _summary(name: str, places: Places) -> Summary:
    return summarize(Request(name), places)


def _run(name: str) -> list[Row]:
    """The rows that have results."""
    return [row for row in _summary(name, PLACES).rows if row.results]


def section(name: str, text: str) -> str:
    """A whole section with its heading, once there are results."""
    return f"{text}\n\n{table(name)}" if _run(name) else ""


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
        lines.append((format_label(format), "at most", "", *(_joined(most[layer]) for layer in layers)))
        for row in chosen:
            lines += [
                ("", label(row.spec), f"{r['seed']}", *(_found(r, layer) for layer in layers)) for r in row.results
            ]
    notes = (_EMPTY,) if any("empty" in cell for line in lines for cell in line) else ()
    return render([Grid("", ("format", "method", "seed", *layers.values()), tuple(lines), notes=notes)], "markdown")


def _found(result: dict[str, Any], layer: str) -> str:
    return "empty" if layer in collapsed(result["warnings"]) else _joined(result["ranks"]["after"][layer])


def _joined(ranks: Iterable[int]) -> str:
    return "·".join(map(str, ranks))


def memory_and_time(name: str) -> str:
    """How long the runs took, and the most memory that any of them held."""
    return _memory_and_time(_run(name))


def once_more(name: str, folder: str) -> str:
    """The same of rows that were run again on another device, with their accuracy there."""
    order = [row.name for row in _summary(name, PLACES).rows]
    found = [read_result(file) for file in (PLACES.results / folder).glob("*.json")]
    found.sort(key=lambda result: (order.index(result["row"]), result["seed"]))
    rows = [Row(result["row"], Spec(**result["spec"]), (result,), {}) for result in found]
    return _memory_and_time(rows, {"accuracy, %": lambda row: shown(row.accuracy, ".2f")})


def _memory_and_time(rows: Iterable[Row], before: Mapping[str, Callable[[Row], str]] | None = None) -> str:
    """With columns of one's own ``before`` the others."""
    own = before or {}
    lines = [
        (
            format_label(row.spec.format),
            label(row.spec),
            device,
            *(make(row) for make in own.values()),
            shown(row.average(lambda result: 1e3 * result["timing"]["seconds_per_step"]), ",.0f"),
            shown(row.average(lambda result: result["timing"]["training_seconds"] / len(result["history"])), ",.1f"),
            shown(row.average(lambda result: result["timing"]["training_seconds"]), ",.0f"),
            f"{max(map(_peak_bytes, row.results)) / 2**20:,.0f}",
        )
        for whole in rows
        for device, row in _by_device(whole)
    ]
    headings = ("format", "method", "device", *own, "step, ms", "epoch, s", "training, s", "memory, MiB")
    return render([Grid("", headings, tuple(lines), labels=3)], "markdown")


def _by_device(row: Row) -> Iterable[tuple[str, Row]]:
    for device in dict.fromkeys(result["device"]["name"] for result in row.results):
        yield device, replace(row, results=tuple(r for r in row.results if r["device"]["name"] == device))


def _peak_bytes(result: dict[str, Any]) -> int:
    """On the GPU, or of the whole process where there is none."""
    peak = result["peak_memory"]
    return int(peak.get("device_bytes", peak["process_bytes"]))


# Clicks -----------------------------------------------------------------------------------------------

WORD_TABLE = {"embedding": "ranks"}
LARGE_TABLES = {table_name(n): f"{KAGGLE_SIZES[n]:,} rows" for n in MODES}
_KAGGLE_ROWS = 45_840_617


def sample() -> str:
    """How many rows of the Kaggle file the runs have seen."""
    data = _run("dlrm")[0].results[0]["data"]
    train, looked_at = data["num_train"], data["num_evaluation"]
    return (
        f"The runs train on {train:,} rows and look at {looked_at:,}. "
        f"That is {100 * (train + looked_at) / _KAGGLE_ROWS:.1f} % of the {_KAGGLE_ROWS:,} rows of the whole file."
    )


def beside_planted(name: str) -> str:
    """Size of every row, and its AUC beside that of the model that made the clicks."""
    lines = [
        (
            format_label(row.spec.format),
            label(row.spec),
            shown(row.final, ",.0f"),
            *(shown(row.score(model, "auc"), ".4f") for model in ("posterior_mean", "planted")),
            shown(row.score("posterior_mean", "nll_nats"), ".4f"),
        )
        for row in _summary(name, PLACES).rows
    ]
    headings = ("format", "method", "parameters", "AUC", "AUC of the planted model", "NLL")
    return render([Grid("", headings, tuple(lines))], "markdown")


def targets(name: str) -> str:
    """What was aimed at, and what the rows reach."""
    return render([grid for grid in grids(_summary(name, PLACES)) if grid.title == "Targets"], "markdown")
