"""The same layers in tensorly-torch, an optional peer.

It has no TT for linear layers and embeddings, and no TTM for convolutions. Where it can both contract
with the factors and rebuild the weight, both take part, at our ranks. It cannot pad a table, so its
table has all the rows that the modes hold. Its kernels have a mode for each spatial dimension, where
ours have one for both, so its parameters differ a little.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from torch import nn

from rankfold.bench.contender import TENSORLY, Contender
from rankfold.config import CP, TT, TTM, TensorConfig, Tucker

IMPLEMENTATIONS = ("factorized", "reconstructed")
_NAMES: dict[type[TensorConfig], str] = {CP: "cp", Tucker: "tucker", TT: "tt", TTM: "blocktt"}
MISSING = "tensorly-torch is not installed and takes no part; to compare with it: pip install 'rankfold[bench]'"


def installed_version() -> str | None:
    """The version of tensorly-torch that takes part, or ``None``."""
    try:
        return importlib.metadata.version(TENSORLY)
    except importlib.metadata.PackageNotFoundError:
        return None


def _library() -> ModuleType:
    """tensorly-torch, with the backend it needs, which is a setting of the whole process."""
    import tensorly
    import tltorch

    tensorly.set_backend("pytorch")
    module: ModuleType = tltorch
    return module


def linear_contenders(configs: Sequence[TensorConfig]) -> Iterator[Contender]:
    """CP, Tucker and block-TT linear layers, contracting and rebuilding."""
    return _contenders([c for c in configs if not isinstance(c, TT)], _linear, IMPLEMENTATIONS)


def embedding_contenders(configs: Sequence[TensorConfig]) -> Iterator[Contender]:
    """CP, Tucker and block-TT embeddings."""
    return _contenders([c for c in configs if not isinstance(c, TT)], _embedding, ("factorized",))


def conv_contenders(
    configs: Sequence[TensorConfig], in_channels: int, out_channels: int, kernel: int
) -> Iterator[Contender]:
    """CP, Tucker and TT convolutions, contracting and rebuilding."""
    build = partial(_conv, in_channels=in_channels, out_channels=out_channels, kernel=kernel)
    return _contenders([c for c in configs if not isinstance(c, TTM)], build, IMPLEMENTATIONS)


def _contenders(
    configs: Sequence[TensorConfig], build: Callable[[TensorConfig, str], nn.Module], implementations: Sequence[str]
) -> Iterator[Contender]:
    for config in configs if installed_version() else ():
        for implementation in implementations:
            label = f"{TENSORLY}, {implementation}"
            yield Contender(label, type(config).__name__, partial(build, config, implementation), capturable=False)


def _linear(config: TensorConfig, implementation: str) -> nn.Module:
    tltorch = _library()
    dims: tuple[Any, ...] = (config.in_dims, config.out_dims)
    layer: nn.Module = tltorch.FactorizedLinear(
        *dims, factorization=_NAMES[type(config)], rank=_rank(config), implementation=implementation
    )
    return layer


def _embedding(config: TensorConfig, implementation: str) -> nn.Module:
    tltorch = _library()
    assert config.in_dims is not None
    assert config.out_dims is not None
    layer: nn.Module = tltorch.FactorizedEmbedding(
        math.prod(config.in_dims),
        math.prod(config.out_dims),
        auto_tensorize=False,
        tensorized_num_embeddings=config.in_dims,
        tensorized_embedding_dim=config.out_dims,
        factorization=_NAMES[type(config)],
        rank=_rank(config),
    )
    return layer


def _conv(config: TensorConfig, implementation: str, *, in_channels: int, out_channels: int, kernel: int) -> nn.Module:
    tltorch = _library()
    layer: nn.Module = tltorch.FactorizedConv(
        in_channels,
        out_channels,
        kernel,
        order=2,
        padding=kernel // 2,
        bias=True,
        factorization=_NAMES[type(config)],
        rank=_conv_rank(config, kernel),
        implementation=implementation,
    )
    return layer


def _conv_rank(config: TensorConfig, kernel: int) -> int | tuple[int, ...]:
    """Our ranks of a kernel in this library's convention."""
    rank = config.max_rank
    if isinstance(rank, tuple):  # Tucker
        return (rank[-1], rank[0], kernel, kernel)
    return rank if isinstance(config, CP) else (1, rank, rank, rank, 1)


def _rank(config: TensorConfig) -> int | tuple[int, ...]:
    """The ranks of a matrix format in this library's convention."""
    assert config.in_dims is not None
    assert config.out_dims is not None
    rank = config.max_rank
    if isinstance(config, CP) or isinstance(rank, tuple):
        return rank
    if isinstance(config, Tucker):
        return (rank,) * (len(config.in_dims) + len(config.out_dims))
    return (1, *(rank,) * (len(config.in_dims) - 1), 1)
