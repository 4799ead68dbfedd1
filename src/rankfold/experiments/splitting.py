"""Which images train and which are looked at."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfold.data.mnist import Images
from rankfold.experiments.spec import Split

Pair = tuple[Tensor, Tensor]


def parts_of(images: Images, split: Split, *, share: float, seed: int) -> tuple[Pair, Pair]:
    """Images and labels to train on and to look at.

    ``test`` keeps the published parts. ``validation`` holds a ``share`` of the training images back, always the same
    ones for a ``seed``, and never looks at the test images.
    """
    if split == "test":
        return (images.train_x, images.train_y), (images.test_x, images.test_y)
    size = len(images.train_y)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    held_back, rest = order.tensor_split([round(share * size)])
    return (images.train_x[rest], images.train_y[rest]), (images.train_x[held_back], images.train_y[held_back])
