"""What a table held as factors accepts: its options, and the indices of its rows."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from rankfold.shapes import is_integer


def positive_row(padding_idx: int | None, num_embeddings: int) -> int | None:
    """A padding index as torch.nn reads it: negative ones count from the end."""
    if padding_idx is None:
        return None
    if not is_integer(padding_idx) or not -num_embeddings <= padding_idx < num_embeddings:
        raise ValueError(
            f"padding_idx must lie between {-num_embeddings} and {num_embeddings - 1} "
            f"for {num_embeddings} embeddings, got {padding_idx!r}"
        )
    return int(padding_idx) % num_embeddings


def refuse_row_options(max_norm: float | None, scale_grad_by_freq: bool, sparse: bool) -> None:
    """Refuse what torch.nn does to single rows of the weight or of its gradient."""
    if max_norm is not None:
        raise ValueError(
            f"max_norm is not supported, got {max_norm}: rows share their factors, so one row cannot be rescaled "
            f"alone; leave it None and, if needed, rescale the rows that come out"
        )
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq=True is not supported: gradients belong to shared factors; leave it False")
    if sparse:
        raise ValueError("sparse=True is not supported: the factors are small, their gradients dense; leave it False")


def check_mode(mode: str) -> Literal["sum", "mean"]:
    """``mode`` if it is a supported one."""
    match mode:
        case "sum" | "mean":
            return mode
        case "max":
            raise ValueError(
                "mode='max' is not supported: bags are pooled linearly, as sums of rows; use 'sum' or 'mean', "
                "or take an Embedding and the maximum of its output"
            )
    raise ValueError(f"mode must be 'sum' or 'mean', got {mode!r}")


def check_index(index: Tensor, size: int) -> None:
    """Raise if an index is not in [0, size); padded rows beyond ``size`` are not valid either.

    On an accelerator, and in compiled code, the check runs on the device and does not wait for it. On CUDA it is that
    which ``torch.nn.Embedding`` relies on, too.
    """
    if not isinstance(index, Tensor):
        raise TypeError(f"indices must be a tensor of int32 or int64, got {type(index).__name__}")
    if index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices must be int32 or int64, got {index.dtype}")
    if index.is_cuda and type(index) is Tensor and not torch.compiler.is_compiling():
        # selecting checks its indices, in one kernel where comparing takes five; what is selected is of no use. Not for
        # a fake tensor: the vector that is kept would be one, too, and of no use for others
        _of_size(size, index.dtype, index.device).index_select(0, index if index.dim() == 1 else index.reshape(-1))
        return
    valid = f"valid indices are 0 to {size - 1}"
    if torch.compiler.is_compiling() or not index.is_cpu:
        torch._assert_async(((index >= 0) & (index < size)).all(), f"an index is out of range: {valid}")
    elif index.numel() > 0:
        while torch._C._functorch.is_functorch_wrapped_tensor(index):  # as vmap does it
            index = torch._C._functorch.get_unwrapped(index)
        smallest, largest = (int(extreme) for extreme in index.aminmax())
        if smallest < 0 or largest >= size:
            raise IndexError(f"index {smallest if smallest < 0 else largest} is out of range: {valid}")


@lru_cache(maxsize=4096)
def _of_size(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector (size,) all of whose entries are the same one in memory."""
    return torch.empty(1, dtype=dtype, device=device).expand(size)
