"""The cells of a summary's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankfold.experiments.spec import Spec
from rankfold.experiments.summary import Average, Row, Summary, found_ranks, planted_ranks
from rankfold.experiments.task import format_label
from rankfold.grids import Grid

_NOTHING = "–"
_SCORES = {
    "auc": "AUC",
    "nll_nats": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "auroc_entropy": "AUROC, entropy",
    "auroc_mutual_information": "AUROC, MI",
}
_METHODS = {"dense": "dense", "fr": "FR", "tc-mr": "TC-MR", "tc-or": "TC-OR"}


def grids(summary: Summary) -> list[Grid]:
    """The results, planted ranks, the uncertainty and the targets; all but the first only if there are any."""
    found = [
        _results_grid(summary.rows),
        _ranks_grid(summary.rows),
        _uncertainty_grid(summary.rows),
        _targets_grid(summary),
    ]
    return [grid for grid in found if grid.rows]


def brief_grid(summary: Summary) -> Grid:
    """Dense and fixed-rank training and rank determination alone, accuracy and size beside the paper's."""
    methods = ("dense", "fr", "ard")
    rows = [row for row in summary.rows if row.spec.method in methods and row.spec.inference == "bayes"]
    whole = _results_grid(rows)
    # without the columns of training parameters and of the number of seeds
    kept = [0, 1, 3, 4, 5, 8, 9]
    lines = tuple(_picked(line, kept) for line in whole.rows)
    headings = ("format", "method", "parameters", "smaller", "accuracy, %", "paper: parameters", "accuracy, %")
    return Grid("", headings, lines)


# Cells ------------------------------------------------------------------------------------------------


def label(spec: Spec) -> str:
    """A method as the paper calls it: ``ARD-LU``."""
    if spec.method != "ard":
        return _METHODS[spec.method]
    name = "ARD-HC" if spec.prior == "half-cauchy" else "ARD-LU"
    name += " MAP" if spec.inference == "map" else ""
    return name if spec.kl_weight == 1.0 else f"{name}, KL × {spec.kl_weight:g}"


def _results_grid(rows: Sequence[Row]) -> Grid:
    corrections = list(dict.fromkeys(row.paper["correction"] for row in rows if "correction" in row.paper))
    headings = ("training", "final", "smaller", "accuracy, %", "seeds", "paper: training", "final", "accuracy, %")
    return Grid(
        "Accuracy and size: posterior mean, mean ± standard deviation over seeds",
        ("format", "method", *headings),
        tuple((*_names(row), *_our_cells(row), *_paper_cells(row, corrections)) for row in rows),
        notes=(*(f"{_mark(n)} {correction}" for n, correction in enumerate(corrections)), *_training_times(rows)),
    )


def _training_times(rows: Sequence[Row]) -> Iterator[str]:
    """How long the runs took, device by device."""
    times: dict[str, list[float]] = {}
    for result in (result for row in rows for result in row.results if "timing" in result):
        times.setdefault(result["device"]["name"], []).append(result["timing"]["training_seconds"])
    for device, seconds in times.items():
        if len(seconds) == 1:
            yield f"1 run on {device}: {seconds[0]:.0f} s of training"
        else:
            yield f"{len(seconds)} runs on {device}: {min(seconds):.0f} to {max(seconds):.0f} s of training each"


def _names(row: Row) -> tuple[str, str]:
    return format_label(row.spec.format), label(row.spec)


def _our_cells(row: Row) -> Iterator[str]:
    if not row.results:
        yield from (_NOTHING,) * 5
        return
    counts, final = row.results[0]["parameters"], row.final
    assert final is not None
    yield f"{counts['training']:,}"
    yield shown(final, ",.0f")
    smaller = counts["dense"] / final.mean
    yield f"{smaller:,.0f}×" if smaller >= 1000 else f"{smaller:.1f}×"
    yield shown(row.accuracy, ".2f")
    yield str(len(row.results))


def _paper_cells(row: Row, corrections: Sequence[str]) -> Iterator[str]:
    if not row.paper:
        yield from (_NOTHING,) * 3
        return
    mark = _mark(corrections.index(row.paper["correction"])) if "correction" in row.paper else ""
    yield f"{row.paper['training']:,}{mark}"
    yield f"{row.paper['final']:,}"
    yield f"{row.paper['accuracy']:.2f}"


def _ranks_grid(rows: Sequence[Row]) -> Grid:
    """Planted ranks and those determined with every seed, where a model made the labels."""
    judged = [row for row in rows if row.spec.method == "ard" and row.results and planted_ranks(row.results[0])]
    seeds = sorted({seed for row in judged for seed in row.by_seed})
    lines = [(*_names(row), _joined(planted_ranks(row.results[0])), *_rank_cells(row, seeds)) for row in judged]
    headings = ("format", "method", "planted", *(f"seed {seed}" for seed in seeds))
    return Grid("Ranks: planted, and found with each seed", headings, tuple(lines))


def _rank_cells(row: Row, seeds: Sequence[int]) -> Iterator[str]:
    for seed in seeds:
        yield _joined(found_ranks(row.by_seed[seed])) if seed in row.by_seed else _NOTHING


def _joined(layers: Sequence[Sequence[int]]) -> str:
    """``15·9·16, 4·4`` for two layers."""
    return ", ".join("·".join(map(str, ranks)) for ranks in layers)


def _uncertainty_grid(rows: Sequence[Row]) -> Grid:
    lines = []
    for row in rows:
        for prediction, how in (("posterior_mean", "mean"), ("monte_carlo", "Monte Carlo")):
            if row.score(prediction, "nll_nats") is not None:
                scores = [shown(row.score(prediction, name), ".4f") for name in _SCORES]
                lines.append((*_names(row), how, *scores))
    headings = ("format", "method", "prediction", *_SCORES.values())
    # a column that has nothing in it is left out
    kept = [n for n in range(len(headings)) if n < 3 or any(line[n] != _NOTHING for line in lines)]
    names = _picked(headings, kept)
    unfamiliar = ", and AUROC against unfamiliar examples" if any("AUROC" in heading for heading in names) else ""
    return Grid(
        f"Uncertainty: quality of the probabilities{unfamiliar}",
        names,
        tuple(_picked(line, kept) for line in lines),
        labels=3,
    )


def _picked(cells: Sequence[str], kept: Sequence[int]) -> tuple[str, ...]:
    return tuple(cells[n] for n in kept)


def _targets_grid(summary: Summary) -> Grid:
    lines = [(t.row, t.wanted, t.found, "met" if t.met else "missed") for t in summary.targets]
    return Grid("Targets", ("row", "target", "found", "verdict"), tuple(lines), labels=4)


def shown(average: Average | None, digits: str) -> str:
    """``97.25 ± 0.08``, or a dash where there is nothing."""
    if average is None:
        return _NOTHING
    return f"{average.mean:{digits}}" + (f" ± {average.std:{digits}}" if average.std else "")


def _mark(number: int) -> str:
    return "¹²³⁴⁵⁶⁷⁸⁹"[number]
