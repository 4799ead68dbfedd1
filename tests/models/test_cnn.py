"""The small convolutional network: any image size, and no example sees another."""

import pytest
import torch

import rankfold as rf
from rankfold.models.cnn import ImageCNN


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (9, 33)])
def test_images_of_any_size(size):
    assert ImageCNN(1, 4)(torch.randn(2, 1, *size)).shape == (2, 4)


def test_an_example_does_not_depend_on_the_others_of_its_batch():
    model, images = ImageCNN(3, 4), torch.randn(5, 3, 16, 16)
    torch.testing.assert_close(model(images)[:1], model(images[:1]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [rf.CP(50), rf.Tucker(8), rf.TT(20), rf.TTM(20)], ids=lambda c: type(c).__name__)
def test_every_format_finds_layers_to_factor(config):
    model = rf.tensorize_(ImageCNN(3, 10), config)
    assert rf.accounting(model).total.final_parameters < 0.6 * rf.accounting(model).total.dense_parameters
