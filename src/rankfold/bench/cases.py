"""What is timed: layers, sizes, formats and ranks.

The same shapes and ranks go to both tensor libraries, as far as each can represent them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD

from rankfold.bench import tensorly_peer as peer
from rankfold.bench.contender import BAYESIAN, DENSE, DENSE_WITH_SGD, FIXED, Case, Contender
from rankfold.config import CP, TT, TTM, Inference, TensorConfig, Tucker
from rankfold.layers import Conv2d, Embedding, Linear

TABLE_ROWS, TABLE_COLUMNS = 10_131_227, 128
TABLE_DIMS = (200, 220, 250)  # 11,000,000 rows, padding included
FETCHED = (2_048, 65_536)
CHANNELS, KERNEL, IMAGE = 128, 3, 32
# On the CPU a dense table of that size takes 5 GB.
DENSE_TABLE_HINT = "5 GB; add --dense-table to measure it"

FORMATS = ("CP", "Tucker", "TT", "TTM")
Skew = Literal["uniform", "skewed"]


@dataclass(frozen=True)
class Sizes:
    """The batch sizes that differ between machines."""

    large_linear: int
    images: int

    @classmethod
    def for_device(cls, device: torch.device, batch: int | None = None, full: bool = False) -> Sizes:
        if device.type == "cuda" or full:
            return cls(batch or 4096, 128)
        return cls(batch or 512, 16)


def all_cases(sizes: Sizes, dense_table: bool) -> list[Case]:
    """Every case, at these batch sizes; ``dense_table`` allows the dense table's memory."""
    return [*linear_cases(sizes), *embedding_cases(dense_table), conv_case(sizes.images)]


def with_formats(case: Case, formats: Sequence[str]) -> Case:
    """The case with the dense layer and these formats alone."""
    return replace(case, contenders=tuple(c for c in case.contenders if c.format in ("dense", *formats)))


def linear_cases(sizes: Sizes, tf32: bool = False) -> list[Case]:
    """A small layer and two large ones; ``tf32`` adds the large ones at that precision."""
    pairs = ((28, 28), (16, 32))
    ttm = TTM(20, in_dims=pairs[0], out_dims=pairs[1])
    small = linear_case(784, 512, 128, pairs, ttm, train_rank=20)
    ttm = TTM(32, in_dims=(8, 8, 16), out_dims=(16, 16, 16))
    wide = linear_case(1024, 4096, sizes.large_linear, ((32, 32), (64, 64)), ttm, train_rank=32)
    ttm = TTM(32, in_dims=(16, 16, 16), out_dims=(16, 16, 16))
    square = linear_case(4096, 4096, sizes.large_linear, ((64, 64), (64, 64)), ttm, train_rank=32)
    lowered = [replace(case, name=f"{case.name}, TF32", tf32=True) for case in (wide, square)] if tf32 else []
    return [small, wide, square, *lowered]


def embedding_cases(dense_table: bool) -> list[Case]:
    """Few and many rows, asked for evenly and unevenly."""
    skews: tuple[Skew, ...] = ("uniform", "skewed")
    return [embedding_case(rows, dense_table, skew) for rows in FETCHED for skew in skews]


def linear_case(
    in_features: int,
    out_features: int,
    batch: int,
    dims: tuple[tuple[int, ...], tuple[int, ...]],
    ttm: TensorConfig,
    train_rank: int,
) -> Case:
    """A linear layer; CP, Tucker and TT share ``dims``, TTM brings its own."""
    first, last = dims
    configs: list[TensorConfig] = [
        CP(50, in_dims=first, out_dims=last),
        Tucker(20, in_dims=first, out_dims=last),
        TT(train_rank, in_dims=first, out_dims=last),
        ttm,
    ]

    def ours(config: TensorConfig) -> nn.Module:
        return Linear(in_features, out_features, config=config)

    dense = Contender(DENSE, "dense", lambda: nn.Linear(in_features, out_features))
    return Case(
        f"Linear {in_features} → {out_features}, batch {batch}",
        lambda device: torch.randn(batch, in_features, device=device, requires_grad=True),
        (dense, *peer.linear_contenders(configs), *_own_contenders(ours, configs)),
    )


