"""Fig. 5: the hyper-priors on λ, and what they mean for an entry u of a factor.

Both are priors on the standard deviation s = √λ. Here they are drawn as true densities in λ, with the
Jacobian ds/dλ = 1/(2√λ), and u | λ ~ N(0, λ):

- log-uniform, p(λ) ∝ 1/λ, gives p(u) ∝ 1/|u|; both are improper, so their height is arbitrary, but
  the two belong together;
- half-Cauchy of scale η gives the horseshoe.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rankfold.figures.style import BLUE, DARK, GREEN, ORANGE, PURPLE, new_figure, tidy

Array = NDArray[np.float64]
ETAS = (0.1, 0.3, 1.0)
_COLORS = (ORANGE, GREEN, PURPLE)
# log(s/η) over which the integrand of the horseshoe is not negligible, for |u|/η from 1e-6 on
_STEP = 0.01
_LOG_SCALES = np.arange(-18.0, 20.0, _STEP)


def log_uniform_density(variance: Array) -> Array:
    """p(λ) ∝ 1/λ."""
    return 1.0 / variance


def half_cauchy_density(variance: Array, eta: float) -> Array:
    """p(λ) = 1 / (π η √λ (1 + λ/η²)): the half-Cauchy density of √λ times the Jacobian."""
    density: Array = 1.0 / (math.pi * eta * np.sqrt(variance) * (1.0 + variance / eta**2))
    return density


def log_uniform_marginal(entry: Array) -> Array:
    """∫ N(u; 0, λ) dλ/λ = 1/|u|."""
    density: Array = 1.0 / np.abs(entry)
    return density


def horseshoe_marginal(entry: Array, eta: float) -> Array:
    """∫ N(u; 0, s²) · 2 / (π η (1 + s²/η²)) ds, by the trapezoidal rule in x = log(s/η).

    >>> bool(abs(horseshoe_marginal(np.array([1.0]), 1.0)[0] - 0.1172) < 1e-4)
    True
    """
    ratio = np.exp(_LOG_SCALES)  # s/η
    # N(u; 0, s²) ds = exp(−u²/(2s²)) / √(2π) dx
    normal = np.exp(-0.5 * (entry[..., None] / (eta * ratio)) ** 2) / math.sqrt(2.0 * math.pi)
    integrand = normal * 2.0 / (math.pi * eta * (1.0 + ratio**2))
    density: Array = integrand.sum(-1) * _STEP  # both ends are 0 as far as it matters
    return density


def draw_densities() -> Figure:
    """Hyper-priors on the left, marginals on the right."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    _draw_hyper_priors(left)
    _draw_marginals(right)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=10.5)
    return figure


def _draw_hyper_priors(axes: Axes) -> None:
    variance = np.geomspace(1e-4, 1e2, 400)
    axes.plot(variance, log_uniform_density(variance), color=BLUE, linewidth=2.2, label="log-uniform (improper)")
    for eta, color in zip(ETAS, _COLORS, strict=True):
        axes.plot(
            variance, half_cauchy_density(variance, eta), color=color, linewidth=2.2, label=f"half-Cauchy, η = {eta:g}"
        )
    axes.set(xscale="log", yscale="log", xlim=(1e-4, 1e2), ylim=(1e-5, 1e4))
    axes.set_xlabel("rank variance λ", color=DARK)
    axes.set_ylabel("density p(λ)", color=DARK)
    tidy(axes, "hyper-prior", grid="both")


def _draw_marginals(axes: Axes) -> None:
    half = np.geomspace(1e-3, 3.0, 300)
    entry = np.concatenate([-half[::-1], half])
    axes.plot(entry, log_uniform_marginal(entry), color=BLUE, linewidth=2.2, label="log-uniform")
    for eta, color in zip(ETAS, _COLORS, strict=True):
        axes.plot(entry, horseshoe_marginal(entry, eta), color=color, linewidth=2.2, label=f"horseshoe, η = {eta:g}")
    axes.set(yscale="log", xlim=(-3, 3), ylim=(3e-3, 30))
    axes.set_xlabel("factor entry u", color=DARK)
    axes.set_ylabel("density p(u)", color=DARK)
    tidy(axes, "marginal prior of an entry", grid="both")
