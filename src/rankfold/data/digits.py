"""The handwritten digits that scikit-learn carries: 1,797 images of 8×8 pixels. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_CLASSES = 10
NUM_PIXELS = 64
_NUM_TEST = 360
_BRIGHTEST = 16.0  # pixels are counts from 0 to 16


@dataclass(frozen=True)
class Digits:
    """Images (N, 64) in [0, 1] and labels (N,), split once and for all."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits() -> Digits:
    """The digits with a fixed split, each class in the same share on both sides.

    >>> data = load_digits()
    >>> len(data.train_labels), len(data.test_labels)
    (1437, 360)
    """
    from sklearn import datasets, model_selection

    bunch = datasets.load_digits()
    train, test = model_selection.train_test_split(
        range(len(bunch.target)), test_size=_NUM_TEST, stratify=bunch.target, random_state=0
    )
    images = torch.tensor(bunch.data / _BRIGHTEST, dtype=torch.float32)
    labels = torch.tensor(bunch.target, dtype=torch.long)
    return Digits(images[train], labels[train], images[test], labels[test])
