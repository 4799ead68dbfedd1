"""Fully connected networks: for the numbers and categories of a table, and for images as plain rows of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn

from rankfold.likelihood import GaussianLikelihood

HIDDEN = (256, 256)
# A category's vector is about as long as the square root of the number of its values, and at most this long.
_LONGEST_VECTOR = 32
UNKNOWN_ROW = 0


@final
class TableClassifier(nn.Module):
    """Logits for rows of a table: its numbers beside a vector for each category, and two hidden layers.

    Args:
        num_numbers: columns of numbers, standardised.
        sizes: rows of the tables of vectors, one for each column of categories. Row 0 stands for values that are
            not known; it stays zero.
        num_outputs: how many logits.

    Shape: numbers (B, num_numbers) and categories (B, len(sizes)), int64, to (B, num_outputs). Of the two inputs
    the one that has no columns is left out.

    >>> TableClassifier(3, (10, 500), 4)(torch.randn(2, 3), torch.zeros(2, 2, dtype=torch.long)).shape
    torch.Size([2, 4])
    >>> TableClassifier(3, (), 4)(torch.randn(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, num_numbers: int, sizes: Sequence[int], num_outputs: int, hidden: Sequence[int] = HIDDEN
    ) -> None:
        super().__init__()
        lengths = [min(_LONGEST_VECTOR, max(2, round(size**0.5))) for size in sizes]
        self.num_numbers = num_numbers
        self.tables = nn.ModuleList(
            nn.Embedding(size, length, padding_idx=UNKNOWN_ROW) for size, length in zip(sizes, lengths, strict=True)
        )
        self.layers = hidden_layers(num_numbers + sum(lengths), hidden, num_outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        parts = [inputs[0]] if self.num_numbers else []
        if self.tables:
            columns = inputs[-1].unbind(1)
            parts += [table(column) for table, column in zip(self.tables, columns, strict=True)]
        outputs: Tensor = self.layers(torch.cat(parts, 1))
        return outputs


@final
class TableRegressor(nn.Module):
    """The mean of a number, from rows of a table, with the noise around it.

    Arguments and inputs are those of :class:`TableClassifier`; the output is (B,).

    Args:
        widens: whether there is more noise where a category is not known; runs of older versions do not know of it.

    Attributes:
        likelihood: the loss of outputs (B,) and targets (B,), in nats; its noise is learned.
        unknown_variance: what a value that is not known adds to the variance of the noise, for each category (C,).

    >>> TableRegressor(3, ())(torch.randn(2, 3)).shape
    torch.Size([2])
    """

    def __init__(
        self, num_numbers: int, sizes: Sequence[int], hidden: Sequence[int] = HIDDEN, *, widens: bool = False
    ) -> None:
        super().__init__()
        self.mean = TableClassifier(num_numbers, sizes, 1, hidden)
        self.likelihood = GaussianLikelihood()
        self.unknown_variance: Tensor | None
        self.register_buffer("unknown_variance", torch.zeros(len(sizes)) if widens and sizes else None)

    def forward(self, *inputs: Tensor) -> Tensor:
        mean: Tensor = self.mean(*inputs)
        return mean.squeeze(1)

    def noise_std(self, *inputs: Tensor) -> Tensor:
        """The standard deviation of the noise around each output, (B,)."""
        variance = self.likelihood.std.square().expand(len(inputs[0]))
        if self.unknown_variance is not None:
            # σ² + Σ_c [c is not known] σ_c²
            variance = variance + (inputs[-1] == UNKNOWN_ROW).to(variance) @ self.unknown_variance
        return variance.sqrt()


@final
class ImageMLP(nn.Module):
    """Logits for images, whose pixels are one long row.

    Shape: (B, channels, height, width) to (B, num_classes).

    >>> ImageMLP(1, 28, 28, 10)(torch.randn(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, channels: int, height: int, width: int, num_classes: int, hidden: Sequence[int] = HIDDEN
    ) -> None:
        super().__init__()
        self.layers = hidden_layers(channels * height * width, hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images.flatten(1))
        return logits


def hidden_layers(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear layers with a ReLU between each two: (B, inputs) to (B, outputs)."""
    layers: list[nn.Module] = []
    for size, following in pairwise((inputs, *hidden, outputs)):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
