"""Categories that are hidden in training, so that a network learns what to say of values it does not know.

Every value of the training part has a row of its own: the row of unknown values would never be trained, and the answer
for them would be arbitrary and far too sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Of the values of a batch, drawn anew for each: no value is lost, and few rows suffice. More would blur what is known.
HIDDEN_SHARE = 0.02
Inputs = tuple[Tensor, ...]


def hiding(unknown_rows: Sequence[int], device: torch.device) -> Callable[[Inputs], Inputs] | None:
    """What makes a training batch of its inputs: a few of its categories become unknown.

    Args:
        unknown_rows: the row of unknown values of each column of the last input, (B, C); nothing is done without any.
    """
    if not unknown_rows:
        return None
    unknown = torch.tensor(unknown_rows, device=device)  # once: a captured step cannot copy from the host

    def hide(inputs: Inputs) -> Inputs:
        *others, categories = inputs
        is_hidden = torch.rand(categories.shape, device=categories.device) < HIDDEN_SHARE
        return *others, torch.where(is_hidden, unknown.to(categories.dtype), categories)

    return hide


def is_unknown(inputs: Inputs, unknown_rows: Sequence[int]) -> Tensor:
    """Which categories are not known, (B, C)."""
    categories = inputs[-1]
    return categories == categories.new_tensor(unknown_rows)


def with_one_hidden(inputs: Inputs, column: int, row: int) -> Inputs:
    """The inputs with all values of one column of categories unknown."""
    *others, categories = inputs
    categories = categories.clone()
    categories[:, column] = row
    return *others, categories
