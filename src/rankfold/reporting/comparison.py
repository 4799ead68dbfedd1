"""Several runs side by side: rows averaged over their seeds, as a scatter and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from rankfold.reporting.drawings import Dot, scatter
from rankfold.reporting.layers_section import Column, table
from rankfold.reporting.markup import Html, element, section
from rankfold.reporting.run import Run
from rankfold.reporting.training_section import figure
from rankfold.reporting.wording import count, number, percent, times

_DENSE = 3
_COLOURS = {"ard": 0, "fr": 1, "tc-mr": 2, "tc-or": 2, "dense": _DENSE}
_GROUPS = {0: "finds its own ranks", 1: "fixed rank", 2: "dense, then compressed", _DENSE: "dense"}
_MOST_NAMES = 8  # that fit beside the dots
_UNKNOWN = "–"


@final
@dataclass(frozen=True)
class Row:
    """All runs of one row."""

    name: str
    runs: tuple[Run, ...]

    def mean(self, value: Callable[[Run], float | None]) -> float | None:
        """Over the runs that have it."""
        known = [found for run in self.runs if (found := value(run)) is not None]
        return statistics.fmean(known) if known else None

    def deviation(self, value: Callable[[Run], float | None]) -> float | None:
        """Standard deviation over seeds (n − 1)."""
        known = [found for run in self.runs if (found := value(run)) is not None]
        return statistics.stdev(known) if len(known) > 1 else None

    @property
    def accuracy(self) -> float | None:
        return self.mean(lambda run: run.accuracy)

    @property
    def size(self) -> float:
        return statistics.fmean(run.final_parameters for run in self.runs)

    @property
    def colour(self) -> int:
        return _COLOURS.get(str(self.runs[0].spec.get("method")), 0)


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Runs of one row and table together, larger models first."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.table, run.row), []).append(run)
    several = len({table for table, _ in groups}) > 1
    rows = [Row(f"{table}: {row}" if several else row, tuple(found)) for (table, row), found in groups.items()]
    return sorted(rows, key=lambda row: -row.size)


def comparison(rows: Sequence[Row], subject: Run | None) -> Html | None:
    """The scatter and the table; nothing for a single row."""
    if len(rows) < 2:
        return None
    chosen = next((n for n, row in enumerate(rows) if subject in row.runs), None)
    return section("comparison", "Comparison", _scatter(rows, chosen), _table(rows, chosen))


def extremes(rows: Sequence[Row]) -> str:
    """Which row is the most accurate, and which the smallest."""
    scored = [row for row in rows if row.accuracy is not None]
    said = {
        "Most accurate": max(scored, key=lambda row: row.accuracy or 0.0, default=None),
        "smallest": min(rows, key=lambda row: row.size),
    }
    return "; ".join(f"{what}: {_in_short(row)}" for what, row in said.items() if row is not None) + "."


def _in_short(row: Row) -> str:
    quality = "" if row.accuracy is None else f"{percent(row.accuracy)} with "
    return f"{row.name}, {quality}{count(row.size)} parameters"


def _scatter(rows: Sequence[Row], chosen: int | None) -> Html | None:
    scored = [(n, row, accuracy) for n, row in enumerate(rows) if (accuracy := row.accuracy) is not None]
    if len(scored) < 2:
        return None
    best = max(accuracy for _, _, accuracy in scored)
    few = len(scored) <= _MOST_NAMES
    dots = [
        Dot(row.name, row.size, accuracy, row.colour, few or n == chosen or row.colour == _DENSE or accuracy == best)
        for n, row, accuracy in scored
    ]
    words = "; ".join(f"{dot.name} {percent(dot.quality)} with {count(dot.size)} parameters" for dot in dots)
    drawing = scatter(dots, f"Accuracy over size: {words}", x_label="final parameters", y_label="accuracy, %")
    used = [colour for colour in _GROUPS if any(dot.colour == colour for dot in dots)]
    keys = [element("span", {"class": f"key c{colour}"}, _GROUPS[colour]) for colour in used]
    title = figure("Accuracy against size", drawing, "up and to the left is better")
    return element("div", {"class": "wide"}, title, element("p", {"class": "keys"}, *keys))


def _table(rows: Sequence[Row], chosen: int | None) -> Html:
    cells = [_cells(row) for row in rows]
    known = [name for name in cells[0] if any(line[name] != _UNKNOWN for line in cells)]
    columns: list[Column] = [(name, "n" if name != "row" else "") for name in known]
    seeds = max(len(row.runs) for row in rows) > 1
    about = "Mean over seeds, ± standard deviation" if seeds else "One run each"
    scores = "NLL and calibration error" if "calibration" in known else "NLL"
    caption = f"{about}. {scores}: of the averaged samples where there is a posterior"
    kinds = {chosen: "chosen"} if chosen is not None else None
    return table(columns, [[line[name] for name in known] for line in cells], caption, kinds=kinds, pairs=True)


def _cells(row: Row) -> dict[str, str]:
    """What the table says of a row, by column."""
    accuracy, spread = row.accuracy, row.deviation(lambda run: run.accuracy)
    plus = f" ± {100 * spread:.2f}" if spread is not None else ""
    rmse, r2 = (row.mean(lambda run, key=key: run.scores.get("posterior_mean", {}).get(key)) for key in ("rmse", "r2"))  # type: ignore[misc]
    training = statistics.fmean(run.training_parameters for run in row.runs)
    smaller = statistics.fmean(run.dense_parameters for run in row.runs) / row.size
    nll, ece = (row.mean(lambda run, key=key: best_score(run, key)) for key in ("nll_nats", "ece"))  # type: ignore[misc]
    return {
        "row": row.name,
        "runs": str(len(row.runs)),
        "accuracy": _UNKNOWN if accuracy is None else f"{100 * accuracy:.2f}{plus} %",
        "RMSE": _UNKNOWN if rmse is None else number(rmse),
        "R²": _UNKNOWN if r2 is None else number(r2),
        "parameters": count(row.size),
        "smaller": times(smaller),
        "in training": count(training),
        "NLL": _UNKNOWN if nll is None else number(nll),
        "calibration": _UNKNOWN if ece is None else percent(ece),
    }


def best_score(run: Run, key: str) -> float | None:
    """Of the averaged samples, or of the posterior mean where there are none."""
    for prediction in ("monte_carlo", "posterior_mean"):
        if key in run.scores.get(prediction, {}):
            return run.scores[prediction][key]
    return None
