"""Who takes part in a timing, and what each one is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

DENSE, TENSORLY = "torch.nn", "tensorly-torch"
FIXED, BAYESIAN = "rankfold, fixed rank", "rankfold, Bayesian"
DENSE_WITH_SGD = f"{DENSE}, with sparse SGD"


@dataclass(frozen=True)
class Contender:
    """One way to build the layer of a case.

    Attributes:
        skipped: why it is listed but not run.
        optimizer: what follows every backward, where that belongs to the comparison.
        capturable: whether its step can be a CUDA graph: it never waits for the device.
    """

    library: str
    format: str
    build: Callable[[], nn.Module]
    skipped: str | None = None
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None
    capturable: bool = True

    @property
    def name(self) -> str:
        return f"{self.library}, {self.format}"


@dataclass(frozen=True)
class Case:
    """One layer at one batch size, and everybody who takes part; ``tf32`` allows matrix products of that precision."""

    name: str
    make_input: Callable[[torch.device], Tensor]
    contenders: tuple[Contender, ...]
    tf32: bool = False


def failure(error: Exception) -> str:
    """Why a contender takes no part.

    >>> failure(NotImplementedError())
    'fails: NotImplementedError'
    """
    return f"fails: {type(error).__name__}: {first_line(error)[:80]}".removesuffix(": ")


def first_line(error: Exception) -> str:
    """Of its message, which may have none."""
    return (str(error).strip().splitlines() or [""])[0]
