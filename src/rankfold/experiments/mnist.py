"""The MNIST task of section 5.2: two fully connected layers, their foldings, and the data."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.data.errors import MissingData
from rankfold.data.mnist import MNIST, load_fashion_mnist_test, load_mnist
from rankfold.experiments.evaluation import classification, hard_example
from rankfold.experiments.spec import FormatName, Split
from rankfold.experiments.splitting import parts_of
from rankfold.experiments.task import Data, Examples, Folding, Task

NUM_PIXELS, NUM_HIDDEN, NUM_CLASSES = 784, 512, 10
# 5,000 of the 60,000 training images are held back in the validation split, always the same ones.
VALIDATION_SHARE = 1 / 12
_VALIDATION_SEED = 55_000
# Mean and standard deviation of MNIST's training pixels, of brightness 0 to 1.
_PIXEL_MEAN, _PIXEL_STD = 0.1307, 0.3081


_ALIKE = {"layer1": ((28, 28), (16, 32)), "layer2": ((32, 16), (10,))}
FOLDINGS: dict[FormatName, Folding] = {
    "cp": Folding(50, _ALIKE),
    "tucker": Folding(20, _ALIKE),
    "tt": Folding(20, _ALIKE),
    # printed [32, 16] x [2, 5] for layer 2; these modes give the printed count of 29,242
    "ttm": Folding(20, {"layer1": ((4, 7, 4, 7), (4, 4, 8, 4)), "layer2": ((16, 32), (2, 5))}),
}


def classifier() -> nn.Sequential:
    """The dense network, 784-512-10: 407,050 parameters."""
    return nn.Sequential(
        OrderedDict(
            layer1=nn.Linear(NUM_PIXELS, NUM_HIDDEN),
            relu=nn.ReLU(),
            layer2=nn.Linear(NUM_HIDDEN, NUM_CLASSES),
        )
    )


# Data -------------------------------------------------------------------------------------------------


def load_data(split: Split, device: torch.device, folder: Path | None = None, verify: bool = True) -> Data:
    """MNIST on the device, and Fashion-MNIST if it is there."""
    images = load_mnist(folder, verify=verify)
    try:
        unfamiliar = (_pixels(load_fashion_mnist_test(folder, verify=verify)[0], device),)
    except MissingData:
        unfamiliar = None
    train, evaluation = parts_of(images, split, share=VALIDATION_SHARE, seed=_VALIDATION_SEED)
    return Data(_examples(*train, device), _examples(*evaluation, device), unfamiliar)


def _examples(images: Tensor, labels: Tensor, device: torch.device) -> Examples:
    return Examples((_pixels(images, device),), labels.to(device))


def _pixels(images: Tensor, device: torch.device) -> Tensor:
    """Images (N, 28, 28), uint8, to (N, 784), standardised."""
    brightness = images.to(device).flatten(1).float() / 255.0
    return (brightness - _PIXEL_MEAN) / _PIXEL_STD


def evaluate(model: nn.Module, data: Data, seed: int) -> dict[str, Any]:
    """Scores, and the digit about which samples of the weights disagree most, with its picture."""
    metrics = classification(model, data, seed)
    if "monte_carlo" in metrics:
        hard = hard_example(model, data.evaluation)
        metrics["hard_image"] = {**hard, "pixels": brightness(data.evaluation.inputs[0][hard["index"]])}
    return metrics


def brightness(pixels: Tensor) -> list[int]:
    """The bytes 0 to 255 of one standardised image (784,)."""
    values: list[int] = (255.0 * (pixels * _PIXEL_STD + _PIXEL_MEAN)).round().int().tolist()
    return values


TASK = Task(classifier, FOLDINGS, load_data, evaluate=evaluate, find=MNIST.find)
