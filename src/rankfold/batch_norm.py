"""Batch norm and a posterior: running statistics that belong to the weights a model is evaluated with.

In training every draw of the weights is normalised by its own statistics, those of the batch. The running ones average
over draws, over augmented inputs and over ranks that are gone by now: neither the posterior mean nor a single draw has
such statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankfold.health import check_finite
from rankfold.layers.base import posterior_mean
from rankfold.wrapping import check_model

# What a model is called with: one tensor, or all of its arguments.
Batch = Tensor | Sequence[Tensor]


@torch.no_grad()
def update_bn(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Estimate all running statistics anew, under the posterior mean.

    The twin of ``torch.optim.swa_utils.update_bn``, which would draw weights. Call it when training is over, before
    the model is evaluated, saved or exported. All other modules are in eval mode meanwhile. A model without
    batch norm is left alone.

    Args:
        batches: inputs, such as those of training without augmentation: a tensor, or a tuple of all that the model
            takes, per batch; of a loader that gives labels too, ``(x for x, y in loader)``. Ten thousand examples are
            plenty.

    If a batch holds NaN or infinity, or the model fails on it, the statistics are what they were.

    >>> import rankfold as rf
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6))
    >>> model = rf.tensorize_(model, rf.CP(max_rank=2))
    >>> rf.update_bn(model, torch.randn(4, 100, 8))
    """
    norms = norms_of(model)
    if not norms:
        return
    check_finite(model, "update the statistics of")
    kept = _statistics(norms)
    try:
        with posterior_mean(model), collecting(norms):
            for batch in checked(batches):
                called_with(model, batch)
    except BaseException:
        _put_back(norms, kept)
        raise


def norms_of(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms that keep running statistics."""
    check_model(model)
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


def called_with(model: Callable[..., object], batch: Batch) -> None:
    """Call a model with a batch, and say what a batch should be if it does not take it."""
    try:
        model(*((batch,) if isinstance(batch, Tensor) else tuple(batch)))
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeError(
            f"the model cannot be called with a batch of {_described(batch)}: {error}. A batch is a tensor, or a tuple "
            f"of all that the model takes; of a loader that gives labels too, pass (x for x, y in loader), and a "
            f"single batch x as [x]"
        ) from error


def _described(batch: Batch) -> str:
    if isinstance(batch, Tensor):
        return f"one tensor of shape {tuple(batch.shape)}"
    return f"{len(batch)} entries in a {type(batch).__name__}"


@contextmanager
def collecting(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Within this context batch norms start anew and take the plain average over all batches; then they use it."""
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
            norm.eval()


@contextmanager
def restoring(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """After this context the running statistics are what they were before it."""
    kept = _statistics(norms)
    try:
        yield
    finally:
        _put_back(norms, kept)


def checked(batches: Iterable[Batch]) -> list[Batch]:
    """The batches as a list, of which there must be some, each with examples and with finite numbers."""
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be an iterable of inputs, such as a list of them, got {batches!r}")
    found = list(batches)
    if not found:
        raise ValueError("there is no batch to take statistics from; give at least one batch of inputs")
    for number, batch in enumerate(found):
        if not isinstance(batch, Iterable):
            raise TypeError(f"batch {number} must be a tensor, or a tuple of all that the model takes, got {batch!r}")
        for values in [batch] if isinstance(batch, Tensor) else [x for x in batch if isinstance(x, Tensor)]:
            if not values.numel():
                raise ValueError(
                    f"batch {number} has no examples to take statistics from: its shape is {tuple(values.shape)}"
                )
            if values.is_floating_point() and not bool(values.isfinite().all()):
                raise ValueError(f"batch {number} holds NaN or infinity, and so would the statistics; leave it out")
    return found


def _statistics(norms: Sequence[_BatchNorm]) -> list[list[Tensor]]:
    return [[buffer.clone() for buffer in norm.buffers()] for norm in norms]


def _put_back(norms: Sequence[_BatchNorm], kept: Sequence[Sequence[Tensor]]) -> None:
    for norm, values in zip(norms, kept, strict=True):
        for buffer, value in zip(norm.buffers(), values, strict=True):
            buffer.copy_(value)
