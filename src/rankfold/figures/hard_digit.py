"""Fig. 9: the test image about which samples of the weights disagree most."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rankfold.experiments.results import Places
from rankfold.figures.found import MissingResults, rows_of
from rankfold.figures.style import BLUE, DARK, GREY, ORANGE, new_figure, tidy

Array = NDArray[np.float64]
ROW = "cp-ard-lu"  # the paper's choice
_LEAST_BANDWIDTH = 0.02


def draw_hard_digit(places: Places) -> Figure:
    """The image, mean and spread of the predicted probabilities, and the density of the likeliest two."""
    row = rows_of("mnist", places).get(ROW)
    if row is None or not row.results:
        raise MissingResults(f"no result of {ROW}; run: rankfold reproduce mnist {ROW}")
    hard = row.results[0]["metrics"]["hard_image"]
    figure = new_figure(12, 4.1)
    image, bars, density = figure.subplots(1, 3, width_ratios=(0.85, 1.25, 1.05))
    image.imshow(np.reshape(hard["pixels"], (28, 28)), cmap="gray_r")
    image.set_title(f"test image {hard['index']:,}, a “{hard['label']}”", loc="left", fontsize=12, fontweight="bold")
    image.set(xticks=[], yticks=[])
    draw_prediction(bars, hard)
    draw_pair(density, hard)
    return figure


def draw_prediction(axes: Axes, hard: dict[str, Any]) -> None:
    """Mean ± standard deviation of every label's probability over the draws; the true label stands out."""
    classes = range(len(hard["mean"]))
    colors = [ORANGE if label == hard["label"] else BLUE for label in classes]
    axes.bar(classes, hard["mean"], 0.74, yerr=hard["std"], color=colors, ecolor=DARK, capsize=3)
    axes.set_xticks(classes)
    axes.set_ylim(0, 1)
    axes.set_xlabel("label (the true one in orange)", color=DARK)
    axes.set_ylabel("probability", color=DARK)
    tidy(axes, "prediction: mean ± standard deviation")
    axes.tick_params(axis="x", length=0)


def draw_pair(axes: Axes, hard: dict[str, Any]) -> None:
    """Density of the probabilities of the two likeliest labels; together they are at most 1."""
    first, second = likeliest(hard["mean"])
    draws = np.asarray(hard["draws"], dtype=np.float64)[:, [first, second]]  # (draws, 2)
    grid = np.linspace(0.0, 1.0, 121)
    density = pair_density(draws, grid)
    possible = np.add.outer(grid, grid) <= 1.0 + 1e-9
    axes.contourf(grid, grid, np.ma.masked_where(~possible, density), levels=12, cmap="Blues")
    axes.plot(draws[:, 0], draws[:, 1], ".", color=DARK, markersize=3, alpha=0.35)
    axes.plot([0, 1], [1, 0], color=GREY, linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel(f"probability of “{first}”", color=DARK)
    axes.set_ylabel(f"probability of “{second}”", color=DARK)
    tidy(axes, "density of the likeliest two", grid="")


def likeliest(mean: list[float]) -> tuple[int, int]:
    """The two labels of the largest probability, larger first.

    >>> likeliest([0.1, 0.2, 0.7])
    (2, 1)
    """
    first, second = sorted(range(len(mean)), key=lambda label: -mean[label])[:2]
    return first, second


def pair_density(draws: Array, grid: Array) -> Array:
    """Density of draws (N, 2) at all pairs of the grid, (second, first): a normal kernel, Scott's widths."""
    widths = np.maximum(draws.std(0, ddof=1) * len(draws) ** (-1 / 6), _LEAST_BANDWIDTH)
    # Σ_i k₂(y − y_i) k₁(x − x_i) / N
    first, second = (_kernel(grid[:, None] - draws[:, k], widths[k]) for k in range(2))  # (grid, N)
    density: Array = second @ first.T / len(draws)
    return density


def _kernel(distance: Array, width: float) -> Array:
    values: Array = np.exp(-0.5 * (distance / width) ** 2) / (width * np.sqrt(2.0 * np.pi))
    return values
