"""A summary as text or Markdown; both come from the same cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from rankfold.experiments.spec import Spec
from rankfold.experiments.summary import Average, Row, Summary, found_ranks, planted_ranks
from rankfold.whole_files import write_whole

Style = Literal["text", "markdown"]
_NOTHING = "–"
_FORMATS = {"cp": "CP", "tucker": "Tucker", "tt": "TT", "ttm": "TTM", None: ""}
_SCORES = {
    "auc": "AUC",
    "nll_nats": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "auroc_entropy": "AUROC, entropy",
    "auroc_mutual_information": "AUROC, MI",
}
_METHODS = {"dense": "dense", "fr": "FR", "tc-mr": "TC-MR", "tc-or": "TC-OR"}


@final
@dataclass(frozen=True)
class Grid:
    """A table of strings, with notes below it. The first ``labels`` columns are aligned left."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 2
    notes: tuple[str, ...] = ()


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


def render(grids: Sequence[Grid], style: Style) -> str:
    """All tables, one after the other.

    >>> print(render([Grid("", ("row", "size"), (("dense", "407,050"), ("cp", "8,622")), labels=1)], "text"))
    row       size
    -----  -------
    dense  407,050
    cp       8,622
    """
    return "\n\n".join(_render(grid, style) for grid in grids)


def write_between_markers(file: Path, name: str, text: str) -> bool:
    """Put ``text`` between the markers of a Markdown file; whether that changed anything."""
    before = file.read_text(encoding="utf-8")
    after = with_section(before, name, text, str(file))
    if after != before:
        write_whole(file, after)
    return after != before


def with_section(document: str, name: str, text: str, where: str) -> str:
    """``document`` with ``text`` between the lines that mark its generated section ``name``."""
    begin, end = f"<!-- {name}: begin, generated -->", f"<!-- {name}: end -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"{where} has no section for the table; add these two lines where it belongs:\n{begin}\n{end}")
    head, rest = document.split(begin)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


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
    return _FORMATS[row.spec.format], label(row.spec)


def _our_cells(row: Row) -> Iterator[str]:
    if not row.results:
        yield from (_NOTHING,) * 5
        return
    counts, final = row.results[0]["parameters"], row.final
    assert final is not None
    yield f"{counts['training']:,}"
    yield _shown(final, ",.0f")
    smaller = counts["dense"] / final.mean
    yield f"{smaller:,.0f}×" if smaller >= 1000 else f"{smaller:.1f}×"
    yield _shown(row.accuracy, ".2f")
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
    seeds = max((len(row.results) for row in judged), default=0)
    lines = [
        (*_names(row), _joined(planted_ranks(row.results[0])), *(_joined(found_ranks(r)) for r in row.results))
        for row in judged
    ]
    return Grid(
        "Ranks: planted, and found with each seed",
        ("format", "method", "planted", *(f"seed {n}" for n in range(seeds))),
        tuple((*line, *[_NOTHING] * (3 + seeds - len(line))) for line in lines),
    )


def _joined(layers: Sequence[Sequence[int]]) -> str:
    """``15·9·16, 4·4`` for two layers."""
    return ", ".join("·".join(map(str, ranks)) for ranks in layers)


def _uncertainty_grid(rows: Sequence[Row]) -> Grid:
    lines = []
    for row in rows:
        for prediction, how in (("posterior_mean", "mean"), ("monte_carlo", "Monte Carlo")):
            if row.score(prediction, "nll_nats") is not None:
                scores = [_shown(row.score(prediction, name), ".4f") for name in _SCORES]
                lines.append((*_names(row), how, *scores))
    headings = ("format", "method", "prediction", *_SCORES.values())
    # a column that has nothing in it is left out
    kept = [n for n in range(len(headings)) if n < 3 or any(line[n] != _NOTHING for line in lines)]
    shown = _picked(headings, kept)
    unfamiliar = ", and AUROC against unfamiliar examples" if any("AUROC" in heading for heading in shown) else ""
    return Grid(
        f"Uncertainty: quality of the probabilities{unfamiliar}",
        shown,
        tuple(_picked(line, kept) for line in lines),
        labels=3,
    )


def _picked(cells: Sequence[str], kept: Sequence[int]) -> tuple[str, ...]:
    return tuple(cells[n] for n in kept)


def _targets_grid(summary: Summary) -> Grid:
    lines = [(t.row, t.wanted, t.found, "met" if t.met else "missed") for t in summary.targets]
    return Grid("Targets", ("row", "target", "found", "verdict"), tuple(lines), labels=4)


def _shown(average: Average | None, digits: str) -> str:
    if average is None:
        return _NOTHING
    return f"{average.mean:{digits}}" + (f" ± {average.std:{digits}}" if average.std else "")


def _mark(number: int) -> str:
    return "¹²³⁴⁵⁶⁷⁸⁹"[number]


# Styles -----------------------------------------------------------------------------------------------


def _render(grid: Grid, style: Style) -> str:
    # a rule of Markdown is at least three characters wide
    widths = [max(3, *map(len, column)) for column in zip(grid.headings, *grid.rows, strict=True)]
    headings, *rows = [_aligned(cells, widths, grid.labels) for cells in (grid.headings, *grid.rows)]
    if style == "markdown":
        rule = ["-" * w if n < grid.labels else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
        lines = [f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows)]
        title = f"**{grid.title}**"
        notes = "\n\n".join(grid.notes)  # lines next to each other would be one paragraph
    else:
        lines = ["  ".join(cells).rstrip() for cells in (headings, ["-" * w for w in widths], *rows)]
        title = grid.title
        notes = "\n".join(grid.notes)
    parts = (title if grid.title else "", "\n".join(lines), notes)
    return "\n\n".join(part for part in parts if part)


def _aligned(cells: Sequence[str], widths: Sequence[int], labels: int) -> list[str]:
    """Labels to the left, numbers to the right."""
    return [c.ljust(w) if n < labels else c.rjust(w) for n, (c, w) in enumerate(zip(cells, widths, strict=True))]
