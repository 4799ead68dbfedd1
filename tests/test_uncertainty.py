"""Measures of uncertainty against their definitions, counted out one by one."""

import math
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import rankfold as rf
from rankfold.uncertainty import (
    accuracy,
    brier_score,
    calibration_error,
    entropy,
    nll_nats,
    ood_auroc,
    predictive_statistics,
    score,
)

SEEDS = st.integers(0, 2**20)


def random_predictions(seed, n=200, classes=5, sharpness=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(classes, (n,), generator=generator)


def binned(probabilities, labels, bins=15):
    """ECE with explicit bins [k/15, (k+1)/15), the last one closed."""
    total = 0.0
    groups = [[] for _ in range(bins)]
    for p, y in zip(probabilities.tolist(), labels.tolist(), strict=True):
        confidence = max(p)
        groups[min(int(confidence * bins), bins - 1)].append((confidence, p.index(confidence) == y))
    for group in groups:
        if group:
            gap = sum(right for _, right in group) / len(group) - sum(c for c, _ in group) / len(group)
            total += abs(gap) * len(group) / len(labels)
    return total


def pair_counting(inside, outside):
    wins = sum((b > a) + 0.5 * (b == a) for a in inside.tolist() for b in outside.tolist())
    return wins / (len(inside) * len(outside))


def test_values_computed_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    y = torch.tensor([0, 1])
    scores = score(p, y)
    assert scores.nll_nats == pytest.approx(-(math.log(0.7) + math.log(0.3)) / 2)
    assert scores.accuracy == 0.5
    assert scores.brier == pytest.approx(((0.3**2 + 0.2**2 + 0.1**2) + (0.3**2 + 0.7**2 + 0.4**2)) / 2)
    assert scores.ece == pytest.approx((abs(1 - 0.7) + abs(0 - 0.4)) / 2)


def test_perfect_and_hopeless_predictions():
    sure, y = torch.eye(4), torch.arange(4)
    perfect = score(sure, y)
    assert (perfect.nll_nats, perfect.accuracy, perfect.brier) == (0.0, 1.0, 0.0)
    assert perfect.ece == pytest.approx(0.0, abs=1e-6)
    hopeless = score(sure, y.roll(1))
    assert (hopeless.nll_nats, hopeless.accuracy, hopeless.brier) == (math.inf, 0.0, 2.0)
    assert hopeless.ece == pytest.approx(1.0)


@settings(max_examples=20)
@given(SEEDS, st.sampled_from([0.3, 3.0, 30.0]))
def test_every_measure_equals_its_definition(seed, sharpness):
    p, y = random_predictions(seed, sharpness=sharpness)
    rows = list(zip(p.tolist(), y.tolist(), strict=True))
    scores = score(p, y)
    assert scores.nll_nats == pytest.approx(sum(-math.log(row[label]) for row, label in rows) / len(rows))
    assert scores.accuracy == pytest.approx(sum(max(row) == row[label] for row, label in rows) / len(rows))
    squares = (sum((q - (c == label)) ** 2 for c, q in enumerate(row)) for row, label in rows)
    assert scores.brier == pytest.approx(sum(squares) / len(rows))
    assert scores.ece == pytest.approx(binned(p, y), abs=1e-5)


def test_a_confidence_of_exactly_one_belongs_to_the_last_bin():
    """Gaps of opposite sign within one bin cancel: a bin more for 1.0 alone would not let them."""
    p = torch.tensor([[1.0, 0.0], [0.95, 0.05]])
    y = torch.tensor([0, 1])
    assert calibration_error(p, y) == pytest.approx(abs(0.5 - 0.975), abs=1e-6)


def test_a_sum_just_above_one_does_not_turn_probabilities_into_logits():
    p, y = random_predictions(0, sharpness=20.0)
    assert calibration_error(p * (1.0 + 1e-7), y) == pytest.approx(calibration_error(p, y), abs=1e-5)


def test_a_calibrated_forecast_has_almost_no_calibration_error():
    p, _ = random_predictions(1, n=50_000, sharpness=1.5)  # another seed than that of the labels
    y = torch.multinomial(p, 1).squeeze(1)
    assert calibration_error(p, y) < 0.01
    assert calibration_error((3.0 * p.log()).softmax(1), y) > 0.1  # overconfident


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 40), st.integers(1, 40), st.sampled_from([1e-9, 1.0, 1e6]), st.sampled_from([None, 0, 1]))
def test_auroc_equals_counting_pairs(seed, n, m, scale, decimals):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n + m, generator=generator)
    if decimals is not None:
        scores = scores.round(decimals=decimals)  # with ties
    scores *= scale
    inside, outside = scores[:n], scores[n:] + scale * 0.5
    assert ood_auroc(inside, outside) == pytest.approx(pair_counting(inside, outside), abs=1e-5)


def test_auroc_sees_small_differences_beside_large_scores():
    inside, outside = torch.tensor([0.0, 1e-9, 2e-9]), torch.tensor([3e-9, 4e-9, 100.0])
    assert ood_auroc(inside, outside) == 1.0
    assert ood_auroc(outside, inside) == 0.0
    assert ood_auroc(inside, inside) == pytest.approx(0.5)


