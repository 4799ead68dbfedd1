"""What the training loop has in place of rank determination where there is no prior."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor


@final
class NoRanks:
    """Stands where :class:`~rankfold.RankDetermination` does when there are no ranks to find."""

    def __init__(self, device: torch.device) -> None:
        self._nothing = torch.zeros((), device=device)

    def kl(self) -> Tensor:
        return self._nothing

    def terms(self) -> dict[str, float]:
        return {"kl_nats": 0.0, "beta": 0.0}

    def step(self) -> None:
        """Nothing follows the optimizer's step."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""
