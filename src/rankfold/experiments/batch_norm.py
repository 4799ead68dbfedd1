"""Batch norm and a posterior: running statistics that belong to the weights a model is evaluated with.

In training they average over sampled weights, over augmented images and over ranks that are gone by now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankfold.experiments.task import Data
from rankfold.layers.base import posterior_mean

NUM_IMAGES, BATCH_SIZE = 10_000, 500


@torch.no_grad()
def settle(model: nn.Module, data: Data) -> None:
    """Estimate all running statistics anew: under the posterior mean, on training images as they are.

    Other modules are in eval mode meanwhile. A model without batch norm is left alone.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if norms:
        with posterior_mean(model), _averaging(norms):
            for first in range(0, min(NUM_IMAGES, len(data.train)), BATCH_SIZE):
                model(*(inputs[first : first + BATCH_SIZE] for inputs in data.train.inputs))


@contextmanager
def _averaging(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Within this context batch norms start anew and take the plain average over all batches."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a plain average
        norm.train()
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
