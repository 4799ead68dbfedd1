"""All figures by name."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from rankfold.experiments.results import Places
from rankfold.figures.curve import draw_cifar10_curve, draw_mnist_curve
from rankfold.figures.densities import draw_densities
from rankfold.figures.gradient_variance import draw_gradient_variance
from rankfold.figures.hard_digit import draw_hard_digit
from rankfold.figures.ranks import draw_cifar10_ranks, draw_mnist_ranks, draw_synthetic_ranks

FIGURES: dict[str, Callable[[Places], Figure]] = {
    "fig5-priors": lambda places: draw_densities(),
    "fig6-gradient-variance": draw_gradient_variance,
    "fig7-synthetic-ranks": draw_synthetic_ranks,
    "fig8-mnist-ranks": draw_mnist_ranks,
    "fig9-hard-digit": draw_hard_digit,
    "accuracy-size": draw_mnist_curve,
    "cifar10-ranks": draw_cifar10_ranks,
    "cifar10-accuracy-size": draw_cifar10_curve,
}
