"""DLRM: embedding tables, a network for the numbers, dot products between all of them, and a network on top.

With the tables of the Criteo Kaggle data it has 4.3 billion parameters, nearly all of them in five tables.
Make it on the meta device and tensorize those, and the tables are never formed:

>>> import rankfold as rf
>>> with torch.device("meta"):
...     model = DLRM()
>>> model = rf.tensorize_(model, rf.TTM(max_rank=16, init_std=0.01), tables_from(1_000))
>>> model(torch.randn(2, 13), torch.zeros(2, 26, dtype=torch.int32)).shape
torch.Size([2])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from rankfold.data.criteo import KAGGLE_SIZES, NUM_NUMBERS
from rankfold.models.mlp import hidden_layers
from rankfold.shapes import is_positive_integer

_STARTS_AT_ZERO = 1_000_000

LayerFilter = Callable[[nn.Module, str], bool]


@final
class Table(nn.Embedding):
    """An embedding that starts as DLRM's do: uniform on ±1/√rows.

    From a million rows on that is below 0.001, and zero does as well: rows that are never seen then stay zero.
    """

    def reset_parameters(self) -> None:
        bound = 1.0 / math.sqrt(self.num_embeddings) if self.num_embeddings < _STARTS_AT_ZERO else 0.0
        nn.init.uniform_(self.weight, -bound, bound)


@final
class DLRM(nn.Module):
    """Predicts clicks from numbers and categories.

    Args:
        sizes: rows of the embedding tables, one for each category.
        dim: entries of an embedding.
        bottom, top: widths of the hidden layers of the two networks.
        num_numbers: how many numbers come with each example.

    Shape: numbers (B, num_numbers) and categories (B, len(sizes)), integers, to logits (B,).

    >>> model = DLRM((10, 20), dim=4, bottom=(8,), top=(8,), num_numbers=3)
    >>> model(torch.randn(5, 3), torch.zeros(5, 2, dtype=torch.long)).shape
    torch.Size([5])
    """

    def __init__(
        self,
        sizes: Sequence[int] = KAGGLE_SIZES,
        dim: int = 128,
        *,
        bottom: Sequence[int] = (512, 256, 256),
        top: Sequence[int] = (512, 256),
        num_numbers: int = NUM_NUMBERS,
    ) -> None:
        super().__init__()
        num_vectors = len(sizes) + 1
        self.bottom = nn.Sequential(*hidden_layers(num_numbers, bottom, dim), nn.ReLU())
        self.tables = nn.ModuleList(Table(size, dim) for size in sizes)
        self.top = hidden_layers(dim + num_vectors * (num_vectors - 1) // 2, top, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        if numbers.shape[0] != categories.shape[0] or categories.shape[1:] != (len(self.tables),):
            raise ValueError(
                f"expected numbers (B, ·) and categories (B, {len(self.tables)}), got {tuple(numbers.shape)} and "
                f"{tuple(categories.shape)}"
            )
        summary = self.bottom(numbers)  # (B, D)
        columns = categories.unbind(1)
        embedded = [table(column) for table, column in zip(self.tables, columns, strict=True)]
        features = torch.cat([summary, dot_products(torch.stack([summary, *embedded], 1))], 1)
        logits: Tensor = self.top(features).squeeze(1)
        return logits


def dot_products(vectors: Tensor) -> Tensor:
    """⟨v_i, v_j⟩ of every two different vectors: (B, V, D) to (B, V (V − 1) / 2)."""
    count = vectors.shape[1]
    first, second = torch.tril_indices(count, count, -1, device=vectors.device)
    # by `index_select`: the gradient of indexing would be sorted, though no product is taken twice
    return torch.bmm(vectors, vectors.mT).flatten(1).index_select(1, first * count + second)


def tables_from(min_rows: int) -> LayerFilter:
    """For ``tensorize_``: chooses every embedding table of at least so many rows.

    >>> tables_from(100)(nn.Embedding(99, 8), "tables.0")
    False
    """
    if not is_positive_integer(min_rows):
        raise ValueError(f"min_rows must be a positive integer, got {min_rows!r}")
    return lambda module, name: isinstance(module, nn.Embedding) and module.num_embeddings >= min_rows
