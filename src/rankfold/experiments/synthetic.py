"""The synthetic study of section 5.1: can the rank of a planted model be found again?

One tensorized layer of rank 5 labels the MNIST images; a layer of the same format with maximum rank 10
learns from them.

Labels are drawn from the planted softmax, not its largest entry. The model that learns is then the very
one that made the labels, and its likelihood has a maximum at the planted weights. Largest entries alone
would say nothing of the weights' size: the likelihood would grow with it for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import torch
from torch import Generator, Tensor, nn

from rankfold.experiments.mnist import NUM_CLASSES, NUM_PIXELS
from rankfold.experiments.spec import FormatName, Spec
from rankfold.experiments.task import CONFIGS, Data, Examples, Folding, Planted, Task

TRUE_RANK, MAX_RANK = 5, 10
# Standard deviation of the planted logits. The likeliest label is then drawn about nine times in ten.
LOGIT_STD = 20.0
_BALANCING_STEPS = 50
# Added to a run's seed, so that planted factors are not the ones that training starts from.
_PLANTING_SEED = 5_000_000

_LAYER = "layer"
_ALIKE = {_LAYER: ((28, 28), (10,))}
FOLDINGS: dict[FormatName, Folding] = {
    "cp": Folding(MAX_RANK, _ALIKE),
    "tucker": Folding(MAX_RANK, _ALIKE),
    "tt": Folding(MAX_RANK, _ALIKE),
    # printed [4, 7, 4] x [7, 2, 5], which is a matrix of 112 x 70; these modes keep 784 x 10
    "ttm": Folding(MAX_RANK, {_LAYER: ((14, 8, 7), (1, 2, 5))}),
}


def classifier() -> nn.Sequential:
    """One dense layer, 784-10: logistic regression."""
    return nn.Sequential(OrderedDict({_LAYER: nn.Linear(NUM_PIXELS, NUM_CLASSES)}))


def plant(data: Data, spec: Spec) -> Data:
    """The images with labels of a planted model, which the format and the seed of ``spec`` determine.

    All is drawn and computed on the CPU, so the labels do not depend on the device.
    """
    if spec.format is None or spec.method not in ("ard", "fr"):
        raise ValueError(f"method must be 'ard' or 'fr' in the synthetic study, got {spec.method!r}")
    generator = Generator().manual_seed(_PLANTING_SEED + spec.seed)
    images = data.train.images.cpu(), data.evaluation.images.cpu()
    ranks, matrix = planted_matrix(spec.format, generator)
    train_logits, evaluation_logits = _logits(images, matrix)
    labels, evaluation_labels = _draw(train_logits, generator), _draw(evaluation_logits, generator)
    planted = Planted(
        ranks={_LAYER: list(ranks)},
        accuracy=float((evaluation_logits.argmax(1) == evaluation_labels).double().mean()),
        label_shares=(labels.bincount(minlength=NUM_CLASSES) / len(labels)).tolist(),
    )
    train, evaluation = _relabelled(data.train, labels), _relabelled(data.evaluation, evaluation_labels)
    return replace(data, train=train, evaluation=evaluation, unfamiliar=None, planted=planted)


def planted_matrix(format: FormatName, generator: Generator) -> tuple[tuple[int, ...], Tensor]:
    """The ranks and the matrix (784, 10) of factors with standard normal entries."""
    in_dims, out_dims = FOLDINGS[format].layers[_LAYER]
    planted = CONFIGS[format](TRUE_RANK, in_dims=in_dims, out_dims=out_dims).build(NUM_PIXELS, NUM_CLASSES)
    factors = [torch.randn(shape, generator=generator) for shape in planted.factor_shapes]
    return planted.ranks, planted.reconstruct(factors)


def _logits(images: tuple[Tensor, Tensor], matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Of training and evaluation images, (N, 10) each: ``s x A + b``; neither s nor b changes a rank."""
    train, evaluation = (pixels @ matrix for pixels in images)
    scale = LOGIT_STD / (train - train.mean(0)).std()
    bias = _balancing_bias(scale * train)
    return scale * train + bias, scale * evaluation + bias


def _balancing_bias(logits: Tensor) -> Tensor:
    """The bias (10,) that gives the classes about equal shares of the labels; else few would take most."""
    bias = -logits.mean(0)
    for _ in range(_BALANCING_STEPS):
        # b ← b − log(10 · share): a class with more than a tenth of the labels loses
        bias = bias - (NUM_CLASSES * (logits + bias).softmax(1).mean(0)).log()
    return bias


def _draw(logits: Tensor, generator: Generator) -> Tensor:
    """One label (N,) for every row of logits."""
    return torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


def _relabelled(examples: Examples, labels: Tensor) -> Examples:
    return replace(examples, labels=labels.to(examples.labels))


TASK = Task(classifier, FOLDINGS, plant)
