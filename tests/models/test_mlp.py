"""Fully connected networks for tables and images, against their layers applied by hand."""

import torch

from rankfold.models.mlp import ImageMLP, TableClassifier, TableRegressor


def test_a_table_is_its_numbers_beside_the_vectors_of_its_categories():
    model = TableClassifier(2, (5, 100), 3)
    numbers, categories = torch.randn(4, 2), torch.tensor([[1, 99], [0, 3], [4, 0], [2, 2]])
    first, second = model.tables
    assert (first.embedding_dim, second.embedding_dim) == (2, 10)
    row = torch.cat([numbers, first.weight[categories[:, 0]], second.weight[categories[:, 1]]], 1)
    torch.testing.assert_close(model(numbers, categories), model.layers(row))


def test_what_is_not_known_says_nothing_and_stays_so():
    model = TableClassifier(1, (6,), 2)
    numbers, unknown = torch.randn(3, 1), torch.zeros(3, 1, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(numbers, unknown).sum().backward()
        optimizer.step()
    assert torch.equal(model.tables[0].weight[0], torch.zeros(2))


def test_without_numbers_the_categories_are_the_only_input():
    model = TableClassifier(0, (6, 7), 2)
    assert model(torch.zeros(3, 2, dtype=torch.long)).shape == (3, 2)


def test_a_regressor_gives_the_mean_and_its_loss_the_noise():
    model = TableRegressor(2, ())
    x, y = torch.randn(5, 2), torch.randn(5)
    expected = -torch.distributions.Normal(model.mean(x)[:, 0], model.likelihood.std).log_prob(y).mean()
    torch.testing.assert_close(model.likelihood(model(x), y), expected)


def test_an_image_is_a_row_of_pixels():
    model = ImageMLP(3, 4, 5, 2)
    images = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(model(images), model.layers(images.reshape(2, 60)))
