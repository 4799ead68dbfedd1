"""The closed-form λ against brute force, exact arithmetic and the densities themselves."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankfold.priors import ETA_PER_FACTOR_STD, VARIANCE_FLOOR, HalfCauchy, LogUniform

PRIORS = [LogUniform(), HalfCauchy(1e-3), HalfCauchy(0.1), HalfCauchy(10.0)]
COUNTS = [1, 2, 3, 17, 104, 3200, 10**5]
every_prior = pytest.mark.parametrize("prior", PRIORS, ids=str)

counts = st.integers(1, 10**5)
moments = st.floats(-10, 4).map(lambda x: 10.0**x)
etas = st.floats(-3, 1).map(lambda x: 10.0**x)


def negative_log_density(prior, variance):
    """−log p(λ): the half-Cauchy and the log-uniform density at √λ, up to a constant."""
    std = math.sqrt(variance)
    if isinstance(prior, LogUniform):
        return -math.log(1.0 / std)
    return -math.log(1.0 / (1.0 + std**2 / prior.eta**2))


def objective(prior, second_moment, count, variance):
    """The part of the objective that depends on one λ: D/2 log λ + M/(2λ) − log p(λ)."""
    return 0.5 * count * math.log(variance) + second_moment / (2.0 * variance) + negative_log_density(prior, variance)


def golden_section(function, low, high, steps=100):
    """The minimiser of a unimodal function."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(steps):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return 0.5 * (low + high)


def best(prior, second_moment, count, dtype=torch.float64):
    return float(prior.best_variance(torch.tensor([second_moment], dtype=dtype), torch.tensor([count], dtype=dtype)))


def exact_half_cauchy(second_moment, count, eta):
    """The positive root of (D+2)λ² + (Dη² − M)λ − Mη² in sixty digits."""
    with localcontext() as context:
        context.prec = 60
        m, d, scale = Decimal(second_moment), Decimal(count), Decimal(eta) ** 2
        b = d * scale - m
        return float((-b + (b * b + 4 * (d + 2) * m * scale).sqrt()) / (2 * (d + 2)))


@given(count=counts, second_moment=moments, eta=etas)
def test_eta_moves_the_denominator_by_two_at_most(count, second_moment, eta):
    variance, tolerance = best(HalfCauchy(eta), second_moment, count), 1e-9
    assert second_moment / (count + 2) * (1 - tolerance) <= variance <= second_moment / count * (1 + tolerance)
    pressure = 2.0 * variance / (variance + eta**2)
    assert variance == pytest.approx(second_moment / (count + pressure), rel=1e-6)


@every_prior
@given(count=counts, second_moment=moments)
def test_no_rescaled_variance_does_better(prior, count, second_moment):
    variance = best(prior, second_moment, count)
    least = objective(prior, second_moment, count, variance)
    for factor in (1e-4, 0.1, 0.5, 0.9, 0.99, 1.01, 1.1, 2.0, 10.0, 1e4):
        assert objective(prior, second_moment, count, factor * variance) > least


@every_prior
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("second_moment", [1e-6, 1e-2, 1.0, 50.0])
def test_the_closed_form_is_the_minimum_that_a_search_finds(prior, count, second_moment):
    found = golden_section(
        lambda x: objective(prior, second_moment, count, math.exp(x)), math.log(1e-14), math.log(1e6)
    )
    variance = best(prior, second_moment, count)
    # at its minimum the objective is flat to rounding within √(ε |f| / f'') of log λ
    value = abs(objective(prior, second_moment, count, variance))
    tolerance = 1e-6 + 4.0 * math.sqrt(1e-16 * max(1.0, value) / count)
    assert math.log(variance) == pytest.approx(found, abs=tolerance)


@every_prior
@given(count=counts, second_moment=moments)
def test_the_derivative_vanishes_at_the_closed_form(prior, count, second_moment):
    variance = torch.tensor([best(prior, second_moment, count)], dtype=torch.float64, requires_grad=True)
    value = 0.5 * count * variance.log() + second_moment / (2.0 * variance) + prior.penalty(variance)
    (slope,) = torch.autograd.grad(value.sum(), variance)
    assert abs(float(slope * variance.detach())) < 1e-9 * count


@every_prior
def test_the_penalty_is_the_negative_log_density_up_to_a_constant(prior):
    variances = torch.logspace(-8, 4, 25, dtype=torch.float64)
    truth = torch.tensor([negative_log_density(prior, float(v)) for v in variances], dtype=torch.float64)
    difference = prior.penalty(variances) - truth
    torch.testing.assert_close(difference, difference[:1].expand(25))


