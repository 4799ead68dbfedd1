import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

import rankfold as rf
from rankfold.likelihood import GaussianLikelihood


@pytest.mark.parametrize("num_outputs", [None, 3])
def test_it_is_the_mean_of_torchs_normal_log_density(num_outputs):
    torch.manual_seed(0)
    likelihood = GaussianLikelihood(num_outputs, initial_std=0.7, dtype=torch.float64)
    with torch.no_grad():
        likelihood.log_std.add_(torch.randn_like(likelihood.log_std))
    prediction = torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)
    target = torch.randn(5, 4, 3, dtype=torch.float64)
    expected = -Normal(prediction, likelihood.std.expand(3)).log_prob(target).mean()
    assert torch.allclose(likelihood(prediction, target), expected, rtol=1e-12)
    parameters = (prediction, likelihood.log_std)
    ours, theirs = (torch.autograd.grad(loss, parameters) for loss in (likelihood(prediction, target), expected))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("num_outputs", [None, 2])
def test_fitted_noise_is_the_residual_standard_deviation(num_outputs):
    torch.manual_seed(0)
    residual = torch.randn(500, 2, dtype=torch.float64) * torch.tensor([0.05, 3.0], dtype=torch.float64)
    likelihood = GaussianLikelihood(num_outputs, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(likelihood.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = likelihood(torch.zeros_like(residual), residual)
        loss.backward()
        return loss

    optimizer.step(closure)
    squares = residual.square()
    expected = squares.mean().sqrt() if num_outputs is None else squares.mean(0).sqrt()
    assert torch.allclose(likelihood.std, expected, rtol=1e-4)
    at_once = GaussianLikelihood(num_outputs, dtype=torch.float64)
    at_once.fit_(torch.zeros_like(residual), residual)
    assert torch.allclose(at_once.std, expected)
    one = GaussianLikelihood(num_outputs, dtype=torch.float64)  # a single example is taken as forward takes it
    one.fit_(torch.zeros_like(residual[0]), residual[0])
    assert torch.allclose(one.std, residual[0].abs() if num_outputs else residual[0].square().mean().sqrt())
    at_once.fit_(residual, residual)  # nothing is missed
    assert torch.isfinite(at_once.log_std).all()


def test_changing_the_unit_of_the_target_changes_the_loss_by_a_constant_only():
    """What mse_loss lacks: with the noise in the same unit, gradients of the fit stay the same."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 1), torch.randn(8, 1)
    gradients = []
    for unit in (1.0, 1000.0):
        scale = torch.ones((), requires_grad=True)
        GaussianLikelihood(initial_std=0.3 * unit)(scale * x * unit, y * unit).backward()
        gradients.append(scale.grad)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-5)
    mse = F.mse_loss(1000.0 * x, 1000.0 * y)
    assert not torch.allclose(mse, F.mse_loss(x, y))


def test_noise_stays_float32_in_a_bfloat16_model():
    likelihood = GaussianLikelihood(initial_std=0.123).to(torch.bfloat16)
    assert likelihood.log_std.dtype == torch.float32
    loss = likelihood(torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(0.5 * math.log(2 * math.pi) + math.log(0.123), rel=1e-6)
    assert likelihood.to(torch.float64).log_std.dtype == torch.float64


def test_the_noise_parameter_is_named_log_std():
    assert [name for name, _ in GaussianLikelihood(3).named_parameters()] == ["log_std"]
    assert repr(GaussianLikelihood(3)) == "GaussianLikelihood(num_outputs=3)"
    assert repr(GaussianLikelihood()) == "GaussianLikelihood(num_outputs=None)"


def test_the_noise_is_never_decayed():
    model = nn.ModuleDict({"layer": rf.Linear(4, 2, config=rf.CP(2)), "noise": GaussianLikelihood(2)})
    groups = rf.param_groups(model, weight_decay=0.1)
    (decay,) = [g["weight_decay"] for g in groups if any(p is model["noise"].log_std for p in g["params"])]
    assert decay == 0.0
    optimizer = torch.optim.AdamW([{"params": model["layer"].parameters(), "weight_decay": 0.0}])
    optimizer.add_param_group({"params": model["noise"].parameters(), "weight_decay": 0.1})
    with pytest.raises(ValueError, match="decays log standard deviations"):
        rf.RankDetermination(model, optimizer, num_data=10, total_steps=10)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 1), (4,)), r"must have one shape, got \(4, 1\) and \(4,\)"),
        (((4, 3), (4, 3)), r"has 2 outputs.*got shape \(4, 3\)"),
        (((), ()), r"has 2 outputs.*got shape \(\)"),
        (((0, 2), (0, 2)), r"no entries.*\(0, 2\)"),
    ],
)
def test_wrong_shapes_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        GaussianLikelihood(2)(*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_initial_std_must_be_positive(value):
    with pytest.raises(ValueError, match="initial_std must be positive and finite, got"):
        GaussianLikelihood(initial_std=value)


@pytest.mark.parametrize("value", [0, -2, 1.5, True])
def test_num_outputs_must_be_a_positive_integer(value):
    with pytest.raises(ValueError, match="num_outputs must be a positive integer"):
        GaussianLikelihood(value)


def test_groups_of_the_model_and_the_likelihood_do_not_decay_it():
    model, likelihood = nn.Sequential(rf.Linear(12, 5, config=rf.CP(2)), nn.Linear(5, 1)), GaussianLikelihood()
    groups = rf.param_groups(nn.ModuleList([model, likelihood]), lr=0.1, weight_decay=0.01)
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert (decay[id(likelihood.log_std)], decay[id(model[1].weight)]) == (0.0, 0.01)
    optimizer = torch.optim.AdamW(groups)
    ranks = rf.RankDetermination(model, optimizer, num_data=10, total_steps=10)
    (likelihood(model(torch.randn(4, 12)), torch.ones(4, 1)) + ranks.kl()).backward()
    optimizer.step()
    assert likelihood.log_std.item() != 0.0
