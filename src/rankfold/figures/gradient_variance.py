"""Fig. 6: the variance of a factor's gradient while its rank dies, with λ at its closed form and with λ drawn."""

from __future__ import annotations

import json
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankfold.experiments.gradient_variance import measure, weakest_rank
from rankfold.experiments.provenance import provenance
from rankfold.experiments.results import Places
from rankfold.figures.style import BLUE, DARK, ORANGE, new_figure, tidy
from rankfold.whole_files import write_whole

_FILE = "gradient-variance.json"
_PANELS = {"bayes": "Gaussian factors", "map": "point factors (MAP)"}
_LINES = {"delta": ("λ at its closed form", BLUE), "drawn": ("λ drawn from a log-normal", ORANGE)}


def draw_gradient_variance(places: Places) -> Figure:
    """One panel for Gaussian and one for point factors; measured now, in about a minute, if that was not done yet."""
    measured = _measured(places)
    figure = new_figure(11, 4.4)
    for axes, (inference, title) in zip(figure.subplots(1, 2, sharey=True), _PANELS.items(), strict=True):
        draw_weakest_rank(axes, measured[inference])
        tidy(axes, title, grid="both")
        axes.set_xlabel("step", color=DARK)
    figure.axes[0].set_ylabel("variance of the gradient", color=DARK)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=10.5)
    return figure


def draw_weakest_rank(axes: Axes, measured: dict[str, Any]) -> None:
    """Both variances of the rank that dies first, averaged over the entries of its column."""
    rank = weakest_rank(measured)
    steps = [look["step"] for look in measured["looks"]]
    for how, (label, color) in _LINES.items():
        values = [look["gradient_variance"][how][rank] for look in measured["looks"]]
        axes.plot(steps, values, color=color, linewidth=2.2, label=label)
    axes.set_yscale("log")


def _measured(places: Places) -> dict[str, Any]:
    file = places.results / _FILE
    if not file.exists():
        result = {
            **{inference: measure(inference) for inference in ("bayes", "map")},
            **provenance(torch.device("cpu")),
        }
        write_whole(file, json.dumps(result, indent=1) + "\n")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
