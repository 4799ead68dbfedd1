"""The synthetic study of section 5.1: can the rank of a planted model be found again?

One tensorized layer of rank 5 labels the MNIST images; a layer of the same format with maximum rank 10
learns from them.

Labels are drawn from the planted softmax, not its largest entry. The model that learns is then the very
one that made the labels, and its likelihood has a maximum at the planted weights. Largest entries alone
would say nothing of the weights' size: the likelihood would grow with it for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from rankfold.data.errors import MissingData
from rankfold.data.mnist import MNIST
from rankfold.experiments.mnist import NUM_CLASSES, NUM_PIXELS, load_data
from rankfold.experiments.spec import FormatName, Spec
from rankfold.experiments.task import CONFIGS, Data, Examples, Folding, Planted, Task

TRUE_RANK, MAX_RANK = 5, 10
# Standard deviation of the planted logits. The likeliest label is then drawn about nine times in ten.
LOGIT_STD = 20.0
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


def find_images(folder: Path | None) -> Path:
    """The folder of MNIST, or why it is needed."""
    try:
        return MNIST.find(folder)
    except MissingData as error:
        raise MissingData(f"the synthetic study makes labels of its own for MNIST's images: {error}") from error


def plant(data: Data, spec: Spec) -> Data:
    """The images, centred, with labels of a planted model, which the format and the seed of ``spec`` determine.

    All is drawn and computed on the CPU, so the labels do not depend on the device.
    """
    if spec.format is None or spec.method not in ("ard", "fr"):
        raise ValueError(f"method must be 'ard' or 'fr' in the synthetic study, got {spec.method!r}")
    generator = Generator().manual_seed(_PLANTING_SEED + spec.seed)
    images, evaluation_images = centered(data.train.inputs[0].cpu(), data.evaluation.inputs[0].cpu())
    ranks, matrix = planted_matrix(spec.format, generator)
    matrix = matrix * _scales(images @ matrix, spec.format)
    logits, evaluation_logits = images @ matrix, evaluation_images @ matrix
    labels, evaluation_labels = _draw(logits, generator), _draw(evaluation_logits, generator)
    planted = Planted(
        ranks={_LAYER: list(ranks)},
        accuracy=float((evaluation_logits.argmax(1) == evaluation_labels).double().mean()),
        label_shares=(labels.bincount(minlength=NUM_CLASSES) / len(labels)).tolist(),
    )
    device = data.train.device
    train = Examples((images.to(device),), labels.to(device))
    evaluation = Examples((evaluation_images.to(device),), evaluation_labels.to(device))
    return Data(train, evaluation, planted=planted)


def planted_matrix(format: FormatName, generator: Generator) -> tuple[tuple[int, ...], Tensor]:
    """The ranks and the matrix (784, 10) of factors with standard normal entries."""
    in_dims, out_dims = FOLDINGS[format].layers[_LAYER]
    planted = CONFIGS[format](TRUE_RANK, in_dims=in_dims, out_dims=out_dims).build(NUM_PIXELS, NUM_CLASSES)
    factors = [torch.randn(shape, generator=generator) for shape in planted.factor_shapes]
    return planted.ranks, planted.reconstruct(factors)


def centered(train: Tensor, evaluation: Tensor) -> tuple[Tensor, Tensor]:
    """Both less the mean training image.

    The planted logits then have mean 0 without a bias, or few classes would take all labels. A planted bias
    would do that too, but it would lie far outside the bias's own prior.
    """
    mean = train.mean(0)
    return train - mean, evaluation - mean


def _scales(logits: Tensor, format: FormatName) -> Tensor:
    """What to multiply the columns of the matrix with, (10,), for logits of the wanted spread.

    Where the outputs are one mode, no rank changes if each has its own scale, and classes get more equal
    shares of the labels. Otherwise there is one scale for all.
    """
    _, out_dims = FOLDINGS[format].layers[_LAYER]
    spread = logits.std(0) if len(out_dims) == 1 else logits.square().mean().sqrt().expand(NUM_CLASSES)
    return LOGIT_STD / spread


def _draw(logits: Tensor, generator: Generator) -> Tensor:
    """One label (N,) for every row of logits."""
    return torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


TASK = Task(classifier, FOLDINGS, load_data, prepare=plant, find=find_images)
