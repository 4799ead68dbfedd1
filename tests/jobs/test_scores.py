"""Scores of quantities and classes against formulas written out."""

import math

import pytest
import torch

import rankfold as rf
from rankfold.experiments.task import Data, Examples
from rankfold.jobs.objective import Objective
from rankfold.jobs.scores import errors, evaluate
from rankfold.jobs.targets import Classes, Quantity
from rankfold.models.mlp import TableClassifier, TableRegressor


def examples(size, labels):
    return Examples((torch.randn(size, 3),), labels)


def test_errors_are_in_the_targets_unit():
    found = errors(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 3.0]), Quantity("y", 100.0, 10.0))
    assert found["rmse"] == pytest.approx(10 * math.sqrt(2))
    assert found["mae"] == pytest.approx(10.0)
    assert found["r2"] == pytest.approx(1 - 4 / 4.5)
    assert errors(torch.tensor([2.0]), torch.tensor([1.0]), Quantity("y", 100.0, 10.0)) == {"rmse": 10.0, "mae": 10.0}


def test_scores_of_a_quantity():
    model = rf.tensorize_(TableRegressor(3, ()), rf.TTM(3))
    target = Quantity("y", 100.0, 10.0)
    data = Data(examples(20, torch.randn(20)), examples(30, torch.randn(30)))
    with torch.no_grad():
        model.likelihood.log_std.fill_(math.log(0.7))
    metrics = evaluate(model, Objective(target, False), data, seed=0)
    with torch.no_grad():
        mean = 100 + 10 * model.eval()(*data.evaluation.inputs).double()
    truth = 100 + 10 * data.evaluation.labels.double()
    nll = -torch.distributions.Normal(mean, 7.0).log_prob(truth).mean()
    assert metrics["posterior_mean"]["nll_nats"] == pytest.approx(float(nll), rel=1e-5)
    assert metrics["posterior_mean"]["rmse"] == pytest.approx(float((mean - truth).square().mean().sqrt()), rel=1e-5)
    assert metrics["posterior_mean"]["noise_std"] == pytest.approx(7.0)
    assert metrics["baseline"]["rmse"] == pytest.approx(float((truth - 100).square().mean().sqrt()), rel=1e-5)
    assert 0 <= metrics["monte_carlo"]["within_90_percent"] <= 1
    Objective(target, False).settle(model, data.train, seed=0)
    with torch.no_grad():
        missed = model.eval()(*data.train.inputs) - data.train.labels
    torch.testing.assert_close(model.likelihood.std.detach(), missed.square().mean().sqrt())
    with torch.no_grad():
        model.likelihood.log_std.fill_(math.log(0.7))
    quick = Objective(target, False).quick_scores(model, data.evaluation)
    assert quick["evaluation_nll"] == pytest.approx(metrics["posterior_mean"]["nll_nats"], rel=1e-5)
    assert quick["evaluation_rmse"] == pytest.approx(metrics["posterior_mean"]["rmse"], rel=1e-5)


def test_scores_of_classes_and_of_every_epoch():
    model = rf.tensorize_(TableClassifier(3, (), 4), rf.TTM(3))
    objective = Objective(Classes(tuple("abcd")), False)
    train, held = examples(20, torch.tensor([2] * 11 + [0] * 9)), examples(30, 2 * torch.randint(2, (30,)))
    metrics = evaluate(model, objective, Data(train, held), seed=0)
    share = torch.tensor([9 / 20, 0, 11 / 20, 0])
    assert metrics["baseline"] == {
        "answer": "c",
        "accuracy": float((held.labels == 2).double().mean()),
        "nll_nats": pytest.approx(float(-share[held.labels].log().mean())),
    }
    quick = objective.quick_scores(model, held)
    assert quick["evaluation_accuracy"] == pytest.approx(metrics["posterior_mean"]["accuracy"])
    assert quick["evaluation_nll"] == pytest.approx(metrics["posterior_mean"]["nll_nats"], rel=1e-5)
    assert sum(metrics["monte_carlo"]["calibration"]["count"]) == 30
