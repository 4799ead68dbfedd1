"""A text classifier in the manner of fastText: the mean of the vectors of a text's n-grams, and one linear layer."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

NUM_BUCKETS = 10_131_227
EMBEDDING_DIM = 128
PADDING_BUCKET = 0


@final
class NgramClassifier(nn.Module):
    """Logits of a bag of hashed n-grams.

    Args:
        num_buckets: rows of the table; bucket 0 is padding and counts for nothing.
        embedding_dim: their length.
        num_classes: how many logits.

    Shape: buckets (B, L) to logits (B, num_classes).

    >>> import torch
    >>> NgramClassifier(num_buckets=100, embedding_dim=8)(torch.tensor([[5, 17, 0], [99, 0, 0]])).shape
    torch.Size([2, 2])
    """

    def __init__(
        self, num_buckets: int = NUM_BUCKETS, embedding_dim: int = EMBEDDING_DIM, num_classes: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(num_buckets, embedding_dim, mode="mean", padding_idx=PADDING_BUCKET)
        self.head = nn.Linear(embedding_dim, num_classes)

    def forward(self, buckets: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(buckets))
        return logits
