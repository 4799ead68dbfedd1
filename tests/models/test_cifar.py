"""The networks for CIFAR-10: the published counts, and which layers are tensorized."""

import pytest
import torch

from rankfold.models.cifar import ResNet18, conv_network


def numbers(model):
    """Parameters, and all numbers as the paper counts them: running statistics included."""
    parameters = sum(p.numel() for p in model.parameters())
    return parameters, parameters + sum(b.numel() for b in model.buffers() if b.is_floating_point())


def test_the_conv_network_has_as_many_numbers_as_the_papers():
    parameters, all_numbers = numbers(conv_network())
    assert all_numbers == 13_942_602
    assert parameters == 13_942_602 - 2 * (64 + 64 + 4 * 128 + 1536 + 512)


def test_resnet18_has_its_known_size():
    assert numbers(ResNet18())[0] == 11_173_962


@pytest.mark.parametrize("make", [conv_network, ResNet18])
def test_images_become_logits_and_every_parameter_learns(make):
    torch.manual_seed(0)
    model = make()
    logits = model(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
