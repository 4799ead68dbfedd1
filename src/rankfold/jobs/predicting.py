"""Predictions of a finished run for new data, from its folder alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfold.architecture import Architecture, rebuild
from rankfold.data.errors import DamagedData, MissingData
from rankfold.jobs.finished import check_finished
from rankfold.jobs.hiding import is_unknown
from rankfold.jobs.job import MODEL_FOLDER, read_preparation
from rankfold.jobs.objective import Objective
from rankfold.jobs.preparation import Encoded, Preparation
from rankfold.jobs.scores import class_scores, errors
from rankfold.jobs.targets import Classes, Quantity
from rankfold.models.mlp import TableRegressor

_DIGITS = 6


@final
@dataclass(frozen=True)
class FinishedRun:
    """What predicting needs of a run."""

    preparation: Preparation
    model: nn.Module

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> FinishedRun:
        check_finished(folder)
        preparation = read_preparation(folder)
        architecture = Architecture.read(folder / MODEL_FOLDER)
        if architecture is None:
            raise MissingData(f"{folder / MODEL_FOLDER} does not say which network it holds; train again")
        dense = _dense(architecture, preparation)
        return cls(preparation, rebuild(dense, folder / MODEL_FOLDER).to(device).eval())

    @property
    def objective(self) -> Objective:
        return Objective.of(self.preparation)

    def predict(self, data: Path, samples: int = 32, seed: int = 0) -> Predictions:
        """Read new data of the same form, and predict."""
        return self.predict_examples(self.preparation.read(data), samples, seed)

    def predict_examples(self, encoded: Encoded, samples: int, seed: int) -> Predictions:
        """Predict for data that were read."""
        device = next(self.model.parameters()).device
        inputs = tuple(x.to(device) for x in encoded.inputs)
        mean, std = self.objective.predict(self.model, inputs, samples, seed)
        _check_finite(mean, encoded, self.preparation)
        spread = std if samples else None
        noise = None
        if isinstance(self.model, TableRegressor):
            noise = self.model.noise_std(*inputs).detach().double().cpu()
        return Predictions(self.preparation, encoded, mean, spread, noise)


@final
@dataclass(frozen=True)
class Predictions:
    """What a model says about examples.

    Attributes:
        mean, std: over the posterior, of class probabilities (N, C), or of a standardised quantity (N,); no std where
            the mean of the weights has answered.
        noise: of a standardised quantity, whatever the weights are, (N,); classes have none.
    """

    preparation: Preparation
    examples: Encoded
    mean: Tensor
    std: Tensor | None
    noise: Tensor | None

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def notes(self) -> list[str]:
        """What of the data training did not know."""
        return list(self.preparation.notes(self.examples))

    @property
    def header(self) -> list[str]:
        first, target = self.preparation.name_of_examples, self.preparation.target
        last = ("unknown",) if self.preparation.unknown_rows else ()
        if isinstance(target, Quantity):
            return [first, "mean", "std", *(() if self.std is None else ("std_of_weights",)), *last]
        kinds = ("probability",) if self.std is None else ("probability", "std")
        return [first, "prediction", *kinds, *(f"{kind}_{name}" for name in target.names for kind in kinds), *last]

    def rows(self) -> Iterator[Sequence[Any]]:
        """One for each example, as the header says; a quantity is in its own unit."""
        target, unknown_rows = self.preparation.target, self.preparation.unknown_rows
        rows = self._quantities(target) if isinstance(target, Quantity) else self._classes(target)
        if not unknown_rows:
            return rows
        counts = is_unknown(self.examples.inputs, unknown_rows).sum(1).tolist()
        return ([*row, count] for row, count in zip(rows, counts, strict=True))

    def scores(self) -> dict[str, Any] | None:
        """Against the labels, where the data have some."""
        labels, target = self.examples.labels, self.preparation.target
        if labels is None:
            return None
        if isinstance(target, Quantity):
            return errors(self.mean, labels.double(), target)
        return class_scores(self.mean, labels.long(), self.preparation.is_click)

    def to_csv(self) -> str:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows())
        return text.getvalue()

    def _quantities(self, target: Quantity) -> Iterator[Sequence[Any]]:
        # Var y = Var f + σ²
        assert self.noise is not None
        total = self.noise if self.std is None else (self.std.square() + self.noise.square()).sqrt()
        spreads = [total] if self.std is None else [total, self.std]
        values = torch.stack([target.mean + target.std * self.mean, *(target.std * spread for spread in spreads)], 1)
        for name, row in zip(self.examples.names, values.tolist(), strict=True):
            yield [name, *map(_short, row)]

    def _classes(self, target: Classes) -> Iterator[Sequence[Any]]:
        values = torch.stack([self.mean] if self.std is None else [self.mean, self.std], 2)  # (N, C, 1 or 2)
        answers = self.mean.argmax(1).tolist()
        for name, answer, row in zip(self.examples.names, answers, values.tolist(), strict=True):
            yield [name, target.names[answer], *map(_short, (x for of_class in (row[answer], *row) for x in of_class))]


def _dense(architecture: Architecture, preparation: Preparation) -> nn.Module:
    """The network before it is loaded; one with large tables only on the meta device."""
    with torch.device("meta" if preparation.is_click else "cpu"):
        return architecture.make()


def _check_finite(mean: Tensor, encoded: Encoded, preparation: Preparation) -> None:
    """Refuse inputs for which the network overflows."""
    bad = (~mean.isfinite().view(len(mean), -1).all(1)).nonzero()
    if len(bad):
        where = f"{preparation.name_of_examples} {encoded.names[int(bad[0])]}"
        raise DamagedData(
            f"the prediction for {where} is not finite: its numbers are too far from those in training; correct them"
        )


def _short(value: float) -> str:
    return f"{value:.{_DIGITS}g}"