def test_entropy_of_known_distributions():
    p = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]])
    assert torch.allclose(entropy(p), torch.tensor([0.0, math.log(4), math.log(2)]))


def network(inference="bayes"):
    torch.manual_seed(0)
    return nn.Sequential(
        rf.Linear(8, 6, config=rf.TTM(max_rank=2, inference=inference)), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)
    )


def stacked(model, x, samples):
    """All samples at once, (S, N, C) in memory."""
    with torch.no_grad(), rf.sampled(model):
        p = torch.stack([model(x).double().softmax(1) for _ in range(samples)])
    mean = p.mean(0)
    total = -(mean * mean.log()).sum(1)
    return mean, total, total + (p * p.log()).sum(2).mean(0)


def test_streaming_equals_the_stacked_computation():
    model, x = network(), 3.0 * torch.randn(20, 8)
    torch.manual_seed(5)
    found = predictive_statistics(model, x, samples=7, batch_size=20)
    torch.manual_seed(5)
    mean, total, information = stacked(model, x, samples=7)
    assert torch.allclose(found.probabilities, mean, atol=1e-12)
    assert torch.allclose(found.entropy, total, atol=1e-12)
    assert torch.allclose(found.mutual_information, information, atol=1e-12)
    assert (found.mutual_information > 0).all()
    assert (found.mutual_information < found.entropy).all()


def test_batches_are_put_together_in_order():
    model, x = network("map"), torch.randn(10, 8)
    whole = predictive_statistics(model, x, samples=2, batch_size=10)
    parts = predictive_statistics(model, x, samples=2, batch_size=3)
    assert torch.allclose(whole.probabilities, parts.probabilities, atol=1e-7)
    assert torch.allclose(whole.entropy, parts.entropy, atol=1e-6)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_point_posterior_leaves_no_mutual_information(samples):
    found = predictive_statistics(network("map"), torch.randn(1000, 8), samples=samples, batch_size=400)
    assert torch.allclose(found.mutual_information, torch.zeros(1000, dtype=torch.float64), atol=1e-12)
    assert (found.mutual_information >= 0).all()  # with three samples rounding alone would give negative ones


def test_no_samples_means_the_posterior_mean():
    model, x = network(), torch.randn(10, 8)
    found = predictive_statistics(model, x, samples=0, batch_size=4)
    expected = model.eval()(x).double().softmax(1)
    assert torch.allclose(found.probabilities, expected, atol=1e-6)
    assert not found.mutual_information.any()


def test_one_sample_at_a_time_is_in_memory_and_the_modes_come_back():
    """A model that knows how many of its outputs are alive: never more than the sums and two samples."""
    alive, most = weakref.WeakSet(), 0

    class Watched(nn.Module):
        def forward(self, x):
            nonlocal most
            output = torch.randn(len(x), 3)
            alive.add(output)
            most = max(most, len(alive))
            return output

    model = Watched()
    assert predictive_statistics(model, torch.zeros(10, 1), samples=50, batch_size=5).probabilities.shape == (10, 3)
    assert most <= 2
    assert model.training


def test_confident_logits_do_not_underflow():
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    found = predictive_statistics(model, torch.tensor([[0.0, 300.0]]), samples=0)
    assert nll_nats(found.probabilities, torch.tensor([0])) == pytest.approx(300.0)


@pytest.mark.parametrize("measure", [nll_nats, accuracy, brier_score, calibration_error, score])
@pytest.mark.parametrize(
    ("probabilities", "labels", "said"),
    [
        (torch.ones(3), torch.zeros(3), r"\(N, C\)"),
        (torch.full((3, 2), 0.5), torch.zeros(2), r"\(3, 2\) and \(2,\)"),
        (torch.full((0, 2), 0.5), torch.zeros(0), "at least 1"),
        (torch.full((3, 2), 5.0), torch.zeros(3), "softmax"),
        (torch.tensor([[1.5, -0.5]]), torch.zeros(1), "softmax"),
        (torch.full((1, 2), math.nan), torch.zeros(1), "softmax"),
        (torch.full((1, 2), 0.5), torch.tensor([2]), "from 0 to 1, got 2 to 2"),
        (torch.full((1, 2), 0.5), torch.tensor([-1]), "from 0 to 1, got -1"),
    ],
)
def test_wrong_arguments_are_named(measure, probabilities, labels, said):
    with pytest.raises(ValueError, match=said):
        measure(probabilities, labels)


@pytest.mark.parametrize("bad", [torch.zeros(0), torch.zeros(2, 2), torch.tensor([math.nan])])
def test_wrong_scores_are_named(bad):
    with pytest.raises(ValueError, match="inside must hold"):
        ood_auroc(bad, torch.zeros(3))
    with pytest.raises(ValueError, match="outside must hold"):
        ood_auroc(torch.zeros(3), bad)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"samples": -1}, "samples"), ({"samples": 1.5}, "samples"), ({"batch_size": 0}, "batch_size")],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        predictive_statistics(network(), torch.zeros(2, 8), **options)


def test_a_model_without_logits_is_refused():
    with pytest.raises(TypeError, match=r"logits of shape \(B, C\), got \(2, 1, 3\)"):
        predictive_statistics(nn.Unflatten(1, (1, 3)), torch.zeros(2, 3))
