"""The demonstration's plot: ranks, size and objective over training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rankfold.demo import DemoRun
from rankfold.schedule import WARMUP

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73")  # one per layer, told apart by colour-blind eyes too
LINES = ("-", "--", ":", "-.")  # one per rank of a layer
GREY = "#555555"
SPACING = 0.09  # between lines of the same rank


def plot_ranks(run: DemoRun, path: Path) -> None:
    """Write the plot of a run to ``path``."""
    from rankfold.figures.style import new_figure, save

    figure = new_figure(11, 5.2)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1))
    _draw_ranks(figure.add_subplot(grid[:, 0]), run)
    _draw_size(figure.add_subplot(grid[0, 1]), run)
    _draw_objective(figure.add_subplot(grid[1, 1]), run)
    for axes in figure.axes:
        _tidy(axes, run)
    save(figure, path)


def _draw_ranks(axes: Axes, run: DemoRun) -> None:
    epochs = [0, *(s.epoch for s in run.history)]
    lines = [
        (layer, name, n) for layer, name in enumerate(run.starting_ranks) for n in range(len(run.starting_ranks[name]))
    ]
    for place, (layer, name, n) in enumerate(lines):
        shift = SPACING * (place - (len(lines) - 1) / 2)  # so that equal ranks do not hide each other
        ranks = [run.starting_ranks[name][n], *(s.ranks[name][n] for s in run.history)]
        label = f"{name}, rank {n + 1}: {ranks[0]} → {ranks[-1]}"
        (line,) = axes.step(epochs, [rank + shift for rank in ranks], where="post", linewidth=2, label=label)
        line.set(color=COLORS[layer % len(COLORS)], linestyle=LINES[n % len(LINES)])
    axes.set_ylim(bottom=0)
    axes.set_title("ranks", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _draw_size(axes: Axes, run: DemoRun) -> None:
    epochs = [0, *(s.epoch for s in run.history)]
    sizes = [run.before.final_parameters, *(s.parameters for s in run.history)]
    axes.step(epochs, sizes, where="post", color=COLORS[0], linewidth=2)
    axes.axhline(run.before.dense_parameters, color=GREY, linestyle=":", linewidth=1.2)
    axes.annotate("dense", (0, run.before.dense_parameters), (2, -11), textcoords="offset points", color=GREY)
    axes.annotate(f"{sizes[-1]:,}", (epochs[-1], sizes[-1]), (-4, 6), textcoords="offset points", ha="right")
    axes.set_yscale("log")
    axes.set_title("parameters", loc="left", fontweight="bold")


def _draw_objective(axes: Axes, run: DemoRun) -> None:
    epochs = [s.epoch for s in run.history]
    num_data = len(run.data.train_labels)
    axes.plot(epochs, [s.nll for s in run.history], color=COLORS[1], linewidth=1.5, label="NLL")
    axes.plot(epochs, [s.kl_nats / num_data for s in run.history], color=COLORS[2], linewidth=1.5, label="KL / N")
    axes.set_yscale("log")
    axes.set_title("nats per image", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9)


def _tidy(axes: Axes, run: DemoRun) -> None:
    warm = [s.epoch for s in run.history if s.epoch <= WARMUP * run.settings.epochs]
    if warm:
        axes.axvspan(0, warm[-1], color="#F1F1F1", zorder=0, linewidth=0)
    axes.set_xlim(0, run.history[-1].epoch)
    axes.set_xlabel("epoch (grey: warm-up)")
    axes.spines[["top", "right"]].set_visible(False)
