"""Losses, scores and probabilities of the three kinds of output: class logits, the logit of a click, a quantity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfold.experiments.clicks import click_loss
from rankfold.experiments.spec import Spec
from rankfold.experiments.task import Examples, num_right
from rankfold.experiments.training import Training
from rankfold.jobs.hiding import hiding, is_unknown, with_one_hidden
from rankfold.jobs.preparation import Preparation
from rankfold.jobs.targets import Classes, Quantity
from rankfold.layers.base import posterior_mean
from rankfold.models.mlp import TableRegressor
from rankfold.predictive import predict

_BATCH = 1000
# The noise of unknown values takes a pass over so many examples for each column.
_ENOUGH_FOR_NOISE = 20_000
Loss = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True)
class Objective:
    """What the outputs of a network mean.

    Args:
        target: classes, or a quantity.
        is_click: whether the output is one logit, that of the second class.
        unknown_rows: of the categories, as a preparation has them.
    """

    target: Classes | Quantity
    is_click: bool
    unknown_rows: tuple[int, ...] = ()

    @classmethod
    def of(cls, preparation: Preparation) -> Objective:
        return cls(preparation.target, preparation.is_click, preparation.unknown_rows)

    @property
    def nats_of_unit(self) -> float:
        """What is added to the NLL of standardised numbers to get that of the numbers in their own unit: log σ."""
        return math.log(self.target.std) if isinstance(self.target, Quantity) else 0.0

    def loss(self, model: nn.Module) -> Loss:
        """Mean NLL in nats of outputs, given labels; a quantity is standardised, and the model learns its noise."""
        if isinstance(model, TableRegressor):
            return model.likelihood
        return click_loss if self.is_click else F.cross_entropy

    def count_right(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """How many outputs agree with their labels; none of a quantity ever does."""
        return outputs.new_zeros(()) if isinstance(self.target, Quantity) else num_right(outputs, labels)

    def training(self, model: nn.Module, examples: Examples, spec: Spec, stage: str, folder: Path | None) -> Training:
        """The training of a network towards this; ``folder`` is for checkpoints, if there are to be any."""
        return Training(
            model,
            examples,
            spec,
            epochs=spec.epochs,
            stage=stage,
            folder=folder,
            loss=self.loss(model),
            augment=hiding(self.unknown_rows, examples.device),
            count_right=self.count_right,
        )

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Of all classes, (B, C), in float64."""
        if self.is_click:
            clicked = outputs.double().sigmoid()
            return torch.stack([1.0 - clicked, clicked], 1)
        return outputs.double().softmax(1)

    def predict(self, model: nn.Module, inputs: tuple[Tensor, ...], samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """Mean and spread over the posterior, (N, C) or (N,), on the CPU; every batch sees the same samples."""
        transform = Tensor.double if isinstance(self.target, Quantity) else self.probabilities
        parts = [
            [x.cpu() for x in predict(model, *batch, samples=samples, transform=transform, seed=seed)]
            for batch in zip(*(x.split(_BATCH) for x in inputs), strict=True)
        ]
        mean, std = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, std

    def settle(self, model: nn.Module, examples: Examples, seed: int) -> None:
        """After training: the noise of a quantity is what the posterior mean misses of the training examples.

        So is the noise that is added where a category is not known, with its values hidden.
        """
        if isinstance(model, TableRegressor):
            known = self._known(examples)
            mean, _ = self.predict(model, known.inputs, 0, seed)
            model.likelihood.fit_(mean, known.labels.to(mean))
            if model.unknown_variance is not None:
                some = _spread(known, _ENOUGH_FOR_NOISE)
                added = [self._added_variance(model, some, column, seed) for column in range(len(self.unknown_rows))]
                model.unknown_variance.copy_(torch.tensor(added))

    def _known(self, examples: Examples) -> Examples:
        """Those of which everything is known; all of them if that is less than half."""
        if not self.unknown_rows:
            return examples
        known = ~is_unknown(examples.inputs, self.unknown_rows).any(1)
        if 2 * int(known.sum()) < len(examples):
            return examples
        return Examples(tuple(x[known] for x in examples.inputs), examples.labels[known])

    def _added_variance(self, model: TableRegressor, examples: Examples, column: int, seed: int) -> float:
        """By how much more the posterior mean misses, in squares, with no value of a column known."""
        inputs = with_one_hidden(examples.inputs, column, self.unknown_rows[column])
        mean, _ = self.predict(model, inputs, 0, seed)
        missed = float((examples.labels.to(mean) - mean).square().mean())
        return max(0.0, missed - float(model.likelihood.std.detach()) ** 2)

    @torch.no_grad()
    def quick_scores(self, model: nn.Module, examples: Examples) -> dict[str, float]:
        """NLL in nats and accuracy, or root mean squared error, of the posterior mean; a quantity in its own unit."""
        loss, nll, right, squares = self.loss(model), 0.0, 0.0, 0.0
        with posterior_mean(model):
            for batch in torch.arange(len(examples), device=examples.device).split(_BATCH):
                outputs, labels = model(*examples.batch(batch)), examples.labels[batch]
                nll += float(loss(outputs, labels)) * len(batch)
                if isinstance(self.target, Quantity):
                    squares += float((outputs - labels).square().sum())
                else:
                    right += float(num_right(outputs, labels))
        scores = {"evaluation_nll": nll / len(examples) + self.nats_of_unit}
        if isinstance(self.target, Quantity):
            return {**scores, "evaluation_rmse": self.target.std * (squares / len(examples)) ** 0.5}
        return {**scores, "evaluation_accuracy": right / len(examples)}


def _spread(examples: Examples, most: int) -> Examples:
    """Every k-th example, so that there are at most so many."""
    step = -(-len(examples) // most)
    return Examples(tuple(x[::step] for x in examples.inputs), examples.labels[::step])
