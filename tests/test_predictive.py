import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold.posterior import FactorPosterior, GaussianPosterior
from rankfold.predictive import mean_and_std, predict, sampled


def network(inference="bayes"):
    torch.manual_seed(0)
    return nn.Sequential(
        rf.Linear(8, 6, config=rf.TTM(max_rank=2, inference=inference)),
        nn.LayerNorm(6),
        nn.Dropout(0.5),
        nn.Linear(6, 3),
    )


def flags(model):
    return {name: module.training for name, module in model.named_modules()}


def test_moments_of_a_rank_1_cp_layer_match_the_closed_form():
    """One rank, factors u (I,) and v (J,): y_j = v_j Σ x_i u_i + b_j has exact mean and variance."""
    torch.manual_seed(0)
    layer = rf.Linear(5, 3, dtype=torch.float64, config=rf.CP(max_rank=1, in_dims=(5,), out_dims=(3,)))
    for posterior in layer.modules():
        if isinstance(posterior, GaussianPosterior):
            for mean, log_std in zip(posterior.mean, posterior.log_std, strict=True):
                nn.init.normal_(mean)
                nn.init.uniform_(log_std, -1.5, 0.0)
    x = torch.randn(4, 5, dtype=torch.float64)
    (u, v), (su, sv) = layer.tensor.factors.mean, (p.exp() for p in layer.tensor.factors.log_std)
    b, sb = layer.bias_vector.entries.mean[0], layer.bias_vector.entries.log_std[0].exp()
    # s = Σ x_i u_i ~ N(m, t); E[s v] = m μ; Var[s v] = t σ² + t μ² + m² σ²
    m, t = x @ u, x.square() @ su.square()  # (B, 1)
    mean = m * v.T + b
    variance = t * sv.square().T + t * v.square().T + m.square() * sv.square().T + sb.square()

    count = 8_000
    estimate, std = predict(layer, x, samples=count, seed=0)
    assert ((estimate - mean).abs() < 5 * (variance / count).sqrt()).all()
    assert torch.allclose(std.square(), variance, rtol=0.1)


def test_streaming_moments_equal_those_of_the_stack():
    values = 1e4 + torch.randn(50, 4, 3)
    mean, std = mean_and_std(iter(values))
    assert torch.allclose(mean, values.double().mean(0).float(), rtol=1e-6)
    assert torch.allclose(std, values.double().std(0).float(), rtol=5e-3)


def test_transform_is_applied_to_every_sample():
    model, x = network(), torch.randn(4, 8)
    mean, std = predict(model, x, samples=5, transform=lambda logits: logits.softmax(-1), seed=3)
    torch.manual_seed(3)
    with torch.no_grad(), sampled(model):
        draws = torch.stack([model(x).softmax(-1) for _ in range(5)])
    assert torch.allclose(mean, draws.mean(0), atol=1e-6)
    assert torch.allclose(std, draws.std(0), atol=1e-6)
    assert torch.allclose(mean.sum(-1), torch.ones(4), atol=1e-6)


def test_only_the_posteriors_are_random():
    model, x = network().train(), torch.randn(4, 8)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with sampled(model):
        assert all(
            module.training == isinstance(module, FactorPosterior) or in_list(module) for module in model.modules()
        )
        assert not torch.equal(model(x), model(x))
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    _, std = predict(network("map"), x, samples=3)
    assert torch.equal(std, torch.zeros(4, 3))


def in_list(module):
    return isinstance(module, nn.ParameterList)  # below a posterior; has no behaviour of its own


def test_all_modes_are_restored_also_after_an_error():
    model = network()
    model[1].eval()
    model[0].tensor.eval()
    before = flags(model)
    predict(model, torch.randn(4, 8), samples=2)
    assert flags(model) == before
    predict(model, torch.randn(4, 8), samples=0)
    assert flags(model) == before
    with pytest.raises(ValueError, match="expected 8 input features"):
        predict(model, torch.randn(4, 7), samples=2)
    assert flags(model) == before


