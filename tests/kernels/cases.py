"""Formats to compute rows of: every kind, orders 2 to 5, odd sizes, padded ends, ranks that are no powers of two."""

import math

import torch

from rankfold.formats import CP, TensorTrain, TensorTrainMatrix, Tucker
from rankfold.shapes import Folding

RANKS = (3, 5, 2, 4, 3, 2, 3, 2, 2, 3)
MODES = [((5, 7), (3, 4)), ((4, 5, 6), (2, 3, 2)), ((3, 4, 2, 5), (2, 1, 3, 2)), ((2, 3, 2, 3, 2), (2, 1, 3, 2, 1))]
KINDS = [CP, Tucker, TensorTrain, TensorTrainMatrix]


def make(kind, inputs, outputs, ranks=RANKS):
    """A format of these modes, with one row and one column of padding."""
    rows, columns = Folding(math.prod(inputs) - 1, inputs), Folding(math.prod(outputs) - 1, outputs)
    return kind(rows, columns, ranks[: kind.num_ranks(rows, columns)])


EVERY = [make(kind, *modes) for kind in KINDS for modes in MODES]
SMALL = [make(kind, *MODES[1]) for kind in KINDS]
NAMES = [f"{format.name}-{len(format.inputs.dims)}" for format in EVERY]
SMALL_NAMES = [format.name for format in SMALL]


def factors_of(format, device, dtype=torch.float32):
    """Random factors, and the same in float64; both with gradients."""
    ours = [factor.to(device, dtype).requires_grad_() for factor in format.random_factors(1.0)]
    return ours, [factor.detach().double().requires_grad_() for factor in ours]


def assert_close(ours, truth, tolerance):
    """The norm of the difference is small beside that of the truth, and nothing is missing."""
    assert ours.shape == truth.shape
    assert bool(ours.isfinite().all())
    error, size = (ours.double() - truth).detach().norm().item(), truth.detach().norm().item()
    assert error <= tolerance * size


def assert_same(ours, truth, factors, exact, tolerance):
    """Values and gradients of a random scalar of them agree."""
    assert_close(ours, truth, tolerance)
    weights = torch.randn_like(truth)
    mine = torch.autograd.grad((ours.double() * weights).sum(), factors)
    theirs = torch.autograd.grad((truth * weights).sum(), exact)
    for gradient, true_gradient in zip(mine, theirs, strict=True):
        assert_close(gradient, true_gradient, 5 * tolerance)
