"""Accuracy against size over KL weights, beside the paper's points."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rankfold.experiments.results import Places
from rankfold.experiments.summary import Row
from rankfold.experiments.tables import label
from rankfold.figures.found import MissingResults, bayesian_rows, rows_of
from rankfold.figures.style import BLUE, DARK, FORMATS, GREY, ORANGE, new_figure, say_nothing_yet, tidy

# Other methods of the paper in grey, its rank determination in orange.
_MARKERS = {
    "FR": ("s", GREY),
    "TC-MR": ("^", GREY),
    "TC-OR": ("v", GREY),
    "ARD-LU": ("o", ORANGE),
    "ARD-HC": ("D", ORANGE),
}


def draw_curve(places: Places) -> Figure:
    """One panel per format: our log-uniform rows joined in order of their KL weight, and the paper's rows."""
    rows = rows_of("mnist", places)
    ours = {name: _over_weights(_log_uniform(rows, name) + _extra(places, name)) for name in FORMATS}
    if not any(ours.values()):
        raise MissingResults("no results of log-uniform rank determination; run: rankfold reproduce mnist")
    figure = new_figure(11, 7.2)
    for axes, name in zip(figure.subplots(2, 2).flat, FORMATS, strict=True):
        if ours[name]:
            draw_format(axes, ours[name], [row for row in rows.values() if row.spec.format == name and row.paper])
            frame(axes, FORMATS[name])
        else:
            tidy(axes, FORMATS[name])
            say_nothing_yet(axes)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6, frameon=False, fontsize=10.5)
    return figure


def draw_format(axes: Axes, ours: Sequence[Row], paper: Sequence[Row]) -> None:
    """Our curve with the KL weights beside its points, and every point of the paper."""
    points = [(row.final.mean, row.accuracy.mean) for row in ours if row.final and row.accuracy]
    spread = [row.accuracy.std or 0.0 for row in ours if row.accuracy]
    sizes, accuracies = zip(*points, strict=True)
    axes.errorbar(sizes, accuracies, spread, color=BLUE, marker="o", linewidth=2.2, capsize=3, zorder=3)
    for row, point in zip(ours, points, strict=True):
        text = f"×{row.spec.kl_weight:g}"
        axes.annotate(text, point, (-5, 7), textcoords="offset points", ha="right", color=BLUE, fontsize=9.5)
    for row in paper:
        marker, color = _MARKERS[label(row.spec)]
        axes.plot(row.paper["final"], row.paper["accuracy"], marker, color=color, markersize=7, linestyle="")


def frame(axes: Axes, title: str) -> None:
    """Axes for what is drawn: sizes on a logarithmic scale, and accuracies."""
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.14)
    low, high = axes.get_xlim()
    # over more than a decade and a half there is no room for both 20,000 and 30,000
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high > 30 * low else (1.0, 2.0, 3.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("parameters of the final model", color=DARK)
    axes.set_ylabel("test accuracy, %", color=DARK)
    tidy(axes, title, grid="both")


def _log_uniform(rows: dict[str, Row], format: str) -> list[Row]:
    return [row for row in bayesian_rows(rows, format) if row.spec.prior == "log-uniform"]


def _extra(places: Places, format: str) -> list[Row]:
    """The rows with other KL weights, if they were run."""
    try:
        return _log_uniform(rows_of("mnist-curve", places), format)
    except (MissingResults, FileNotFoundError):
        return []


def _over_weights(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.spec.kl_weight)


def _legend() -> list[Line2D]:
    ours = Line2D([], [], color=BLUE, marker="o", linewidth=2.2, label="ours, over KL weights")
    paper = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=f"paper, {name}")
        for name, (marker, color) in _MARKERS.items()
    ]
    return [ours, *paper]