def test_no_samples_gives_the_posterior_mean_and_no_spread():
    model, x = network().train(), torch.randn(4, 8)
    mean, std = predict(model, x, samples=0)
    with torch.no_grad():
        assert torch.equal(mean, model.eval()(x))
    assert torch.equal(std, torch.zeros(4, 3))
    assert not mean.requires_grad


def test_a_seed_repeats_the_draws_and_leaves_the_global_state_alone():
    model, x = network(), torch.randn(4, 8)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = (predict(model, x, samples=4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(predict(model, x, samples=4)[0], predict(model, x, samples=4)[0])


def test_low_precision_outputs_are_averaged_in_float32():
    model = nn.Sequential(rf.Linear(8, 6, config=rf.CP(max_rank=2))).to(torch.bfloat16)
    mean, std = predict(model, torch.ones(2, 8, dtype=torch.bfloat16), samples=3)
    assert mean.dtype == std.dtype == torch.float32


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = rf.Linear(8, 6, config=rf.CP(max_rank=2))

    def forward(self, x, scale):
        return self.layer(x) * scale, None


def test_structured_outputs_need_a_transform():
    with pytest.raises(TypeError, match="returned tuple, not a tensor; give transform="):
        predict(Pair(), torch.ones(2, 8), 2.0, samples=2)
    mean, _ = predict(Pair(), torch.ones(2, 8), 2.0, samples=2, transform=lambda output: output[0])
    assert mean.shape == (2, 6)


class Keywords(nn.Module):
    """Takes names that ``predict`` has options of, too."""

    def __init__(self):
        super().__init__()
        self.layer = rf.Linear(8, 6, config=rf.CP(max_rank=2))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x, *, number=1.0, seed=0.0):
        return number * self.norm(self.layer(x)) + seed


@pytest.mark.parametrize("options", [{"samples": 0}, {"samples": 3, "seed": 1}])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_what_a_model_takes_by_keyword_goes_into_kwargs(options, batch_norm):
    model, x = Keywords(), torch.randn(9, 8)
    if batch_norm:
        options = options | {"bn_batches": [torch.randn(20, 8)]}
    else:
        model.norm = nn.Identity()
    plain, plain_std = predict(model, x, **options)
    mean, std = predict(model, x, kwargs={"number": 2.0, "seed": 5.0}, **options)
    torch.testing.assert_close(mean, 2.0 * plain + 5.0)
    torch.testing.assert_close(std, 2.0 * plain_std)
    torch.testing.assert_close(predict(model, kwargs={"x": x}, **options), (plain, plain_std))


def test_kwargs_are_a_mapping():
    with pytest.raises(TypeError, match="kwargs must map names to what the model takes by keyword, got Tensor"):
        predict(network(), kwargs=torch.ones(2, 8))


def test_a_seed_must_be_a_number():
    with pytest.raises(TypeError, match="seed must be an integer or None, got 'a'"):
        predict(rf.Linear(8, 6, config=rf.CP(2)), torch.ones(2, 8), seed="a")


@pytest.mark.parametrize("samples", [-1, 1, 2.5])
def test_samples_must_make_sense(samples):
    with pytest.raises(ValueError, match=r"samples must be 0 .* or at least 2, got"):
        predict(network(), torch.ones(2, 8), samples=samples)


def test_the_same_infinity_in_every_draw_is_its_own_mean():
    masked = torch.tensor([0.0, float("-inf"), float("inf")])
    draws = [torch.tensor([float(n), 0.0, 0.0]) + masked for n in range(4)]
    mean, std = mean_and_std(iter(draws))
    assert mean.tolist() == [1.5, float("-inf"), float("inf")]
    assert std[0].item() == pytest.approx(torch.arange(4.0).std().item())
    assert std[1:].tolist() == [0.0, 0.0]
