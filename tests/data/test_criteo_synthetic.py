"""Made-up clicks: frequencies, planted tables and probabilities against what they should be."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from rankfold.data.criteo import KAGGLE_SIZES, Criteo
from rankfold.data.criteo_laws import EXPONENTS, NUMBER_LAWS, fit_exponents, fit_numbers
from rankfold.data.criteo_synthetic import CHUNK, PlantedClicks

MODES = {2: (200, 220, 250), 20: (200, 200, 200)}


@pytest.fixture(scope="module")
def planted():
    return PlantedClicks(3, MODES)


@pytest.fixture(scope="module")
def rows(planted):
    return planted.rows(100_000)


def test_exponents_and_number_laws_are_found_again(planted, rows):
    data = Criteo(rows.labels, rows.numbers, rows.categories, KAGGLE_SIZES, (len(rows.labels),), 0, ())
    np.testing.assert_allclose(fit_exponents(data), EXPONENTS, atol=0.02)
    found, expected = np.array(fit_numbers(data)), np.array(NUMBER_LAWS)
    # a normal cut at zero adds zeros where its mean is not far above
    far = expected[:, 1] > 2 * expected[:, 2]
    np.testing.assert_allclose(found[far], expected[far], atol=0.06)


def test_every_category_is_a_row_of_its_table(rows):
    assert (rows.categories >= 0).all()
    assert (rows.categories < torch.tensor(KAGGLE_SIZES)).all()
    assert len(np.unique(rows.categories[:, 2])) > 50_000
    # frequent rows are spread over the table
    values, counts = np.unique(rows.categories[:, 2], return_counts=True)
    frequent = values[np.argsort(-counts)[:100]]
    assert np.abs(np.histogram(frequent, bins=4, range=(0, KAGGLE_SIZES[2]))[0] - 25).max() < 12


def test_clicks_are_drawn_from_the_probabilities(planted, rows):
    assert float(rows.labels.double().mean()) == pytest.approx(0.25, abs=0.01)
    for low in (0.0, 0.2, 0.4, 0.6):
        inside = (rows.probabilities >= low) & (rows.probabilities < low + 0.2)
        expected = float(rows.probabilities[inside].mean())
        assert float(rows.labels[inside].double().mean()) == pytest.approx(expected, abs=0.02)
    torch.testing.assert_close(planted.probabilities(rows.numbers, rows.categories), rows.probabilities)
    assert binary_auroc(rows.probabilities, rows.labels.long()) > 0.75


def test_rows_depend_on_the_seed_and_the_chunk_alone(planted, rows):
    again = list(PlantedClicks(3, MODES).chunks(CHUNK + 4_464))
    assert [len(chunk.labels) for chunk in again] == [CHUNK, 4_464]
    assert torch.equal(again[1].categories, rows.categories[CHUNK : CHUNK + 4_464])
    assert torch.equal(again[1].labels, rows.labels[CHUNK : CHUNK + 4_464])
    other = next(PlantedClicks(4, MODES).chunks(1000))
    assert (other.categories != rows.categories[:1000]).any()
    assert (next(planted.chunks(1000, first_chunk=9)).categories != rows.categories[:1000]).any()


def test_torch_has_as_many_threads_as_before(planted):
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        planted.rows(10)
        with ThreadPoolExecutor() as pool:
            assert [torch.get_num_threads(), pool.submit(torch.get_num_threads).result()] == [3, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("modes", "message"),
    [
        ({26: (2, 2, 2)}, "by the number of a category, 0 to 25, got 26"),
        ({2: (200, 220, 2)}, r"\(200, 220, 2\) of category 2 have fewer entries than its 10,131,227 rows"),
    ],
)
def test_modes_that_do_not_fit_are_refused(modes, message):
    with pytest.raises(ValueError, match=message):
        PlantedClicks(0, modes)


def test_embeddings_have_the_planted_rank():
    sizes = [min(size, 60) for size in KAGGLE_SIZES]
    planted = PlantedClicks(0, {2: (3, 4, 5)}, sizes=sizes, rank=3)
    table = planted.embeddings(2, torch.arange(60, dtype=torch.int32)).numpy().reshape(3, 4, 5, 3)
    a, b, c = (factor.numpy() for factor in planted._factors[2])
    np.testing.assert_allclose(table, np.einsum("ir,jr,kr->ijkr", a, b, c))
    for axis in range(4):
        unfolded = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
        assert np.linalg.matrix_rank(unfolded) == 3
    assert np.linalg.matrix_rank(table.reshape(12, 15)) == 3  # the bond in the middle of a train


def test_nothing_of_the_size_of_a_table_is_built(planted):
    stored = [*planted._effects.values(), *(f for factors in planted._factors.values() for f in factors)]
    assert max(x.numel() for x in stored) <= 1000
