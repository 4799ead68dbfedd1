"""Scores of clicks, and what result files keep of them."""

import json

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

import rankfold as rf
from rankfold.experiments import clicks
from rankfold.experiments.bootstrap import paired_bootstrap
from rankfold.experiments.clicks import click_loss, click_scores, compare, evaluate, pack_scores, unpack_scores
from rankfold.experiments.task import Data, Examples
from rankfold.models.dlrm import DLRM


def small_dlrm(inference="bayes"):
    model = DLRM((50, 6), dim=8, bottom=(8,), top=(8,), num_numbers=3)
    return rf.tensorize_(model, None, overrides={"tables.0": rf.TTM(4, inference=inference)})


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(300, 3, generator=generator)
    categories = torch.stack([torch.randint(n, (300,), generator=generator, dtype=torch.int32) for n in (50, 6)], 1)
    labels = (torch.rand(300, generator=generator) < 0.3).to(torch.uint8)
    examples = Examples((numbers, categories), labels)
    return Data(examples, examples)


def test_the_loss_is_the_mean_of_minus_log_p():
    logits, labels = torch.tensor([0.3, -2.0, 1.0]), torch.tensor([1, 0, 0], dtype=torch.uint8)
    p = logits.sigmoid()
    expected = -(p[0].log() + (1 - p[1]).log() + (1 - p[2]).log()) / 3
    torch.testing.assert_close(click_loss(logits, labels), expected)


def test_scores_of_the_posterior_mean_in_batches(data, monkeypatch):
    monkeypatch.setattr(clicks, "_BATCH", 64)
    torch.manual_seed(0)
    model = small_dlrm()
    metrics = evaluate(model, data, seed=0)
    labels = data.evaluation.labels
    with torch.no_grad():
        logits = model.eval()(*data.evaluation.inputs)
    found = metrics["posterior_mean"]
    assert found["auc"] == pytest.approx(float(binary_auroc(logits, labels.long())), abs=1e-6)
    assert found["accuracy"] == pytest.approx(float(((logits > 0) == labels.bool()).double().mean()))
    assert found["nll_nats"] == pytest.approx(float(click_loss(logits.double(), labels)), rel=1e-5)
    assert metrics["monte_carlo"]["samples"] == clicks.NUM_SAMPLES
    assert metrics["monte_carlo"]["nll_nats"] != found["nll_nats"]
    assert evaluate(model, data, seed=0) == metrics
    json.dumps(metrics)


def test_without_a_posterior_there_is_nothing_to_sample(data):
    assert "monte_carlo" not in evaluate(small_dlrm("fixed"), data, seed=0)
    assert "monte_carlo" not in evaluate(DLRM((50, 6), 4, bottom=(4,), top=(4,), num_numbers=3), data, seed=0)


def test_a_certain_mistake_costs_much_but_not_infinitely_much():
    scores = click_scores(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))
    assert 10 < scores["nll_nats"] < 20


def test_scores_come_back_from_text():
    random = np.random.default_rng(0)
    probabilities, labels = torch.tensor(random.random(1001)), torch.tensor(random.random(1001) < 0.3)
    logits, found = unpack_scores(json.loads(json.dumps(pack_scores(probabilities, labels))))
    np.testing.assert_array_equal(found, labels.numpy())
    np.testing.assert_allclose(logits, torch.logit(probabilities).numpy(), rtol=1e-3, atol=1e-6)


def test_many_scores_are_thinned_out_evenly(monkeypatch):
    monkeypatch.setattr(clicks, "MOST_SCORES", 100)
    probabilities, labels = torch.linspace(0.1, 0.9, 250), torch.arange(250) % 2
    packed = pack_scores(probabilities, labels)
    assert (packed["count"], packed["step"]) == (84, 3)
    logits, found = unpack_scores(packed)
    np.testing.assert_array_equal(found, labels[::3].bool().numpy())
    np.testing.assert_allclose(logits, torch.logit(probabilities[::3]).numpy(), rtol=1e-3, atol=1e-3)


def test_result_files_are_compared_example_by_example():
    random = np.random.default_rng(1)
    labels = torch.tensor(random.random(400) < 0.4)

    def result(noise, labels=labels):
        scores = labels.double() + noise * torch.tensor(random.standard_normal(400))
        return {"metrics": {"scores": pack_scores(scores.sigmoid(), labels)}}

    good, worse = [result(0.8), result(0.8)], [result(2.0), result(2.0)]
    found = compare(good, worse)
    stored = [np.stack([unpack_scores(r["metrics"]["scores"])[0] for r in row]) for row in (good, worse)]
    assert found == paired_bootstrap(*stored, labels.numpy())
    assert found.low > 0
    with pytest.raises(ValueError, match="of different examples"):
        compare(good, [result(1.0, ~labels)])


@pytest.mark.parametrize("value", [-0.5, 1.5])
def test_logits_are_not_taken_for_probabilities(value):
    with pytest.raises(ValueError, match=rf"must lie in \[0, 1\], got {value}; of logits give their sigmoid"):
        click_scores(torch.tensor([0.5, value]), torch.tensor([0, 1]))
