"""The sentiment classifier of section 5.3: an embedding table, two bidirectional LSTM layers, a linear layer.

Texts have different lengths and are padded behind. No layer sees the padding: the backward direction reads a
text from its last word, not from the padding after it. Each direction is an LSTM of its own, and the backward
one gets every text reversed within its length. All shapes are fixed and nothing waits for the device, so a
training step can be captured as a CUDA graph, which packed sequences do not allow.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

VOCABULARY_SIZE = 25_000
EMBEDDING_DIM = 256
HIDDEN_SIZE = 128
DROPOUT = 0.5
PADDING_ID = 0


@final
class BidirectionalLSTM(nn.Module):
    """One bidirectional LSTM layer for texts of different lengths, padded behind.

    Shape: words (B, L, input_size) and lengths (B,) to states (B, L, 2 · hidden_size); those at the padding
    mean nothing.

    >>> layer = BidirectionalLSTM(6, 4)
    >>> layer(torch.randn(2, 5, 6), torch.tensor([5, 3])).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.backwards = nn.LSTM(input_size, hidden_size, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        places = reversal(lengths, x.shape[1])
        ahead, _ = self.forwards(x)
        back, _ = self.backwards(take(x, places))
        return torch.cat([ahead, take(back, places)], dim=2)


@final
class SentimentClassifier(nn.Module):
    """Logits of a text, from the mean of its words' LSTM states.

    Dropout of one half follows the table and both LSTM layers.

    Args:
        vocabulary_size: rows of the table; id 0 is padding.
        embedding_dim, hidden_size: of a word's vector, and of each direction of the LSTM layers.
        num_classes: how many logits.

    Shape: word ids (B, L) and lengths (B,) to logits (B, num_classes).

    >>> model = SentimentClassifier(vocabulary_size=50, embedding_dim=8, hidden_size=4)
    >>> model(torch.tensor([[7, 3, 2], [9, 0, 0]]), torch.tensor([3, 1])).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        vocabulary_size: int = VOCABULARY_SIZE,
        embedding_dim: int = EMBEDDING_DIM,
        hidden_size: int = HIDDEN_SIZE,
        num_classes: int = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_dim, padding_idx=PADDING_ID)
        self.lstm1 = BidirectionalLSTM(embedding_dim, hidden_size)
        self.lstm2 = BidirectionalLSTM(2 * hidden_size, hidden_size)
        self.head = nn.Linear(2 * hidden_size, num_classes)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        x = self.dropout(self.embedding(words))  # (B, L, E)
        x = self.dropout(self.lstm1(x, lengths))  # (B, L, 2H)
        x = self.dropout(self.lstm2(x, lengths))  # (B, L, 2H)
        logits: Tensor = self.head(mean_of_words(x, lengths))
        return logits


def reversal(lengths: Tensor, width: int) -> Tensor:
    """Where each word of a text stands when its first ``length`` words are reversed, (B, width).

    >>> reversal(torch.tensor([3, 1]), 4)
    tensor([[2, 1, 0, 3],
            [0, 1, 2, 3]])
    """
    place = torch.arange(width, device=lengths.device)
    mirrored = lengths[:, None] - 1 - place  # negative at the padding
    return torch.where(mirrored >= 0, mirrored, place)


def take(x: Tensor, places: Tensor) -> Tensor:
    """``x[b, places[b, l]]`` for x (B, L, D) and places (B, L)."""
    return x.gather(1, places[:, :, None].expand_as(x))


def mean_of_words(x: Tensor, lengths: Tensor) -> Tensor:
    """The mean over the first ``length`` words of every text: x (B, L, D) to (B, D); 0 for an empty one."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]  # (B, L)
    # (B, 1, L) · (B, L, D)
    total = (inside.to(x.dtype)[:, None] @ x)[:, 0]
    return total / lengths.clamp(min=1)[:, None].to(x.dtype)
