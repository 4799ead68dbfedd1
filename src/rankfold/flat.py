"""Many tensors at once: in one row, where one operation does for all of them, and in the dtypes of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def end_to_end(tensors: Sequence[Tensor]) -> Tensor:
    """The entries of all tensors in one row; those of a lone tensor may be its own.

    >>> end_to_end([torch.zeros(2, 2), torch.ones(3)])
    tensor([0., 0., 0., 0., 1., 1., 1.])
    """
    return torch._C._nn.flatten_dense_tensors(list(tensors))


def taken_apart(row: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The row in parts that are shaped like these tensors: views of it.

    >>> taken_apart(torch.arange(5), like=[torch.zeros(2, 1), torch.zeros(3)])
    [tensor([[0],
            [1]]), tensor([2, 3, 4])]
    """
    return list(torch._C._nn.unflatten_dense_tensors(row, list(like)))


def alike(tensors: Sequence[Tensor], examples: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in the dtypes of the examples."""
    dtypes = [example.dtype for example in examples]
    return [t if t.dtype == dtype else t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=True)]
