"""Figs. 7 and 8: the ranks that were found, as bars below the rank they started from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankfold.experiments.results import Places
from rankfold.experiments.summary import Row
from rankfold.figures.found import MissingResults, bayesian_rows, rows_of
from rankfold.figures.style import DARK, FORMATS, GREY, PRIORS, new_figure, say_nothing_yet, tidy

_GROUP_WIDTH = 0.76  # of all bars of one rank; 1 is the distance of two ranks
_MAXIMUM = Line2D([], [], color=DARK, linestyle="--", linewidth=1.4, label="maximum")
_PLANTED = Line2D([], [], color=GREY, linestyle=":", linewidth=2.2, label="planted")


def draw_synthetic_ranks(places: Places) -> Figure:
    """Fig. 7: planted and found ranks of the synthetic study."""
    return _draw(rows_of("synthetic", places), "synthetic", (8.6, 6.0))


def draw_mnist_ranks(places: Places) -> Figure:
    """Fig. 8: the ranks of both layers of the MNIST network."""
    return _draw(rows_of("mnist", places), "mnist", (11.0, 6.4))


def _draw(rows: dict[str, Row], table: str, size: tuple[float, float]) -> Figure:
    found = {name: bayesian_rows(rows, name) for name in FORMATS}
    if not any(found.values()):
        raise MissingResults(f"no results of rank determination; run: rankfold reproduce {table}")
    figure = new_figure(*size)
    for axes, (name, of_format) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
        tidy(axes, FORMATS[name])
        if of_format:
            draw_rank_bars(axes, of_format)
        else:
            say_nothing_yet(axes)
    used = {row.spec.prior for of_format in found.values() for row in of_format}
    bars = [Patch(color=color, label=label) for prior, (label, color) in PRIORS.items() if prior in used]
    lines = [_PLANTED, _MAXIMUM] if table == "synthetic" else [_MAXIMUM]
    figure.legend(handles=[*bars, *lines], loc="outside lower center", ncols=4, frameon=False, fontsize=10.5)
    return figure


def draw_rank_bars(axes: Axes, rows: Sequence[Row]) -> None:
    """Mean over seeds of every rank, one bar per row, and a dot for every seed."""
    before = _flat(rows[0].results[0]["ranks"]["before"])
    width = _GROUP_WIDTH / len(rows)
    for n, row in enumerate(rows):
        after = [_flat(result["ranks"]["after"]) for result in row.results]  # (seeds, ranks)
        places = [k - _GROUP_WIDTH / 2 + (n + 0.5) * width for k in range(len(before))]
        means = [fmean(seeds) for seeds in zip(*after, strict=True)]
        axes.bar(places, means, 0.92 * width, color=PRIORS[row.spec.prior][1])
        for seed in after if len(after) > 1 else []:
            axes.plot(places, seed, ".", color=DARK, alpha=0.55, markersize=5)
        _write_means(axes, places, means, [max(seeds) for seeds in zip(*after, strict=True)])
    _draw_levels(axes, before, "--", DARK, 1.4)
    planted = rows[0].results[0].get("data", {}).get("planted")
    if planted is not None:
        _draw_levels(axes, _flat(planted["ranks"]), ":", GREY, 2.2)
    axes.set_xticks(range(len(before)), _rank_names(rows[0].results[0]["ranks"]["before"]))
    axes.set_ylim(0, 1.12 * max(before))
    axes.set_ylabel("rank", color=DARK)
    axes.tick_params(axis="x", length=0)


def _write_means(axes: Axes, places: Sequence[float], means: Sequence[float], tops: Sequence[float]) -> None:
    """Every mean above the highest dot of its bar, legible across a line."""
    for place, mean, top in zip(places, means, tops, strict=True):
        text = axes.annotate(f"{mean:.3g}", (place, top), (0, 5), textcoords="offset points", ha="center", zorder=4)
        text.set(
            fontsize=9 if len(places) < 6 else 7.5,
            color=DARK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )


def _draw_levels(
    axes: Axes, levels: Sequence[int], linestyle: Literal["--", ":"], color: str, linewidth: float
) -> None:
    """A line over the bars of every rank, for ranks need not start from the same."""
    starts, ends = [k - 0.46 for k in range(len(levels))], [k + 0.46 for k in range(len(levels))]
    axes.hlines(levels, starts, ends, linestyles=linestyle, colors=color, linewidth=linewidth)


def _flat(ranks: dict[str, list[int]]) -> list[int]:
    return [rank for layer in ranks.values() for rank in layer]


def _rank_names(ranks: dict[str, Any]) -> list[str]:
    """``R₁`` for the ranks of a layer, with the layer's number below if there are several layers."""
    below = "\nlayer {}" if len(ranks) > 1 else ""
    return [
        (f"$R_{n}$" if len(layer) > 1 else "$R$") + below.format(number)
        for number, layer in enumerate(ranks.values(), 1)
        for n in range(1, len(layer) + 1)
    ]
