"""Statistics of batch norms for the weights that a model is evaluated with, on training examples as they are."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from rankfold.batch_norm import norms_of, update_bn
from rankfold.experiments.task import Data

BATCH_SIZE = 500
# For the posterior mean, and for each of the draws.
NUM_EXAMPLES, NUM_EXAMPLES_OF_A_DRAW = 10_000, 2_000


def settle(model: nn.Module, data: Data) -> None:
    """Estimate all running statistics anew, under the posterior mean."""
    update_bn(model, _batches(data, NUM_EXAMPLES))


def batches_of_draws(model: nn.Module, data: Data) -> list[tuple[Tensor, ...]] | None:
    """What every draw of the weights gets its statistics from; ``None`` for a model without batch norm."""
    return list(_batches(data, NUM_EXAMPLES_OF_A_DRAW)) if norms_of(model) else None


def _batches(data: Data, count: int) -> Iterator[tuple[Tensor, ...]]:
    for first in range(0, min(count, len(data.train)), BATCH_SIZE):
        yield tuple(inputs[first : first + BATCH_SIZE] for inputs in data.train.inputs)
