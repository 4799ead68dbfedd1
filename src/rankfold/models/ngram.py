"""A text classifier in the manner of fastText: the mean of the vectors of a text's n-grams, and one linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

NUM_ROWS = 10_131_227
EMBEDDING_DIM = 128
PADDING_ROW = 0


@final
class NgramClassifier(nn.Module):
    """Logits of a bag of n-grams.

    Args:
        num_rows: of the table, one for every n-gram; row 0 is padding and counts for nothing.
        embedding_dim: their length.
        num_classes: how many logits.
        shares: of the classes; the logits of a text without n-grams start at their logarithms. As in any linear
            layer if left out.

    Shape: rows (B, L), int32 or int64, to logits (B, num_classes).

    >>> import torch
    >>> NgramClassifier(num_rows=100, embedding_dim=8)(torch.tensor([[5, 17, 0], [99, 0, 0]])).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        num_rows: int = NUM_ROWS,
        embedding_dim: int = EMBEDDING_DIM,
        num_classes: int = 2,
        shares: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if shares is not None and len(shares) != num_classes:
            raise ValueError(f"shares must be one for each of the {num_classes} classes, got {len(shares)}")
        self.embedding = nn.EmbeddingBag(num_rows, embedding_dim, mode="mean", padding_idx=PADDING_ROW)
        self.head = nn.Linear(embedding_dim, num_classes)
        if shares is not None:
            with torch.no_grad():
                self.head.bias.copy_(torch.tensor(shares).log())

    def forward(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(rows))
        return logits
