"""Posteriors: moments by Monte Carlo, gradients by finite differences, KL against torch.distributions."""

import copy
import math
import pickle

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn.utils import parametrize

from rankfold.bayesian_vector import BayesianVector
from rankfold.config import TTM
from rankfold.posterior import GaussianPosterior, PointPosterior, arrays_in, at_least_float32, drawn, joint_kl

SHAPES = [(3, 2), (4,), (1, 2, 2)]
VARIANCE_SHAPES = [(1, 2), (1,), (1, 2, 1)]
LOW = [torch.float16, torch.bfloat16]
every_kind = pytest.mark.parametrize("kind", ["gaussian", "point"])


def gaussian(dtype=torch.float64):
    """Every mean and log-std different."""
    posterior = GaussianPosterior([torch.randn(shape, dtype=dtype) for shape in SHAPES], std=0.3)
    with torch.no_grad():
        for log_std in posterior.log_std:
            log_std.add_(0.5 * torch.randn_like(log_std))
    return posterior


def make(kind, dtype=torch.float64):
    return gaussian(dtype) if kind == "gaussian" else PointPosterior(torch.randn(s, dtype=dtype) for s in SHAPES)


def flat(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def finite_differences(function, parameter, step=1e-6):
    """Central differences of a scalar function of one parameter, entry by entry."""
    result, entries = torch.zeros_like(parameter), parameter.data.view(-1)
    for n in range(len(entries)):
        kept = float(entries[n])
        entries[n] = kept + step
        above = float(function())
        entries[n] = kept - step
        result.view(-1)[n] = (above - float(function())) / (2 * step)
        entries[n] = kept
    return result


# Sampling -----------------------------------------------------------------------------------------


def test_samples_have_the_posterior_mean_and_variance():
    posterior, count = gaussian(), 10_000
    draws = torch.stack([flat(posterior.sample()) for _ in range(count)])
    mean, variance = flat(posterior.mean), (2 * flat(posterior.log_std)).exp()
    # standard errors: σ/√n of the mean, σ²√(2/n) of the variance, σ√(1/n) of the correlation
    assert ((draws.mean(0) - mean).abs() < 5 * (variance / count).sqrt()).all()
    assert ((draws.var(0) - variance).abs() < 5 * variance * math.sqrt(2 / count)).all()
    standardised = (draws - mean) / variance.sqrt()
    correlation = standardised.T @ standardised / count - torch.eye(len(mean), dtype=torch.float64)
    assert correlation.fill_diagonal_(0.0).abs().max() < 5 / math.sqrt(count)


def test_second_moments_are_those_of_the_samples():
    posterior, count = gaussian(), 10_000
    squares = torch.stack([flat(posterior.sample()) for _ in range(count)]).square()
    error = squares.std(0) / math.sqrt(count)
    assert ((squares.mean(0) - flat(posterior.second_moments())).abs() < 5 * error).all()


def test_a_generator_fixes_the_noise_and_leaves_the_global_one_alone():
    posterior, state = gaussian(), torch.get_rng_state()
    first, second, other = (posterior.sample(seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(flat(first), flat(second))
    assert not torch.equal(flat(first), flat(other))
    assert torch.equal(torch.get_rng_state(), state)


def test_training_samples_and_eval_takes_the_mean():
    posterior = gaussian()
    assert not torch.equal(flat(posterior()), flat(posterior()))
    posterior.eval()
    assert torch.equal(flat(posterior()), flat(posterior.mean))
    state = {name: value.clone() for name, value in posterior.state_dict().items()}
    posterior.train()
    posterior()
    assert all(torch.equal(value, state[name]) for name, value in posterior.state_dict().items())


def test_reparametrised_gradients_are_finite_differences_at_fixed_noise():
    posterior = gaussian()
    weights = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]

    def loss():
        return sum((w * sample.tanh()).sum() for w, sample in zip(weights, posterior.sample(seeded(3)), strict=True))

    loss().backward()
    for parameter in posterior.parameters():
        truth = finite_differences(lambda: loss().detach(), parameter)
        torch.testing.assert_close(parameter.grad, truth, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [*LOW, torch.float32, torch.float64], ids=str)
def test_samples_have_the_dtype_of_the_means(dtype):
    posterior = gaussian(dtype)
    samples = posterior.sample(seeded())
    assert {sample.dtype for sample in samples} == {dtype}
    assert {log_std.dtype for log_std in posterior.log_std} == {at_least_float32(dtype)}
    assert {moment.dtype for moment in posterior.second_moments()} == {at_least_float32(dtype)}
    sum(sample.float().sum() for sample in samples).backward()
    assert all(parameter.grad.dtype == parameter.dtype for parameter in posterior.parameters())


def test_a_point_is_its_own_sample():
    posterior = make("point")
    assert torch.equal(flat(posterior.sample()), flat(posterior.mean))
    assert torch.equal(flat(posterior.train()()), flat(posterior.eval()()))
    assert torch.equal(flat(posterior.second_moments()), flat(posterior.mean).square())


def test_every_entry_starts_at_the_given_std():
    posterior = GaussianPosterior([torch.zeros(2, 3), torch.zeros(4)], std=0.02)
    torch.testing.assert_close(flat(posterior.log_std), torch.full((10,), math.log(0.02), dtype=torch.float64))


@pytest.mark.parametrize("kinds", [("gaussian", "gaussian"), ("gaussian", "point"), ("point", "point")], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_what_is_drawn_together_has_noise_of_its_own(kinds, training):
    """Samples are μ + σ z with one z for every entry, and so are their gradients; points and means are themselves."""
    posteriors = [make(kind).train(training) for kind in kinds]
    groups = drawn(posteriors)
    noise = []
    for posterior, samples in zip(posteriors, groups, strict=True):
        assert [sample.shape for sample in samples] == [mean.shape for mean in posterior.mean]
        if isinstance(posterior, PointPosterior) or not training:
            assert torch.equal(flat(samples), flat(posterior.mean))
            continue
        z = (flat(samples) - flat(posterior.mean)) / flat(posterior.log_std).exp()
        noise += z.tolist()
        by_mean = torch.autograd.grad(flat_sum(samples), list(posterior.mean), retain_graph=True)
        by_log_std = torch.autograd.grad(flat_sum(samples), list(posterior.log_std), retain_graph=True)
        upstream = flat(samples).cos()  # ∂/∂u of flat_sum
        torch.testing.assert_close(flat(by_mean), upstream)
        torch.testing.assert_close(flat(by_log_std), upstream * (flat(samples) - flat(posterior.mean)))
    assert len(set(noise)) == len(noise)


def flat_sum(tensors):
    return sum((tensor * tensor.detach().cos()).sum() for tensor in tensors)


@every_kind
def test_every_parameter_list_is_shaped_like_the_arrays(kind):
    posterior = make(kind)
    lists = posterior.parameter_lists()
    assert all([tuple(p.shape) for p in parameters] == SHAPES for parameters in lists)
    assert {id(p) for parameters in lists for p in parameters} == {id(p) for p in posterior.parameters()}


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def test_arrays_are_those_of_the_list_wherever_it_keeps_them():
    posterior = gaussian()
    assert all(a is b for a, b in zip(arrays_in(posterior.mean), posterior.mean, strict=True))
    replaced = {f"mean.{n}": torch.zeros(shape, dtype=torch.float64) for n, shape in enumerate(SHAPES)}
    assert not flat(torch.func.functional_call(posterior.eval(), replaced, ())).any()
    parametrize.register_parametrization(posterior.mean, "1", Doubled())
    assert all(torch.equal(a, b) for a, b in zip(arrays_in(posterior.mean), posterior.mean, strict=True))


# KL -----------------------------------------------------------------------------------------------


def test_kl_and_its_gradient_are_those_of_torch_distributions():
    posterior = gaussian()
    variances = [torch.rand(shape, dtype=torch.float64) + 0.1 for shape in VARIANCE_SHAPES]
    truth = sum(
        kl_divergence(
            Normal(mean, log_std.exp()), Normal(torch.zeros_like(mean), variance.sqrt().expand_as(mean))
        ).sum()
        for mean, log_std, variance in zip(posterior.mean, posterior.log_std, variances, strict=True)
    )
    torch.testing.assert_close(joint_kl([(posterior, variances)]), truth)
    parameters = list(posterior.parameters())
    ours = torch.autograd.grad(2.5 * joint_kl([(posterior, variances)]), parameters)
    for mine, theirs in zip(ours, torch.autograd.grad(2.5 * truth, parameters), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_kl_of_the_prior_itself_is_zero_with_zero_gradient():
    posterior = GaussianPosterior([torch.zeros(3, 2, dtype=torch.float64)], std=0.7)
    nats = joint_kl([(posterior, [torch.full((1, 1), 0.49, dtype=torch.float64)])])
    nats.backward()
    assert float(nats.detach()) == pytest.approx(0.0, abs=1e-6)
    assert all(parameter.grad.abs().max() < 1e-6 for parameter in posterior.parameters())


def test_kl_of_a_point_is_its_negative_log_density_up_to_the_constant():
    posterior = make("point")
    variances = [torch.rand(shape, dtype=torch.float64) + 0.1 for shape in VARIANCE_SHAPES]
    density = sum(
        Normal(torch.zeros_like(mean), variance.sqrt().expand_as(mean)).log_prob(mean).sum()
        for mean, variance in zip(posterior.mean, variances, strict=True)
    )
    constant = 0.5 * math.log(2 * math.pi) * flat(posterior.mean).numel()
    torch.testing.assert_close(joint_kl([(posterior, variances)]), -density - constant)


# Precision and copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize(
    ("convert", "dtype"),
    [
        (lambda m: m.to(torch.bfloat16), torch.bfloat16),
        (lambda m: m.half(), torch.float16),
        (lambda m: m.float(), torch.float32),
        (lambda m: m.double(), torch.float64),
        (lambda m: m.double().bfloat16(), torch.bfloat16),
        (lambda m: m.half().float(), torch.float32),
    ],
    ids=["bfloat16", "half", "float", "double", "double-bfloat16", "half-float"],
)
def test_log_stds_stay_precise_under_conversion(convert, dtype, with_gradients):
    posterior = gaussian(torch.float32)
    parameters, before = list(posterior.parameters()), flat(posterior.log_std)
    if with_gradients:
        sum(sample.sum() for sample in posterior.sample()).backward()
    convert(posterior)
    assert {mean.dtype for mean in posterior.mean} == {dtype}
    assert {log_std.dtype for log_std in posterior.log_std} == {at_least_float32(dtype)}
    assert torch.equal(flat(posterior.log_std), before)
    assert all(a is b for a, b in zip(parameters, posterior.parameters(), strict=True))
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in posterior.parameters())
    assert (parameters[0].grad is not None) == with_gradients


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_autocast_leaves_log_stds_and_kl_in_float32(dtype):
    posterior = gaussian(torch.float32)
    variances = [torch.ones(shape) for shape in VARIANCE_SHAPES]
    with torch.autocast("cpu", dtype=dtype):
        inside = joint_kl([(posterior, variances)])
        assert {sample.dtype for sample in posterior.sample()} == {torch.float32}
    assert inside.dtype == torch.float32
    assert float(inside.detach()) == float(joint_kl([(posterior, variances)]).detach())


@every_kind
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_equal_and_independent(kind, copier):
    posterior = make(kind)
    twin = copier(posterior)
    assert torch.equal(flat(twin.sample(seeded())), flat(posterior.sample(seeded())))
    with torch.no_grad():
        twin.mean[0].add_(1.0)
    assert not torch.equal(flat(twin.mean), flat(posterior.mean))


# The bias -----------------------------------------------------------------------------------------


def bias(inference="bayes", weak_std=1.7, dtype=torch.float64):
    return BayesianVector(torch.randn(5, dtype=dtype), 0.2, TTM(2, inference=inference, weak_std=weak_std))


def test_the_kl_of_a_bias_is_against_its_weak_prior():
    vector = bias()
    (mean,), (log_std,) = vector.entries.mean, vector.entries.log_std
    truth = kl_divergence(Normal(mean, log_std.exp()), Normal(torch.zeros(5, dtype=torch.float64), 1.7)).sum()
    torch.testing.assert_close(vector.kl(), truth, rtol=1e-6, atol=1e-6)


def test_the_kl_of_a_point_bias_is_its_negative_log_density_up_to_the_constant():
    vector = bias("map")
    density = Normal(torch.zeros(5, dtype=torch.float64), 1.7).log_prob(vector.entries.mean[0]).sum()
    torch.testing.assert_close(vector.kl(), -density - 2.5 * math.log(2 * math.pi), rtol=1e-6, atol=1e-6)


def test_a_fixed_bias_has_no_kl():
    vector = bias("fixed")
    assert float(vector.kl()) == 0.0
    assert not vector.kl().requires_grad


def test_a_bias_is_sampled_in_training_and_its_mean_in_eval():
    vector = bias()
    assert not torch.equal(vector(), vector())
    assert torch.equal(vector.eval()(), vector.entries.mean[0])


@pytest.mark.parametrize(
    ("inference", "keys"),
    [("bayes", {"entries.mean.0", "entries.log_std.0"}), ("map", {"entries.mean.0"}), ("fixed", {"entries.mean.0"})],
)
def test_the_state_of_a_bias_has_these_keys(inference, keys):
    assert set(bias(inference).state_dict()) == keys
