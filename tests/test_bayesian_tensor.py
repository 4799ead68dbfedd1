"""A tensor with its prior: KL and λ against the paper's densities, states, precision, copies."""

import copy
import math
import pickle

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from rankfold.bayesian_tensor import BayesianTensor, replace_data, tensors_of
from rankfold.config import CP, TT, TTM, Tucker
from rankfold.posterior import at_least_float32
from rankfold.priors import HalfCauchy, LogUniform

CONFIGS = {
    "CP": (CP, 3, (3, 4), (2, 3)),
    "Tucker": (Tucker, (2, 3, 2, 1), (3, 4), (2, 3)),
    "TT": (TT, (3, 4, 2), (3, 4), (2, 3)),
    "TTM": (TTM, (4, 3), (3, 2, 2), (1, 3, 2)),
}
PRIORS = [LogUniform(), HalfCauchy(), HalfCauchy(0.03)]
every_format = pytest.mark.parametrize("name", CONFIGS)
every_prior = pytest.mark.parametrize("prior", PRIORS, ids=str)
every_inference = pytest.mark.parametrize("inference", ["bayes", "map", "fixed"])


def tensor_of(name, *, dtype=torch.float64, weight_std=0.1, matrix=None, ranks=None, **options):
    """11 inputs, 5 outputs, both padded; weak_std away from 1, so that it counts."""
    kind, max_rank, in_dims, out_dims = CONFIGS[name]
    config = kind(ranks or max_rank, in_dims=in_dims, out_dims=out_dims, **{"weak_std": 0.6, **options})
    return BayesianTensor(config.build(11, 5), config, weight_std, matrix=matrix, dtype=dtype)


def perturbed(tensor):
    """Every mean, log-std and λ different."""
    with torch.no_grad():
        for parameter in tensor.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        tensor.variance.mul_(0.5 + torch.rand_like(tensor.variance))
    return tensor


def prior_variances(name, tensor):
    """The prior variance of every entry, written out from the paper's definition of each prior."""
    rates = torch.split(tensor.variance, list(tensor.format.ranks))
    shapes = tensor.format.factor_shapes
    if name == "CP":  # u^(n)_ij ~ N(0, λ_j)
        return [rates[0][None, :].expand(shape) for shape in shapes]
    if name == "Tucker":  # u^(n)_ij ~ N(0, λ^(n)_j), g ~ N(0, σ₀²)
        columns = [rate[None, :].expand(shape) for rate, shape in zip(rates, shapes[:-1], strict=True)]
        return [*columns, torch.full(shapes[-1], 0.6**2, dtype=tensor.variance.dtype)]
    # core n < d: by its right rank λ^(n); core d: by its left rank λ^(d−1)
    right = [rate.expand(shape) for rate, shape in zip(rates, shapes[:-1], strict=True)]
    left = rates[-1].reshape(-1, *[1] * (len(shapes[-1]) - 1))
    return [*right, left.expand(shapes[-1])]


def objective(tensor):
    return float((tensor.kl() + tensor.penalty()).detach())


# The weight ---------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("weight_std", [0.01, 1.0])
def test_initial_weights_have_the_wanted_std(name, weight_std):
    """The mean weight, and a sampled one, within 10 %."""
    kind = CONFIGS[name][0]
    config = kind(8, order=2)
    tensor = BayesianTensor(config.build(784, 500), config, weight_std)
    with torch.no_grad():
        assert float(tensor.eval().matrix().std()) == pytest.approx(weight_std, rel=0.1)
        assert float(tensor.train().matrix().std()) == pytest.approx(weight_std, rel=0.1)


@every_format
def test_the_posterior_mean_weight_is_the_mean_of_sampled_weights(name):
    tensor, count = perturbed(tensor_of(name)), 4000
    with torch.no_grad():
        draws = torch.stack([tensor.matrix() for _ in range(count)])
        mean = tensor.eval().matrix()
    error = draws.std(0) / math.sqrt(count)
    assert ((draws.mean(0) - mean).abs() < 5 * error).all()


