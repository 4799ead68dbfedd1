"""The curves of Fig. 5 are the densities they are called."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import exp1

from rankfold.figures.densities import (
    ETAS,
    draw_densities,
    half_cauchy_density,
    horseshoe_marginal,
    log_uniform_density,
    log_uniform_marginal,
)

ENTRIES = np.geomspace(1e-3, 10.0, 40)


@pytest.mark.parametrize("eta", ETAS)
def test_the_half_cauchy_density_is_that_of_a_squared_half_cauchy(eta):
    for limit in (0.01, 1.0, 50.0):
        # substituted λ = s², which takes the pole at 0 away
        mass, _ = quad(lambda s: 2 * s * half_cauchy_density(np.float64(s * s), eta), 1e-12, math.sqrt(limit))
        assert mass == pytest.approx(2 / math.pi * math.atan(math.sqrt(limit) / eta), rel=1e-6)


@pytest.mark.parametrize("eta", ETAS)
def test_the_horseshoe_is_its_closed_form(eta):
    # e^{u²/2η²} E₁(u²/2η²) / (η √(2π³))
    half_square = 0.5 * (ENTRIES / eta) ** 2
    usable = half_square < 500  # the exponential overflows beyond
    exact = np.exp(half_square[usable]) * exp1(half_square[usable]) / (eta * math.sqrt(2 * math.pi**3))
    assert horseshoe_marginal(ENTRIES[usable], eta) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("eta", ETAS)
def test_the_horseshoe_lies_between_its_known_bounds(eta):
    scaled = (ENTRIES / eta) ** 2
    constant = 1 / (eta * math.sqrt(2 * math.pi**3))
    density = horseshoe_marginal(ENTRIES, eta)
    assert (constant / 2 * np.log1p(4 / scaled) < density).all()
    assert (density < constant * np.log1p(2 / scaled)).all()


@pytest.mark.parametrize("entry", [0.01, 0.5, 3.0])
def test_the_log_uniform_marginal_belongs_to_its_hyper_prior(entry):
    def integrand(log_variance):  # N(u; 0, λ) p(λ) λ d log λ
        variance = np.exp(log_variance)
        normal = np.exp(-0.5 * entry**2 / variance) / np.sqrt(2 * np.pi * variance)
        return normal * log_uniform_density(variance) * variance

    mass, _ = quad(integrand, 2 * math.log(entry) - 8, 2 * math.log(entry) + 50, limit=200)
    assert mass == pytest.approx(log_uniform_marginal(np.float64(entry)), rel=1e-6)


def test_the_figure_draws_these_curves():
    left, right = draw_densities().axes
    for axes, log_uniform, half_cauchy in (
        (left, log_uniform_density, half_cauchy_density),
        (right, log_uniform_marginal, horseshoe_marginal),
    ):
        first, *others = axes.get_lines()
        assert first.get_ydata() == pytest.approx(log_uniform(first.get_xdata()))
        for line, eta in zip(others, ETAS, strict=True):
            assert f"η = {eta:g}" in line.get_label()
            assert line.get_ydata() == pytest.approx(half_cauchy(line.get_xdata(), eta))
