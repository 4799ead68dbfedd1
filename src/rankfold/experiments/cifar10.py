"""The CIFAR-10 task of appendix E: a network of convolutions, its foldings, the data and their augmentation.

The first convolution and the last fully connected layer stay dense, as in the paper.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rankfold.data.cifar10 import SIDE, find_cifar10, load_cifar10
from rankfold.experiments.batch_norm import settle
from rankfold.experiments.spec import FormatName, Split
from rankfold.experiments.splitting import parts_of
from rankfold.experiments.task import Data, Examples, Folding, Task
from rankfold.models.cifar import conv_network

# 5,000 of the 50,000 training images are held back in the validation split, always the same ones.
VALIDATION_SHARE = 1 / 10
_VALIDATION_SEED = 45_000
# Mean and standard deviation of the training pixels' red, green and blue, of brightness 0 to 1.
_MEAN, _STD = (0.49140, 0.48216, 0.44653), (0.24703, 0.24349, 0.26159)
_SHIFT = 4  # an image is moved by at most so many pixels

# Foldings ---------------------------------------------------------------------------------------------

# The paper prints neither modes nor ranks. Maximum ranks are such that training at a fixed rank has its number
# of parameters, to 2 %: 652,748 in CP, 653,438 in Tucker, 649,328 in TT and 641,898 in TTM. Most of them go to
# the convolutions, which need them. Channels stay one mode, so that CP, Tucker and TT are chains of 1×1, 3×3
# and 1×1; TTM pairs modes of inputs and outputs, so there they are two. The mode of the 9 positions that
# follows those of the input channels is not written here. The input of fc1 is 128 channels of 8×8 pixels.
_WHOLE = {
    "conv2": ((64,), (64,)),
    "conv3": ((64,), (128,)),
    "conv4": ((128,), (128,)),
    "conv5": ((128,), (128,)),
    "conv6": ((128,), (128,)),
    "fc1": ((128, 64), (32, 48)),
    "fc2": ((32, 48), (16, 32)),
}
_PAIRED = {
    "conv2": ((8, 8), (8, 8)),
    "conv3": ((8, 8), (16, 8)),
    "conv4": ((16, 8), (16, 8)),
    "conv5": ((16, 8), (16, 8)),
    "conv6": ((16, 8), (16, 8)),
    "fc1": ((8, 16, 8, 8), (4, 6, 8, 8)),
    "fc2": ((4, 6, 8, 8), (4, 4, 4, 8)),
}
FOLDINGS: dict[FormatName, Folding] = {
    "cp": Folding(
        {"conv2": 288, "conv3": 384, "conv4": 560, "conv5": 560, "conv6": 560, "fc1": 176, "fc2": 176}, _WHOLE
    ),
    "tucker": Folding(
        {
            "conv2": (48, 9, 48),
            "conv3": (56, 9, 96),
            "conv4": (96, 9, 96),
            "conv5": (96, 9, 96),
            "conv6": (96, 9, 96),
            "fc1": 18,
            "fc2": 18,
        },
        _WHOLE,
    ),
    "tt": Folding(
        {
            "conv2": (48, 48),
            "conv3": (56, 96),
            "conv4": (96, 96),
            "conv5": (96, 96),
            "conv6": (96, 96),
            "fc1": 38,
            "fc2": 32,
        },
        _WHOLE,
    ),
    "ttm": Folding(
        {
            "conv2": (48, 9),
            "conv3": (88, 9),
            "conv4": (136, 9),
            "conv5": (136, 9),
            "conv6": (136, 9),
            "fc1": 30,
            "fc2": (16, 32, 32),
        },
        _PAIRED,
    ),
}


# Data -------------------------------------------------------------------------------------------------


def load(split: Split, device: torch.device, folder: Path | None = None, verify: bool = True) -> Data:
    """CIFAR-10 on the device: images (N, 3, 32, 32), standardised."""
    images = load_cifar10(folder, verify=verify)
    train, evaluation = parts_of(images, split, share=VALIDATION_SHARE, seed=_VALIDATION_SEED)
    return Data(_examples(*train, device), _examples(*evaluation, device))


def _examples(images: Tensor, labels: Tensor, device: torch.device) -> Examples:
    return Examples((standardised(images.to(device)),), labels.to(device))


def standardised(images: Tensor) -> Tensor:
    """Images (N, 3, 32, 32) of bytes to such of mean 0 and standard deviation 1 in every colour."""
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
    return (images.float() / 255.0 - mean) / std


def augment(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every image (N, 3, 32, 32) moved by up to 4 pixels either way, and every second one mirrored.

    What moves in from outside is the image's own reflection. All images move by themselves, drawn from the
    generator of their device; nothing waits for the device, so a CUDA graph can hold it.
    """
    (images,) = inputs
    count, device = len(images), images.device
    shifts = torch.randint(-_SHIFT, _SHIFT + 1, (2, count, 1), device=device)  # rows, columns
    mirrored = torch.rand(count, 1, device=device) < 0.5
    along = torch.arange(SIDE, device=device)  # (32,)
    rows = _reflected(along + shifts[0])  # (N, 32)
    columns = _reflected(torch.where(mirrored, SIDE - 1 - along, along) + shifts[1])  # (N, 32)
    each = torch.arange(count, device=device)[:, None, None]
    moved = images.movedim(1, 3)[each, rows[:, :, None], columns[:, None, :]]  # (N, 32, 32, 3)
    return (moved.movedim(3, 1),)


def _reflected(index: Tensor) -> Tensor:
    """Pixels outside 0 … 31, replaced by those as far inside the border."""
    last = SIDE - 1
    return last - (last - index.abs()).abs()


TASK = Task(conv_network, FOLDINGS, load, augment=augment, settle=settle, find=find_cifar10)