@every_format
def test_all_ways_to_use_the_weight_agree(name):
    tensor = perturbed(tensor_of(name)).eval()
    x, y, index = torch.randn(4, 11).double(), torch.randn(4, 5).double(), torch.tensor([10, 0, 3])
    matrix = tensor.matrix()
    assert matrix.shape == (11, 5)
    torch.testing.assert_close(tensor.apply_to(x), x @ matrix)
    torch.testing.assert_close(tensor.apply_to(y, transposed=True), y @ matrix.T)
    torch.testing.assert_close(tensor.rows(index), matrix[index])


@every_format
def test_two_forwards_leave_the_same_state(name):
    tensor = tensor_of(name)
    before = copy.deepcopy(tensor.state_dict())
    tensor.matrix()
    tensor.kl()
    assert all(torch.equal(value, before[key]) for key, value in tensor.state_dict().items())


@every_format
@every_inference
def test_a_dense_matrix_is_taken_over(name, inference):
    useful = tensor_of(name).format.useful_ranks
    matrix = 0.2 * torch.randn(11, 5)
    tensor = tensor_of(name, ranks=useful, matrix=matrix, inference=inference).eval()
    assert (tensor.matrix() - matrix).norm() / matrix.norm() < 1e-3


@every_format
@every_inference
@every_prior
def test_a_zero_matrix_is_taken_over_and_can_still_learn(name, inference, prior):
    tensor = tensor_of(name, matrix=torch.zeros(11, 5), inference=inference, prior=prior).eval()
    assert not tensor.matrix().any()
    assert tensor.kl().isfinite()
    assert tensor.penalty().isfinite()
    tensor.matrix().sum().backward()
    assert any(bool(mean.grad.any()) for mean in tensor.factors.mean)


# KL and penalty -----------------------------------------------------------------------------------


