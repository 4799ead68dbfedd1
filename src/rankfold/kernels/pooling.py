"""Which bag every index belongs to and with what weight, as ``torch.nn.functional.embedding_bag`` reads them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Bags(NamedTuple):
    """Flat indices (N,), the bag (N,) and the weight (N,) of each, and how many bags there are."""

    indices: Tensor
    owner: Tensor
    scale: Tensor
    total: int


def bags_of(
    index: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    *,
    mean: bool,
    include_last_offset: bool,
    padding_idx: int | None,
    dtype: torch.dtype,
) -> Bags:
    """Bags of indices (B, N), or (N,) with offsets (B,); padding has weight 0, and the mean leaves it out.

    >>> bags_of(torch.tensor([[5, 0], [7, 9]]), None, None, mean=True, include_last_offset=False, padding_idx=0,
    ...         dtype=torch.float32)
    Bags(indices=tensor([5, 0, 7, 9]), owner=tensor([0, 0, 1, 1]),
         scale=tensor([1.0000, 0.0000, 0.5000, 0.5000]), total=2)
    """
    flat = index.reshape(-1)
    position = torch.arange(flat.shape[0], device=flat.device)
    if offsets is None:
        count = index.shape[0]
        bag = position.div(max(1, index.shape[1]), rounding_mode="floor")
    else:
        count = offsets.shape[0] - include_last_offset
        # the last bag that starts at this position or before; empty ones that start here too come earlier. As in torch
        # the first one starts at 0 whatever its offset says: no kernel may write before the first bag
        bag = torch.searchsorted(offsets[1:count].to(position.dtype).contiguous(), position, right=True)
    scale = torch.ones_like(flat, dtype=dtype) if weights is None else weights.reshape(-1).to(dtype)
    if padding_idx is not None:
        scale = scale.masked_fill(flat == padding_idx, 0.0)
    if mean:
        # bags count their members: a bag of padding alone is a sum of nothing
        members = torch.zeros(count, dtype=torch.float32, device=flat.device).index_add(0, bag, scale.float())
        scale = scale / members.clamp(min=1.0).index_select(0, bag).to(dtype)
    return Bags(flat, bag, scale, count)
