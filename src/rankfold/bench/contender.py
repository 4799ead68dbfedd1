"""Who takes part in a timing, and what each one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

DENSE, TENSORLY = "torch.nn", "tensorly-torch"
FIXED, BAYESIAN = "rankfold, fixed rank", "rankfold, Bayesian"


@dataclass(frozen=True)
class Contender:
    """One way to build the layer of a case; ``skipped`` says why it is listed but not run."""

    library: str
    format: str
    build: Callable[[], nn.Module]
    skipped: str | None = None

    @property
    def name(self) -> str:
        return f"{self.library}, {self.format}"


@dataclass(frozen=True)
class Case:
    """One layer at one batch size, and everybody who takes part."""

    name: str
    make_input: Callable[[torch.device], Tensor]
    contenders: tuple[Contender, ...]
