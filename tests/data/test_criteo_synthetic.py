"""Made-up clicks: frequencies, planted tables and probabilities against what they should be."""

import math

import numpy as np
import pytest
import torch

from rankfold.data.criteo import KAGGLE_SIZES, Criteo
from rankfold.data.criteo_synthetic import (
    CHUNK,
    EXPONENTS,
    NUMBER_LAWS,
    PlantedClicks,
    Zipf,
    fit_exponents,
    fit_numbers,
)
from rankfold.experiments.bootstrap import weighted_auc

MODES = {2: (200, 220, 250), 20: (200, 200, 200)}


@pytest.fixture(scope="module")
def planted():
    return PlantedClicks(3, MODES)


@pytest.fixture(scope="module")
def rows(planted):
    return planted.rows(100_000)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.3, 2.5])
@pytest.mark.parametrize("size", [1, 3, 5000])
def test_ranks_follow_the_law(size, exponent):
    law = Zipf(size, exponent)

    def antiderivative(x):
        return math.log(x) if exponent == 1.0 else x ** (1 - exponent) / (1 - exponent)

    mass = np.array([antiderivative(k + 0.5) - antiderivative(k - 0.5) for k in range(1, size + 1)])
    mass /= mass.sum()
    # draws at evenly spaced numbers have the law's own frequencies
    ranks = law.draw((np.arange(200_000) + 0.5) / 200_000)
    np.testing.assert_allclose(np.bincount(ranks, minlength=size) / 200_000, mass, atol=1.1e-5)
    assert law.collision() == pytest.approx((mass**2).sum(), rel=1e-3)


def test_the_ends_of_the_interval_are_ranks():
    law = Zipf(10_131_227, 0.949)
    assert law.draw(np.array([0.0, np.nextafter(1.0, 0.0)])).tolist() == [0, 10_131_226]


def test_exponents_and_number_laws_are_found_again(planted, rows):
    tensors = [torch.from_numpy(x) for x in (rows.labels, rows.numbers, rows.categories)]
    data = Criteo(*tensors, KAGGLE_SIZES, (len(rows.labels),), 0, ())
    np.testing.assert_allclose(fit_exponents(data), EXPONENTS, atol=0.02)
    found, expected = np.array(fit_numbers(data)), np.array(NUMBER_LAWS)
    # a normal cut at zero adds zeros where its mean is not far above
    far = expected[:, 1] > 2 * expected[:, 2]
    np.testing.assert_allclose(found[far], expected[far], atol=0.06)


def test_every_category_is_a_row_of_its_table(rows):
    assert (rows.categories >= 0).all()
    assert (rows.categories < np.array(KAGGLE_SIZES)).all()
    assert len(np.unique(rows.categories[:, 2])) > 50_000
    # frequent rows are spread over the table
    values, counts = np.unique(rows.categories[:, 2], return_counts=True)
    frequent = values[np.argsort(-counts)[:100]]
    assert np.abs(np.histogram(frequent, bins=4, range=(0, KAGGLE_SIZES[2]))[0] - 25).max() < 12


def test_clicks_are_drawn_from_the_probabilities(planted, rows):
    assert rows.labels.mean() == pytest.approx(0.25, abs=0.01)
    for low in (0.0, 0.2, 0.4, 0.6):
        inside = (rows.probabilities >= low) & (rows.probabilities < low + 0.2)
        assert rows.labels[inside].mean() == pytest.approx(rows.probabilities[inside].mean(), abs=0.02)
    np.testing.assert_allclose(planted.probabilities(rows.numbers, rows.categories), rows.probabilities)
    assert weighted_auc(rows.probabilities, rows.labels, np.ones(len(rows.labels))) > 0.75


def test_rows_depend_on_the_seed_and_the_chunk_alone(planted, rows):
    again = list(PlantedClicks(3, MODES).chunks(CHUNK + 4_464))
    assert [len(chunk.labels) for chunk in again] == [CHUNK, 4_464]
    np.testing.assert_array_equal(again[1].categories, rows.categories[CHUNK : CHUNK + 4_464])
    np.testing.assert_array_equal(again[1].labels, rows.labels[CHUNK : CHUNK + 4_464])
    other = next(PlantedClicks(4, MODES).chunks(1000))
    assert (other.categories != rows.categories[:1000]).any()
    assert (next(planted.chunks(1000, first_chunk=9)).categories != rows.categories[:1000]).any()


def test_embeddings_have_the_planted_rank():
    sizes = [min(size, 60) for size in KAGGLE_SIZES]
    planted = PlantedClicks(0, {2: (3, 4, 5)}, sizes=sizes, rank=3)
    table = planted.embeddings(2, np.arange(60, dtype=np.int32)).reshape(3, 4, 5, 3)
    for axis in range(4):
        unfolded = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
        assert np.linalg.matrix_rank(unfolded) == 3
    assert np.linalg.matrix_rank(table.reshape(12, 15)) == 3  # the bond in the middle of a train


def test_nothing_of_the_size_of_a_table_is_built(planted):
    stored = [*planted._effects.values(), *(f for factors in planted._factors.values() for f in factors)]
    assert max(array.size for array in stored) <= 1000
