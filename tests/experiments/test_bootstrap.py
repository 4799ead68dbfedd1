"""AUC and its paired bootstrap against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import binary_auroc

from rankfold.experiments.bootstrap import Ranking, paired_bootstrap


def auc_of_pairs(scores, labels):
    """From the definition: how often a click scores above another example, ties half."""
    clicks = [s for s, y in zip(scores, labels, strict=True) if y]
    others = [s for s, y in zip(scores, labels, strict=True) if not y]
    return np.mean([1.0 if c > o else 0.5 if c == o else 0.0 for c in clicks for o in others])


EXAMPLES = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=2, max_size=12).filter(
    lambda rows: {y for _, y, w in rows if w} == {True, False}
)


@given(EXAMPLES)
@settings(deadline=None, max_examples=100)
def test_weights_count_as_repetitions(rows):
    scores, labels, weights = zip(*rows, strict=True)
    repeated = [(s, y) for s, y, w in rows for _ in range(w)]
    expected = auc_of_pairs(*zip(*repeated, strict=True))
    ranking = Ranking(np.array(scores, float), np.array(labels))
    assert ranking.auc(np.array(weights, float)) == pytest.approx(expected)


def test_auc_is_that_of_torchmetrics():
    random = np.random.default_rng(0)
    scores, labels = random.standard_normal(500), random.random(500) < 0.3
    expected = binary_auroc(torch.tensor(scores), torch.tensor(labels).long())
    assert Ranking(scores, labels).auc(np.ones(500)) == pytest.approx(float(expected), abs=1e-6)


def test_the_bootstrap_is_resampling():
    random = np.random.default_rng(1)
    labels = random.random(60) < 0.4
    a, b = labels + random.standard_normal((2, 60)), labels + 1.5 * random.standard_normal((3, 60))
    found = paired_bootstrap(a, b, labels, draws=200, seed=7)
    resample = np.random.default_rng(7)
    differences = []
    for _ in range(200):
        index = resample.integers(60, size=60)
        means = [np.mean([auc_of_pairs(row[index], labels[index]) for row in model]) for model in (a, b)]
        differences.append(means[0] - means[1])
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(differences, [0.025, 0.975])))
    whole = [np.mean([auc_of_pairs(row, labels) for row in model]) for model in (a, b)]
    assert found.difference == pytest.approx(whole[0] - whole[1])


def test_equal_models_do_not_differ_and_better_ones_do():
    random = np.random.default_rng(2)
    labels = random.random(2000) < 0.3
    good = labels + random.standard_normal(2000)
    worse = good + 2.0 * random.standard_normal(2000)
    same = paired_bootstrap(good, good, labels, draws=50)
    assert (same.difference, same.low, same.high) == (0.0, 0.0, 0.0)
    better = paired_bootstrap(good, worse, labels, draws=100)
    assert 0 < better.low < better.difference < better.high


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ([0, 0, 0], {}, "labels must have both clicks and others, got 0 clicks of 3"),
        ([0, 1, 0, 1], {}, "one entry for each example, got 3 scores and 4 labels"),
        ([0, 1, 0], {"draws": 0}, "draws must be a positive integer, got 0"),
    ],
)
def test_what_cannot_be_compared_is_named(labels, options, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], labels, **options)
