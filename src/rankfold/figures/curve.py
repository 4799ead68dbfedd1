"""Accuracy against size over KL weights, beside the paper's points: of MNIST and of CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

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
# Ours beside the curve are hollow, for they may lie on each other.
_OURS: dict[str, Any] = {
    "color": BLUE,
    "markerfacecolor": "none",
    "markersize": 8,
    "markeredgewidth": 1.6,
    "linestyle": "",
}


@final
@dataclass(frozen=True)
class _Look:
    """How the figure of a table looks.

    Attributes:
        weights: where KL weights stand beside their points: the offset, and the side that is aligned.
        all_ours: whether our rows of the other methods and the dense networks are drawn.
        accuracies: those that every panel shows; each its own if there are none.
    """

    weights: tuple[tuple[int, int], Literal["left", "right"]]
    all_ours: bool = False
    accuracies: tuple[float, float] | None = None


_MNIST = _Look(((-5, 7), "right"))
_CIFAR10 = _Look(((7, -13), "left"), all_ours=True, accuracies=(83.5, 94.0))


def draw_mnist_curve(places: Places) -> Figure:
    """Our rank determination on MNIST over KL weights, beside all rows of the paper."""
    return _draw("mnist", places, _MNIST)


def draw_cifar10_curve(places: Places) -> Figure:
    """The same of CIFAR-10, with our rows of the other methods too; all panels have the same accuracies."""
    return _draw("cifar10", places, _CIFAR10)


def _draw(table: str, places: Places, look: _Look) -> Figure:
    """One panel per format: our log-uniform rows joined in order of their KL weight, and the paper's rows."""
    rows = rows_of(table, places)
    extra = _rows_over_weights(f"{table}-curve", places)
    ours = {name: _over_weights(_log_uniform(rows, name) + _log_uniform(extra, name)) for name in FORMATS}
    if not any(ours.values()):
        raise MissingResults(f"no results of log-uniform rank determination; run: rankfold reproduce {table}")
    figure = new_figure(11, 7.2)
    for axes, name in zip(figure.subplots(2, 2).flat, FORMATS, strict=True):
        of_format = [row for row in rows.values() if row.spec.format == name]
        if ours[name]:
            draw_format(axes, ours[name], [row for row in of_format if row.paper], look)
            if look.all_ours:
                draw_others(axes, [row for row in of_format if row not in ours[name]])
                _draw_dense(axes, rows["dense"])
            frame(axes, FORMATS[name])
            axes.set_ylim(look.accuracies)
        else:
            tidy(axes, FORMATS[name])
            say_nothing_yet(axes)
    handles = _legend_of_all() if look.all_ours else _legend()
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False, fontsize=10.5)
    return figure


def draw_format(axes: Axes, ours: Sequence[Row], paper: Sequence[Row], look: _Look) -> None:
    """Our curve with the KL weights beside its points, and every point of the paper."""
    points = [(row.final.mean, row.accuracy.mean) for row in ours if row.final and row.accuracy]
    spread = [row.accuracy.std or 0.0 for row in ours if row.accuracy]
    sizes, accuracies = zip(*points, strict=True)
    axes.errorbar(sizes, accuracies, spread, color=BLUE, marker="o", linewidth=2.2, capsize=3, zorder=3)
    offset, side = look.weights
    for row, point in zip(ours, points, strict=True):
        text = f"×{row.spec.kl_weight:g}"
        axes.annotate(text, point, offset, textcoords="offset points", ha=side, color=BLUE, fontsize=9.5)
    for row in paper:
        marker, color = _MARKERS[_method(row)]
        axes.plot(row.paper["final"], row.paper["accuracy"], marker, color=color, markersize=7, linestyle="")
    if look.accuracies is not None:
        _draw_below(axes, [row for row in paper if row.paper["accuracy"] < look.accuracies[0]], look.accuracies[0])


def _draw_below(axes: Axes, rows: Sequence[Row], lowest: float) -> None:
    """Points of the paper that are off the axis: at its lower end, with their accuracy beside them."""
    for n, row in enumerate(sorted(rows, key=lambda row: float(row.paper["final"]))):
        marker, color = _MARKERS[_method(row)]
        point = row.paper["final"], lowest
        axes.plot(*point, marker, color=color, markersize=7, linestyle="", clip_on=False, zorder=5)
        offset, side = ((-6, 6), "right") if n == 0 else ((6, 6), "left")
        text = f"↓ {row.paper['accuracy']:.1f}"
        axes.annotate(text, point, offset, textcoords="offset points", ha=side, color=color, fontsize=9)


def draw_others(axes: Axes, rows: Sequence[Row]) -> None:
    """Our points of the other methods, with the paper's markers in our colour."""
    for row in rows:
        if row.final and row.accuracy:
            marker, _ = _MARKERS[_method(row)]
            axes.plot(row.final.mean, row.accuracy.mean, marker, **_OURS, zorder=4)


def _draw_dense(axes: Axes, dense: Row) -> None:
    """The accuracies of the dense networks, ours and the paper's."""
    if dense.accuracy:
        axes.axhline(dense.accuracy.mean, color=BLUE, linestyle="--", linewidth=1.2)
    axes.axhline(dense.paper["accuracy"], color=GREY, linestyle="--", linewidth=1.2)


def frame(axes: Axes, title: str) -> None:
    """Axes for what is drawn: sizes on a logarithmic scale, and accuracies."""
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.14)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=_steps(high / low)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("parameters of the final model", color=DARK)
    axes.set_ylabel("test accuracy, %", color=DARK)
    tidy(axes, title, grid="both")


def _steps(ratio: float) -> tuple[float, ...]:
    """The sizes within a decade that are written on an axis whose ends have this ratio."""
    if ratio > 30:  # no room for both 20,000 and 30,000
        return 1.0, 2.0, 5.0
    return (1.0, 2.0, 3.0, 5.0) if ratio > 2.5 else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)


def _log_uniform(rows: dict[str, Row], format: str) -> list[Row]:
    return [row for row in bayesian_rows(rows, format) if row.spec.prior == "log-uniform"]


def _rows_over_weights(table: str, places: Places) -> dict[str, Row]:
    """The rows with other KL weights, if they were run."""
    try:
        return rows_of(table, places)
    except (MissingResults, FileNotFoundError):
        return {}


def _over_weights(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.spec.kl_weight)


def _method(row: Row) -> str:
    """As the paper calls it, whatever the KL weight."""
    return label(replace(row.spec, kl_weight=1.0))


def _legend() -> list[Line2D]:
    ours = Line2D([], [], color=BLUE, marker="o", linewidth=2.2, label="ours, over KL weights")
    paper = [
        Line2D([], [], color=color, marker=marker, linestyle="", label=f"paper, {name}")
        for name, (marker, color) in _MARKERS.items()
    ]
    return [ours, *paper]


def _legend_of_all() -> list[Line2D]:
    """Ours above the paper's, method by method."""
    ours = [
        Line2D([], [], marker=marker, **_OURS, label=f"ours, {name}")
        for name, (marker, _) in _MARKERS.items()
        if name != "ARD-LU"
    ]
    curve, *paper = _legend()
    ours.insert(list(_MARKERS).index("ARD-LU"), curve)
    curve.set_label("ours, ARD-LU")
    dense = [
        Line2D([], [], color=color, linestyle="--", linewidth=1.2, label=f"{whose}, dense")
        for whose, color in (("ours", BLUE), ("paper", GREY))
    ]
    return [*dense, *(handle for pair in zip(ours, paper, strict=True) for handle in pair)]