@given(count=counts, second_moment=moments, eta=etas)
def test_the_half_cauchy_denominator_is_2d_plus_4_and_not_2d_plus_2(count, second_moment, eta):
    numerator = second_moment - eta**2 * count
    root = math.sqrt(second_moment**2 + (2 * count + 8) * eta**2 * second_moment + eta**4 * count**2)
    if numerator < 0:  # the same number without cancellation
        numerator, root = 0.0, 4 * (count + 2) * second_moment * eta**2 / (root - numerator)
    right, printed = (numerator + root) / (2 * count + 4), (numerator + root) / (2 * count + 2)
    prior = HalfCauchy(eta)
    assert best(prior, second_moment, count) == pytest.approx(max(right, VARIANCE_FLOOR), rel=1e-9)
    assert objective(prior, second_moment, count, printed) > objective(prior, second_moment, count, right)


@given(count=counts, second_moment=moments)
def test_log_uniform_divides_by_the_count_plus_one(count, second_moment):
    assert best(LogUniform(), second_moment, count) == pytest.approx(second_moment / (count + 1), rel=1e-12)


@given(count=counts, second_moment=moments)
def test_a_wide_half_cauchy_is_flat_and_a_narrow_one_falls_like_one_over_the_variance(count, second_moment):
    wide, narrow = 1e4 * math.sqrt(second_moment), 1e-6 * math.sqrt(second_moment / count)
    assert best(HalfCauchy(wide), second_moment, count) == pytest.approx(second_moment / count, rel=1e-4)
    assert best(HalfCauchy(narrow), second_moment, count) == pytest.approx(second_moment / (count + 2), rel=1e-4)


@pytest.mark.parametrize("second_moment", [1e-12, 1e-10, 1e-6, 1.0])
@pytest.mark.parametrize("count", [1, 100, 10_000, 1_000_000])
def test_float32_does_not_cancel_where_the_printed_form_gives_zero(second_moment, count):
    exact = exact_half_cauchy(float(torch.tensor(second_moment)), count, 1.0)
    variance = best(HalfCauchy(1.0), second_moment, count, torch.float32)
    assert variance > 0
    assert variance == pytest.approx(max(exact, VARIANCE_FLOOR), rel=1e-5)


def test_the_printed_form_does_cancel_in_float32():
    """The reason for the other form: D η² ≫ M."""
    m, d = torch.tensor(1e-12), torch.tensor(1e4)
    printed = (m - d + (m**2 + (2 * d + 8) * m + d**2).sqrt()) / (2 * d + 4)
    assert float(printed) == 0.0
    assert best(HalfCauchy(1.0), 1e-12, 10_000, torch.float32) == pytest.approx(1e-16, rel=1e-4)


@given(count=counts, second_moment=moments, eta=etas)
def test_float32_agrees_with_sixty_digits(count, second_moment, eta):
    rounded = float(torch.tensor(second_moment))
    exact = max(exact_half_cauchy(rounded, count, eta), VARIANCE_FLOOR)
    assert best(HalfCauchy(eta), second_moment, count, torch.float32) == pytest.approx(exact, rel=2e-5)


@every_prior
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nothing_left_gives_the_floor(prior, dtype):
    variance = prior.best_variance(torch.zeros(2, dtype=dtype), torch.tensor([1.0, 1e5], dtype=dtype))
    torch.testing.assert_close(variance, torch.full((2,), VARIANCE_FLOOR, dtype=dtype))
    assert prior.penalty(variance).isfinite().all()


@every_prior
def test_many_ranks_at_once_are_each_on_their_own(prior):
    second_moments, sizes = torch.rand(7, dtype=torch.float64), torch.arange(1.0, 8.0, dtype=torch.float64)
    together = prior.best_variance(second_moments, sizes)
    apart = [best(prior, float(m), float(d)) for m, d in zip(second_moments, sizes, strict=True)]
    torch.testing.assert_close(together, torch.tensor(apart, dtype=torch.float64))


@given(count=counts, second_moment=moments, scale=st.sampled_from([1e-2, 1.0, 30.0]))
def test_the_default_eta_follows_the_factors(count, second_moment, scale):
    """Factors c times as large have variances c² times as large: the default suits every layer."""
    prior = HalfCauchy().at_scale(scale)
    assert prior == HalfCauchy(ETA_PER_FACTOR_STD * scale)
    unit = best(HalfCauchy().at_scale(1.0), second_moment, count)
    scaled = best(prior, second_moment * scale**2, count)
    assert scaled == pytest.approx(max(unit * scale**2, VARIANCE_FLOOR), rel=1e-9)


def test_a_given_eta_is_kept():
    assert HalfCauchy(0.3).at_scale(100.0) == HalfCauchy(0.3)
    assert LogUniform().at_scale(100.0) == LogUniform()


@pytest.mark.parametrize("eta", [0, 0.0, -1.0, math.nan, math.inf, True])
def test_a_bad_eta_is_named(eta):
    with pytest.raises(ValueError, match=rf"eta must be positive and finite \(or None for the default\), got {eta!r}"):
        HalfCauchy(eta)


def test_an_open_eta_must_be_fixed_before_use():
    one = torch.ones(1)
    for use in (lambda: HalfCauchy().penalty(one), lambda: HalfCauchy().best_variance(one, one)):
        with pytest.raises(ValueError, match="this HalfCauchy has no eta yet"):
            use()
