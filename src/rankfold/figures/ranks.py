"""Figs. 7 and 8, and the same of CIFAR-10: the ranks that were found, as bars below the rank they started from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rankfold.experiments.results import Places
from rankfold.experiments.summary import Row
from rankfold.figures.found import MissingResults, bayesian_rows, rows_of
from rankfold.figures.style import DARK, FORMATS, GREY, PRIORS, new_figure, say_nothing_yet, tidy

_Ranks = dict[str, list[int]]  # layer by layer
_GROUP_WIDTH = 0.76  # of all bars of one rank; 1 is the distance of two ranks
_MANY = 8  # ranks; beside more of them there is no room for decimals
_NEAR = 0.12  # of the axis: the room that the number above a bar takes
_LAYER_GAP = 0.5  # between the ranks of two layers, beside that distance
_MAXIMUM = Line2D([], [], color=DARK, linestyle="--", linewidth=1.4, label="maximum")
_PLANTED = Line2D([], [], color=GREY, linestyle=":", linewidth=2.2, label="planted")


def draw_synthetic_ranks(places: Places) -> Figure:
    """Fig. 7: planted and found ranks of the synthetic study."""
    return _draw(rows_of("synthetic", places), "synthetic", (8.6, 6.0))


def draw_mnist_ranks(places: Places) -> Figure:
    """Fig. 8: the ranks of both layers of the MNIST network."""
    return _draw(rows_of("mnist", places), "mnist", (11.0, 6.4))


def draw_cifar10_ranks(places: Places) -> Figure:
    """The ranks of all seven tensorized layers of the CIFAR-10 network; every format takes the whole width."""
    return _draw(rows_of("cifar10", places), "cifar10", (11.0, 11.4), columns=1)


def _draw(rows: dict[str, Row], table: str, size: tuple[float, float], columns: int = 2) -> Figure:
    found = {name: bayesian_rows(rows, name) for name in FORMATS}
    if not any(found.values()):
        raise MissingResults(f"no results of rank determination; run: rankfold reproduce {table}")
    figure = new_figure(*size)
    panels = figure.subplots(len(FORMATS) // columns, columns).flat
    for axes, (name, of_format) in zip(panels, found.items(), strict=True):
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
    layers = rows[0].results[0]["ranks"]["before"]
    before, middles = _flat(layers), _middles(layers)
    width = _GROUP_WIDTH / len(rows)
    for n, row in enumerate(rows):
        after = [_flat(result["ranks"]["after"]) for result in row.results]  # (seeds, ranks)
        places = [middle - _GROUP_WIDTH / 2 + (n + 0.5) * width for middle in middles]
        means = [fmean(seeds) for seeds in zip(*after, strict=True)]
        axes.bar(places, means, 0.92 * width, color=PRIORS[row.spec.prior][1])
        for seed in after if len(after) > 1 else []:
            axes.plot(places, seed, ".", color=DARK, alpha=0.55, markersize=5)
        _write_means(axes, places, means, [max(seeds) for seeds in zip(*after, strict=True)], before)
    _draw_levels(axes, middles, before, "--", DARK, 1.4)
    planted = rows[0].results[0].get("data", {}).get("planted")
    if planted is not None:
        _draw_levels(axes, middles, _flat(planted["ranks"]), ":", GREY, 2.2)
    axes.set_ylim(0, 1.16 * max(before))
    axes.set_ylabel("rank", color=DARK)
    _name_ranks(axes, layers)


def _write_means(
    axes: Axes, places: Sequence[float], means: Sequence[float], tops: Sequence[float], levels: Sequence[int]
) -> None:
    """Every mean above the highest dot of its bar; above the line of the maximum where that is near."""
    digits = ".3g" if len(places) <= _MANY else ".0f"
    for place, mean, top, level in zip(places, means, tops, levels, strict=True):
        height = level if level - top < _NEAR * max(levels) else top
        text = axes.annotate(f"{mean:{digits}}", (place, height), (0, 5), textcoords="offset points", ha="center")
        text.set(
            fontsize=9 if len(places) < 6 else 7.5,
            color=DARK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            zorder=4,
        )


def _draw_levels(
    axes: Axes,
    middles: Sequence[float],
    levels: Sequence[int],
    linestyle: Literal["--", ":"],
    color: str,
    linewidth: float,
) -> None:
    """A line over the bars of every rank, for ranks need not start from the same."""
    starts, ends = [middle - 0.46 for middle in middles], [middle + 0.46 for middle in middles]
    axes.hlines(levels, starts, ends, linestyles=linestyle, colors=color, linewidth=linewidth)


def _flat(ranks: _Ranks) -> list[int]:
    return [rank for layer in ranks.values() for rank in layer]


def _middles(layers: _Ranks) -> list[float]:
    """Where the bars of every rank stand: ranks of a layer closer to each other than to those of the next."""
    return [
        n + _LAYER_GAP * number
        for n, number in enumerate(number for number, layer in enumerate(layers.values()) for _ in layer)
    ]


def _name_ranks(axes: Axes, layers: _Ranks) -> None:
    """``R₁`` and so on below the bars; below these, once, the name of the layer if there are several."""
    middles = _middles(layers)
    names = [f"$R_{n}$" if len(layer) > 1 else "$R$" for layer in layers.values() for n in range(1, len(layer) + 1)]
    axes.set_xticks(middles, names)
    axes.tick_params(axis="x", length=0)
    if len(layers) > 1:
        axes.set_xlim(middles[0] - 0.7, middles[-1] + 0.7)
        ends = list(accumulate(map(len, layers.values())))
        centres = [fmean(middles[end - len(layer) : end]) for end, layer in zip(ends, layers.values(), strict=True)]
        axes.xaxis.remove_overlapping_locs = False  # a layer may be named below the name of its rank
        axes.set_xticks(centres, [_spaced(name) for name in layers], minor=True)
        axes.tick_params(axis="x", which="minor", length=0, pad=18)


def _spaced(name: str) -> str:
    """``layer 1`` for ``layer1``, which is no word; names such as ``conv2`` stay."""
    return name.replace("layer", "layer ")
