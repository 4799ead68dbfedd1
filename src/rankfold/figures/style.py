"""What all figures share: colours, names, frames."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rankfold.whole_files import whole_file

# Told apart by colour-blind eyes too.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#8E5A9E"
DARK, GREY, PALE = "#222222", "#6B6B6B", "#E4E4E4"
FORMATS = {"cp": "CP", "tt": "TT", "ttm": "TTM", "tucker": "Tucker"}  # in the order of the paper's panels
PRIORS = {"log-uniform": ("log-uniform", BLUE), "half-cauchy": ("half-Cauchy", ORANGE)}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that needs no screen."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08, wspace=0.04, hspace=0.06)  # type: ignore[union-attr, call-arg]
    return figure


def tidy(axes: Axes, title: str, *, grid: str = "y") -> None:
    """A title at the left, two of four spines, a pale grid below what is drawn."""
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=DARK, pad=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=DARK, labelsize=9.5)
    axes.set_axisbelow(True)
    if grid in ("x", "both"):
        axes.xaxis.grid(True, color=PALE, linewidth=0.8)
    if grid in ("y", "both"):
        axes.yaxis.grid(True, color=PALE, linewidth=0.8)


def say_nothing_yet(axes: Axes) -> None:
    """Stands where results are still to come."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no results yet", transform=axes.transAxes, ha="center", va="center", color=GREY)


def save(figure: Figure, file: Path) -> None:
    """Write a PNG; its folder is made if need be."""
    with whole_file(file) as partial:
        figure.savefig(partial, dpi=160, facecolor="white")
