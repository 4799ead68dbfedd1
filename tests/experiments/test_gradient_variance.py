"""Drawing λ adds the variance that the formula says, and q(λ) is as wide as the exact posterior of λ."""

import json

import pytest
import torch

import rankfold as rf
from rankfold.experiments import gradient_variance as module
from rankfold.experiments.gradient_variance import Settings, drawn_variance, measure, relative_std, weakest_rank
from rankfold.experiments.results import Places
from rankfold.figures.gradient_variance import draw_gradient_variance

SHORT = Settings(steps=40, looks=2, draws=5)


def make(inference="map"):
    layer = rf.Linear(64, 10, config=rf.CP(4, in_dims=(8, 8), out_dims=(10,), inference=inference))
    optimizer = torch.optim.Adam(rf.param_groups(layer))
    ranks = rf.RankDetermination(layer, optimizer, num_data=1437, warmup_steps=1)
    ranks.beta.fill_(1.0)
    return layer, ranks


def test_the_drawn_precision_has_the_moments_of_the_exact_posterior():
    layer, _ = make()
    tensor = layer.tensor
    tensor.variance.copy_(torch.tensor([0.1, 1.0, 2.0, 1e-4]))
    noise = torch.randn(200_000, 4)
    precision = 1.0 / torch.stack([drawn_variance(tensor, noise)])[0]
    # given factors of D entries with second moment M, 1/λ is Gamma(D/2, M/2)
    count = 8 + 8 + 10
    exact = torch.distributions.Gamma(count / 2, count / 2 * tensor.variance)
    torch.testing.assert_close(precision.mean(0), exact.mean, rtol=0.01, atol=0.0)
    torch.testing.assert_close(precision.std(0), exact.stddev, rtol=0.02, atol=0.0)
    assert relative_std(tensor)[0] == pytest.approx((2 / count) ** 0.5)


def test_drawing_a_small_variance_adds_what_the_formula_says():
    layer, ranks = make()
    layer.tensor.variance.fill_(1e-6)
    images, labels = torch.rand(100, 64), torch.randint(10, (100,))
    look = module._look(layer, ranks, images, labels, draws=400)
    added = torch.tensor(look["gradient_variance"]["drawn"]) - torch.tensor(look["gradient_variance"]["delta"])
    torch.testing.assert_close(added, torch.tensor(look["added_by_formula"]), rtol=0.25, atol=0.0)
    assert layer.tensor.variance.tolist() == pytest.approx([1e-6] * 4)


def test_a_measurement_says_all_that_the_figure_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfold.figures.gradient_variance.measure", lambda inference: measure(inference, SHORT))
    figure = draw_gradient_variance(Places(results=tmp_path))
    found = json.loads((tmp_path / "gradient-variance.json").read_text())
    for axes, inference in zip(figure.axes, ("bayes", "map"), strict=True):
        looks, rank = found[inference]["looks"], weakest_rank(found[inference])
        assert [look["step"] for look in looks] == [20, 40]
        for line, how in zip(axes.lines, ("delta", "drawn"), strict=True):
            assert line.get_ydata().tolist() == [look["gradient_variance"][how][rank] for look in looks]
    monkeypatch.setattr("rankfold.figures.gradient_variance.measure", None)  # the second time it is read
    draw_gradient_variance(Places(results=tmp_path))