def embedding_case(rows: int, dense_table: bool, skew: Skew = "skewed") -> Case:
    """Fetching ``rows`` rows of a table of ten million."""
    columns = (TABLE_COLUMNS,)
    configs: list[TensorConfig] = [
        CP(350, in_dims=TABLE_DIMS, out_dims=columns),
        Tucker(20, in_dims=TABLE_DIMS, out_dims=columns),
        TT(24, in_dims=TABLE_DIMS, out_dims=columns),
        TTM(16, in_dims=TABLE_DIMS, out_dims=(4, 4, 8)),
    ]

    def ours(config: TensorConfig) -> nn.Module:
        return Embedding(TABLE_ROWS, TABLE_COLUMNS, config=config)

    def dense() -> nn.Module:  # a dense gradient of the table would cost another 5 GB and all the time
        return nn.Embedding(TABLE_ROWS, TABLE_COLUMNS, sparse=True)

    hint = None if dense_table else DENSE_TABLE_HINT
    return Case(
        f"Embedding {TABLE_ROWS:,} × {TABLE_COLUMNS}, {rows:,} rows, {skew}",
        partial(_indices, rows, skew),
        (
            # its sparse gradient is of use only to an optimizer, and waits for the device
            Contender(DENSE_WITH_SGD, "dense", dense, hint, optimizer=partial(SGD, lr=0.1), capturable=False),
            *peer.embedding_contenders(configs),
            *_own_contenders(ours, configs),
        ),
    )


def _indices(rows: int, skew: Skew, device: torch.device) -> Tensor:
    """Rows of the table: all equally often, or the n-th about 1/n as often as the first (Zipf)."""
    share = torch.rand(rows, dtype=torch.float64)
    # P(index < n) = log(n + 1) / log(rows + 1)
    index = TABLE_ROWS * share if skew == "uniform" else (TABLE_ROWS + 1.0) ** share - 1.0
    return index.long().clamp(max=TABLE_ROWS - 1).to(device)


def conv_case(batch: int) -> Case:
    """A 3×3 convolution; the channels are one mode each, but for TTM."""
    whole = (CHANNELS,)
    configs: list[TensorConfig] = [
        CP(64, in_dims=whole, out_dims=whole),
        Tucker((32, KERNEL**2, 32), in_dims=whole, out_dims=whole),
        TT(32, in_dims=whole, out_dims=whole),
        TTM(20, in_dims=(8, 16), out_dims=(16, 8)),
    ]

    def ours(config: TensorConfig) -> nn.Module:
        return Conv2d(CHANNELS, CHANNELS, KERNEL, padding=1, config=config)

    return Case(
        f"Conv2d {CHANNELS} → {CHANNELS}, {KERNEL}×{KERNEL}, batch {batch} of {IMAGE}×{IMAGE}",
        lambda device: torch.randn(batch, CHANNELS, IMAGE, IMAGE, device=device, requires_grad=True),
        (
            Contender(DENSE, "dense", lambda: nn.Conv2d(CHANNELS, CHANNELS, KERNEL, padding=1)),
            *peer.conv_contenders(configs, CHANNELS, CHANNELS, KERNEL),
            *_own_contenders(ours, configs),
        ),
    )


def _own_contenders(build: Callable[[TensorConfig], nn.Module], configs: list[TensorConfig]) -> Iterator[Contender]:
    modes: tuple[tuple[Inference, str], ...] = (("fixed", FIXED), ("bayes", BAYESIAN))
    for config in configs:
        for inference, label in modes:
            chosen = replace(config, inference=inference)
            yield Contender(label, type(config).__name__, partial(build, chosen))
