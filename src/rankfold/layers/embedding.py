"""Tensorized ``torch.nn.Embedding`` and ``torch.nn.EmbeddingBag``: rows without a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfold import kernels
from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import TensorConfig, check_config
from rankfold.layers.bags import looks_for_repeats, pooled_before_outputs
from rankfold.layers.base import (
    TensorizedLayer,
    in_own_precision,
    like_dense,
    real_device,
    wrong_layer,
)
from rankfold.layers.row_checks import check_index, check_mode, positive_row, refuse_row_options
from rankfold.shapes import check_positive

# Standard deviation of torch.nn's default embeddings.
_DEFAULT_STD = 1.0
# Rows of a rebuilt table share most of their products, so one row alone costs this many times its share of a table.
_COST_OF_A_ROW_ALONE = 4


class _Table(TensorizedLayer):
    """A table ``A`` (num_embeddings, embedding_dim) whose rows are computed from the factors."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
        config: TensorConfig,
        matrix: Tensor | None,
    ) -> None:
        super().__init__()
        check_config(config)
        check_positive(num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = positive_row(padding_idx, num_embeddings)
        self.config = config
        self.tensor = BayesianTensor(
            config.build(num_embeddings, embedding_dim),
            config,
            config.init_std or _DEFAULT_STD,
            matrix=matrix,
            device=device,
            dtype=dtype,
        )
        self.bias_vector = None

    @property
    def weight(self) -> Tensor:
        matrix = self.tensor.matrix()
        return self._blank(matrix, torch.arange(self.num_embeddings, device=matrix.device))

    def _fetch(self, index: Tensor) -> Tensor:
        """Rows ``A[index]`` (N, J) of valid indices (N,), in the factors' dtype also under autocast.

        If as many are asked for as a small table has, all of it is rebuilt.
        """
        with in_own_precision(index.device):
            if _COST_OF_A_ROW_ALONE * index.shape[0] >= self.num_embeddings:
                return F.embedding(index, self.tensor.matrix())
            return self.tensor.rows(index)

    def _blank(self, rows: Tensor, index: Tensor) -> Tensor:
        """``rows`` (N, J) with zeros where ``index`` (N,) is the padding index."""
        return rows if self.padding_idx is None else rows.masked_fill((index == self.padding_idx)[:, None], 0.0)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


@final
class Embedding(_Table):
    """Rows ``A[index]`` of a table held as factors; the table itself is never formed.

    Args: those of :class:`torch.nn.Embedding`, and
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=16)``.
        matrix: start from this dense table (num_embeddings, embedding_dim) instead of random factors.

    Rows at ``padding_idx`` are exactly zero. ``max_norm``, ``scale_grad_by_freq`` and ``sparse`` are
    refused: they act on single rows, and here rows share their factors.

    Shape: indices (*) to (*, embedding_dim).

    >>> from rankfold.config import TTM
    >>> Embedding(10_131_227, 128, config=TTM(max_rank=16))(torch.tensor([[0, 10_131_226]])).shape
    torch.Size([1, 2, 128])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        config: TensorConfig,
        matrix: Tensor | None = None,
    ) -> None:
        refuse_row_options(max_norm, scale_grad_by_freq, sparse)
        super().__init__(num_embeddings, embedding_dim, padding_idx, device, dtype, config, matrix)

    def forward(self, index: Tensor) -> Tensor:
        check_index(index, self.num_embeddings)
        flat = index.reshape(-1)  # (N,)
        if looks_for_repeats(flat):
            distinct, place = flat.unique(return_inverse=True)
            rows = F.embedding(place, self._blank(self._fetch(distinct), distinct))  # (N, J)
        else:
            rows = self._blank(self._fetch(flat), flat)
        return rows if index.dim() == 1 else rows.reshape(*index.shape, self.embedding_dim)

    @classmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        if not isinstance(dense, nn.Embedding):
            raise wrong_layer(dense, "a torch.nn.Embedding")
        weight = dense.weight
        return cls(
            dense.num_embeddings,
            dense.embedding_dim,
            dense.padding_idx,
            dense.max_norm,
            dense.norm_type,
            dense.scale_grad_by_freq,
            dense.sparse,
            device=real_device(weight, device),
            dtype=weight.dtype,
            config=like_dense(config, weight, _DEFAULT_STD),
            matrix=weight if trained else None,
        )

    def _without_storage(self) -> nn.Embedding:
        return nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, device="meta")


@final
class EmbeddingBag(_Table):
    """Sums or means of bags of rows of a table held as factors.

    Args: those of :class:`torch.nn.EmbeddingBag`, and
        config: the format, rank limit and prior, such as ``rankfold.TTM(max_rank=16)``.
        matrix: start from this dense table (num_embeddings, embedding_dim) instead of random factors.

    Indices equal to ``padding_idx`` count for nothing, neither in the sum nor in the mean.
    ``mode="max"``, ``max_norm``, ``scale_grad_by_freq`` and ``sparse`` are refused.

    Shape: indices (B, N), or (N,) with the offsets (B,) at which the bags start, to (B, embedding_dim).

    >>> from rankfold.config import TTM
    >>> bag = EmbeddingBag(1000, 16, mode="sum", config=TTM(max_rank=4))
    >>> bag(torch.tensor([1, 2, 4, 5, 4]), torch.tensor([0, 3])).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Literal["sum", "mean"] = "mean",
        sparse: bool = False,
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        config: TensorConfig,
        matrix: Tensor | None = None,
    ) -> None:
        refuse_row_options(max_norm, scale_grad_by_freq, sparse)
        check_mode(mode)
        super().__init__(num_embeddings, embedding_dim, padding_idx, device, dtype, config, matrix)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, index: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        check_index(index, self.num_embeddings)
        format, factors = self.tensor.format, self.tensor.factors
        with in_own_precision(index.device):
            if kernels.can_pool(format, factors.mean[0], index, offsets, per_sample_weights, self.mode):
                return kernels.pooled_rows(
                    format,
                    factors(),
                    index,
                    offsets,
                    per_sample_weights,
                    mode=self.mode,
                    include_last_offset=self.include_last_offset,
                    padding_idx=self.padding_idx,
                )

        def pool(position: Tensor, rows: Tensor, padding: int | None) -> Tensor:
            return F.embedding_bag(
                position,
                rows,
                offsets,
                mode=self.mode,
                per_sample_weights=None if per_sample_weights is None else per_sample_weights.to(rows.dtype),
                include_last_offset=self.include_last_offset,
                padding_idx=padding,
            )  # (B, D)

        if looks_for_repeats(index):
            return self._pool_distinct(index, pool)
        rows, position = self._bagged_rows(index)
        return pool(position, rows, None if self.padding_idx is None else index.numel())

    def _pool_distinct(self, index: Tensor, pool: Callable[[Tensor, Tensor, int | None], Tensor]) -> Tensor:
        """Bags in which a row that occurs several times is computed once, and pooled as early as can be."""
        flat, padding = index.reshape(-1), None
        if self.padding_idx is not None:
            flat = F.pad(flat, (0, 1), value=self.padding_idx)  # so that it is among the distinct ones
        distinct, place = flat.unique(return_inverse=True)
        if self.padding_idx is not None:
            padding, place = int(place[-1]), place[:-1]
        position = place.reshape(index.shape).to(index.dtype)  # offsets have this dtype too
        with in_own_precision(index.device):
            return pooled_before_outputs(
                self.tensor.format, self.tensor.factors(), distinct, lambda rows: pool(position, rows, padding)
            )

    def _bagged_rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """The rows a batch of bags needs, a small table (N, J), and each index's place in it.

        With a padding index the table has one row more, at N, and all padding is placed there.
        """
        flat = index.reshape(-1)
        position = torch.arange(flat.numel(), device=flat.device, dtype=flat.dtype)
        if self.padding_idx is not None:
            position = torch.where(flat == self.padding_idx, flat.numel(), position)
            flat = F.pad(flat, (0, 1), value=self.padding_idx)
        return self._fetch(flat), position.reshape(index.shape)

    @classmethod
    def from_dense(
        cls, dense: nn.Module, config: TensorConfig, *, trained: bool = False, device: torch.device | None = None
    ) -> Self:
        if not isinstance(dense, nn.EmbeddingBag):
            raise wrong_layer(dense, "a torch.nn.EmbeddingBag")
        weight = dense.weight
        return cls(
            dense.num_embeddings,
            dense.embedding_dim,
            dense.max_norm,
            dense.norm_type,
            dense.scale_grad_by_freq,
            check_mode(dense.mode),
            dense.sparse,
            include_last_offset=dense.include_last_offset,
            padding_idx=dense.padding_idx,
            device=real_device(weight, device),
            dtype=weight.dtype,
            config=like_dense(config, weight, _DEFAULT_STD),
            matrix=weight if trained else None,
        )

    def _without_storage(self) -> nn.EmbeddingBag:
        return nn.EmbeddingBag(
            self.num_embeddings,
            self.embedding_dim,
            mode=self.mode,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
            device="meta",
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
