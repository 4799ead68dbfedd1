"""A small convolutional network for images of any size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

from torch import Tensor, nn

WIDTHS = (32, 64, 128, 128)
_GROUPS = 8


@final
class ImageCNN(nn.Module):
    """Logits for images: 3×3 convolutions, each but the last with 2×2 maxima behind it, then the mean over the image.

    Group norm follows every convolution. Unlike batch norm it keeps no statistics, which would be those of
    weights that are sampled, and of ranks that are gone by the end.

    Args:
        channels: 1 for gray images, 3 for colours.
        num_classes: how many logits.
        widths: channels after each convolution, multiples of 8.

    Shape: (B, channels, H, W), H and W at least 8, to (B, num_classes).

    >>> import torch
    >>> ImageCNN(3, 5)(torch.randn(2, 3, 32, 20)).shape
    torch.Size([2, 5])
    """

    def __init__(self, channels: int, num_classes: int, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for inputs, outputs in pairwise((channels, *widths)):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
            blocks += [convolution, nn.GroupNorm(_GROUPS, outputs), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*blocks[:-1])
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.features(images)  # (B, C, H / 8, W / 8)
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits
