"""The posterior-mean model as a ``torch.export`` program for batches of any size."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, ShapesCollection

from rankfold.bayesian_tensor import tensors_of
from rankfold.export.layouts import Layout
from rankfold.export.posterior_mean import ExportError, posterior_mean_copy

BATCH = "batch"
Inputs = Tensor | Sequence[Tensor]


def export_program(model: nn.Module, example_inputs: Inputs, *, layout: Layout = "factors") -> ExportedProgram:
    """The posterior mean of ``model`` as a program that takes batches of any size.

    The program holds the means of the factors and nothing of training: no log-stds, no λ. It is made on
    the CPU; the order of contractions is the one that is best for the batch size of the example.

    Args:
        model: at any ranks, in any mode, on any device; it is left as it is.
        example_inputs: what the model is called with, one tensor or several, all with the batch as their
            first dimension. All other dimensions are fixed to those of the example.
        layout: ``factors``, the smallest; ``halves``, two matrices for a linear layer, the fastest at small batches;
            ``dense``, plain ``torch.nn`` layers.

    >>> import rankfold as rf
    >>> model = rf.Linear(64, 32, config=rf.TTM(max_rank=4))
    >>> program = export_program(model, torch.randn(8, 64))
    >>> program.module()(torch.randn(3, 64)).shape
    torch.Size([3, 32])
    >>> sorted(program.state_dict)
    ['bias_vector.entries.mean.0', 'tensor.factors.mean.0', 'tensor.factors.mean.1']
    """
    return trace(posterior_mean_copy(model, layout), checked_inputs(example_inputs))


def trace(mean: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    """The program of a model that :func:`posterior_mean_copy` made."""
    if inputs[0].shape[0] < 2:  # torch.export would take a batch of one for a constant
        inputs = resized(inputs, 2)
    batch, shapes = Dim(BATCH, min=1), ShapesCollection()
    for value in inputs:
        shapes[value] = {0: batch}
    with torch.no_grad():
        mean(*inputs)  # what is wrong with the inputs is the model's own error
    try:
        with silence(), torch.no_grad():
            return torch.export.export(mean, inputs, dynamic_shapes=shapes.dynamic_shapes(mean, inputs), strict=False)
    except Exception as error:
        found = f"{_first_lines(error)}{_advice(mean, error)}"
        raise ExportError(f"torch.export cannot trace this model: {found}") from error


def checked_inputs(example_inputs: Inputs) -> tuple[Tensor, ...]:
    """The inputs as a tuple, on the CPU, all with one batch size."""
    if not isinstance(example_inputs, Tensor | Sequence):
        raise TypeError(f"example_inputs must be a tensor or several, got {type(example_inputs).__name__}")
    inputs = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(f"example_inputs must be a tensor or several, got {type(value).__name__} among them")
    shapes = [tuple(value.shape) for value in inputs]
    if not inputs or any(not shape or shape[0] < 1 or shape[0] != shapes[0][0] for shape in shapes):
        raise ValueError(
            f"example_inputs must have the batch as their first dimension, the same for all and at least 1, "
            f"got shapes {shapes}; pad bags that have offsets to one length, (B, N)"
        )
    return tuple(value.detach().cpu() for value in inputs)


def resized(inputs: Sequence[Tensor], batch: int) -> tuple[Tensor, ...]:
    """The inputs at another batch size: their examples over and over."""
    index = torch.arange(batch) % inputs[0].shape[0]
    return tuple(value[index] for value in inputs)


@contextmanager
def silence() -> Iterator[None]:
    """Within this context exporters neither warn nor log; what goes wrong is still raised."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _advice(mean: nn.Module, error: Exception) -> str:
    if "Cache" in str(error):
        return "\nIt returns a cache, as language models of transformers do: set model.config.use_cache = False."
    if not tensors_of(mean):
        return ""
    return (
        '\nIf it is one of the tensorized layers that cannot be traced, layout="dense" exports torch.nn layers instead.'
    )


def _first_lines(error: Exception) -> str:
    return "\n".join(str(error).strip().splitlines()[:4]) or type(error).__name__