@every_format
@every_prior
def test_kl_and_its_gradient_are_those_of_torch_distributions(name, prior):
    tensor = perturbed(tensor_of(name, prior=prior))
    truth = sum(
        kl_divergence(Normal(mean, log_std.exp()), Normal(torch.zeros_like(mean), variance.sqrt())).sum()
        for mean, log_std, variance in zip(
            tensor.factors.mean, tensor.factors.log_std, prior_variances(name, tensor), strict=True
        )
    )
    torch.testing.assert_close(tensor.kl(), truth)
    parameters = list(tensor.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(tensor.kl(), parameters), torch.autograd.grad(truth, parameters), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@every_format
def test_kl_of_points_is_their_negative_log_density_up_to_the_constant(name):
    tensor = perturbed(tensor_of(name, inference="map"))
    density = sum(
        Normal(torch.zeros_like(mean), variance.sqrt()).log_prob(mean).sum()
        for mean, variance in zip(tensor.factors.mean, prior_variances(name, tensor), strict=True)
    )
    constant = 0.5 * math.log(2 * math.pi) * tensor.format.num_entries
    torch.testing.assert_close(tensor.kl(), -density - constant)


@every_format
def test_fixed_rank_training_has_no_prior(name):
    tensor = tensor_of(name, inference="fixed")
    assert float(tensor.kl()) == 0.0
    assert float(tensor.penalty()) == 0.0
    assert tensor.variance.numel() == 0
    assert tensor.variances() == ()
    tensor.update_variance(0.9)
    assert tensor.num_updates == 1


@every_format
@every_prior
def test_the_penalty_adds_up_over_ranks_and_has_no_gradient(name, prior):
    tensor = perturbed(tensor_of(name, prior=prior))
    torch.testing.assert_close(tensor.penalty(), sum(tensor.prior.penalty(v).sum() for v in tensor.variances()))
    assert not tensor.penalty().requires_grad


@every_format
def test_prior_variances_are_those_of_the_paper(name):
    tensor = perturbed(tensor_of(name))
    ours = tensor.prior_variances(tensor.variances())
    for mine, truth in zip(ours, prior_variances(name, tensor), strict=True):
        torch.testing.assert_close(mine.expand(truth.shape), truth)


# The second half step -----------------------------------------------------------------------------


@every_format
@every_prior
@pytest.mark.parametrize("inference", ["bayes", "map"])
def test_no_rescaled_variance_does_better(name, prior, inference):
    """For every rank of every group: the objective rises whichever way its λ is scaled."""
    tensor = perturbed(tensor_of(name, prior=prior, inference=inference))
    tensor.update_variance(1.0)
    least, best = objective(tensor), tensor.variance.clone()
    assert best.numel() == sum(tensor.format.ranks)
    for k in range(best.numel()):
        for factor in (1e-3, 0.3, 0.9, 0.99, 1.01, 1.1, 3.0, 1e3):
            tensor.variance.copy_(best)[k] *= factor
            assert objective(tensor) > least


@every_format
@every_prior
def test_any_other_variances_are_worse(name, prior):
    tensor = perturbed(tensor_of(name, prior=prior))
    tensor.update_variance(1.0)
    least, best = objective(tensor), tensor.variance.clone()
    for scale in (0.01, 0.3, 2.0):
        tensor.variance.copy_(best * (scale * torch.randn_like(best)).exp())
        assert objective(tensor) > least


@every_format
@every_prior
@pytest.mark.parametrize("step_size", [0.0, 0.3, 0.9, 1.0])
def test_a_half_step_goes_part_of_the_way(name, prior, step_size):
    tensor = perturbed(tensor_of(name, prior=prior))
    before = tensor.variance.clone()
    best = tensor.prior.best_variance(tensor.second_moments(), tensor.count)
    tensor.update_variance(step_size)
    torch.testing.assert_close(tensor.variance, step_size * best + (1 - step_size) * before)
    assert tensor.num_updates == 1


@every_format
def test_second_moments_and_counts_are_sums_over_the_governed_entries(name):
    """M and D of each λ, found by which prior variances it changes."""
    tensor = perturbed(tensor_of(name))
    means, log_stds = ([p.detach() for p in parameters] for parameters in tensor.factors.parameter_lists())
    squares = [mean.square() + (2 * log_std).exp() for mean, log_std in zip(means, log_stds, strict=True)]
    kept = tensor.variance.clone()
    for k in range(kept.numel()):
        before = [v.clone() for v in prior_variances(name, tensor)]
        tensor.variance[k] *= 2
        touched = [a != b for a, b in zip(before, prior_variances(name, tensor), strict=True)]
        tensor.variance.copy_(kept)
        assert int(tensor.count[k]) == sum(int(mask.sum()) for mask in touched)
        moment = sum(square[mask].sum() for square, mask in zip(squares, touched, strict=True))
        torch.testing.assert_close(tensor.second_moments()[k], moment)


@every_format
def test_variances_start_at_their_best(name):
    tensor = tensor_of(name)
    before = tensor.variance.clone()
    assert tensor.num_updates == 0
    tensor.update_variance(1.0)
    torch.testing.assert_close(tensor.variance, before)


@every_format
def test_the_default_eta_scales_with_the_factors(name):
    torch.manual_seed(0)
    small = tensor_of(name, prior=HalfCauchy(), weight_std=0.01)
    torch.manual_seed(0)
    large = tensor_of(name, prior=HalfCauchy(), weight_std=1.0)
    ratio = 100 ** (1 / len(small.factors.mean))  # each factor carries its share of the scale
    assert large.prior.eta / small.prior.eta == pytest.approx(ratio, rel=1e-6)
    torch.testing.assert_close(large.variance, small.variance * ratio**2)


# States -------------------------------------------------------------------------------------------


@every_format
@every_inference
def test_the_state_has_exactly_these_keys(name, inference):
    tensor = tensor_of(name, inference=inference)
    count = len(tensor.format.factor_shapes)
    keys = {"variance"} | {f"factors.mean.{n}" for n in range(count)}
    if inference == "bayes":
        keys |= {f"factors.log_std.{n}" for n in range(count)}
    assert set(tensor.state_dict()) == keys


def smaller(tensor):
    return tuple(max(1, rank - 1) for rank in tensor.format.ranks)


@every_format
@every_inference
def test_a_state_loads_into_a_tensor_of_other_ranks(name, inference):
    """Pruned into unpruned, and back; parameter identity is kept and training goes on."""
    big = tensor_of(name, inference=inference)
    small = perturbed(tensor_of(name, inference=inference, ranks=smaller(big)))
    for source, target in ((small, tensor_of(name, inference=inference)), (big, copy.deepcopy(small))):
        parameters, started = list(target.parameters()), target.max_ranks
        target.load_state_dict(copy.deepcopy(source.state_dict()))
        assert target.format == source.format
        assert target.max_ranks == started
        assert all(a is b for a, b in zip(parameters, target.parameters(), strict=True))
        assert torch.equal(target.eval().matrix(), source.eval().matrix())
        assert torch.equal(target.kl(), source.kl())
        assert torch.equal(target.count, source.count)
        target.train().matrix().sum().backward()
        assert all(p.grad is None or p.grad.shape == p.shape for p in target.parameters())


@every_format
def test_a_state_of_another_architecture_is_refused_and_changes_nothing(name):
    tensor = tensor_of(name)
    before = copy.deepcopy(tensor.state_dict())
    state = copy.deepcopy(before)
    state["factors.mean.0"] = torch.zeros([n + 1 for n in state["factors.mean.0"].shape])
    with pytest.raises(RuntimeError, match=r"size mismatch for factors\.mean\.0"):
        tensor.load_state_dict(state)
    assert [tuple(mean.shape) for mean in tensor.factors.mean] == list(tensor.format.factor_shapes)
    assert torch.equal(tensor.factors.mean[0], before["factors.mean.0"])


@every_format
@pytest.mark.parametrize("missing", ["variance", "factors.mean.0"])
def test_a_state_with_something_missing_is_refused(name, missing):
    tensor = tensor_of(name)
    state = copy.deepcopy(tensor.state_dict())
    del state[missing]
    with pytest.raises(RuntimeError, match=f'Missing key.* "{missing}"'):
        tensor.load_state_dict(state)


@every_format
@every_inference
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_equal_and_independent(name, inference, copier):
    tensor = perturbed(tensor_of(name, inference=inference))
    twin = copier(tensor)
    assert twin.format == tensor.format
    assert torch.equal(twin.kl(), tensor.kl())
    assert torch.equal(twin.eval().matrix(), tensor.eval().matrix())
    with torch.no_grad():
        twin.factors.mean[0].add_(1.0)
    twin.update_variance(0.5)
    assert not torch.equal(twin.matrix(), tensor.matrix())
    assert (twin.num_updates, tensor.num_updates) == (1, 0)


# Precision ----------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtypes_when_made_and_when_converted(name, dtype):
    converted = tensor_of(name, dtype=torch.float32)
    converted.kl().backward()
    converted.to(dtype)
    for tensor in (tensor_of(name, dtype=dtype), converted):
        precise = [tensor.variance, tensor.count, *tensor.factors.log_std, *tensor.factors.second_moments()]
        assert {mean.dtype for mean in tensor.factors.mean} == {dtype}
        assert {value.dtype for value in precise} == {at_least_float32(dtype)}
        assert tensor.matrix().dtype == dtype
        assert tensor.kl().dtype == at_least_float32(dtype)
        assert all(p.grad is None or p.grad.dtype == p.dtype for p in tensor.parameters())
        tensor.update_variance(0.9)
        assert tensor.variance.isfinite().all()


@every_format
@every_prior
def test_float32_agrees_with_float64(name, prior):
    exact = perturbed(tensor_of(name, prior=prior))
    single = copy.deepcopy(exact).float()
    for tensor in (exact, single):
        tensor.update_variance(0.9)
    torch.testing.assert_close(single.variance.double(), exact.variance, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(single.kl().double(), exact.kl(), rtol=1e-5, atol=1e-4)


# Odds and ends ------------------------------------------------------------------------------------


def test_a_parameter_changes_shape_while_its_last_graph_is_alive():
    parameter = torch.nn.Parameter(torch.ones(3, 4))
    loss = (parameter**2).sum()
    loss.backward(retain_graph=True)
    replace_data(parameter, torch.ones(3, 2))
    assert parameter.grad is None
    (3 * parameter).sum().backward()
    assert torch.equal(parameter.grad, torch.full((3, 2), 3.0))
    assert loss.grad_fn is not None


def test_tensors_are_found_by_name_and_shared_ones_once():
    shared = tensor_of("CP")
    model = torch.nn.ModuleDict({"a": shared, "b": tensor_of("TT"), "c": shared})
    assert list(tensors_of(model)) == ["a", "b"]


def test_a_tensor_describes_itself():
    tensor = tensor_of("TTM", inference="map")
    assert str(tensor.format) == "TTM [3, 2, 2] x [1, 3, 2], ranks [4, 3]"
    assert tensor.extra_repr() == "TTM [3, 2, 2] x [1, 3, 2], ranks [4, 3], map"
