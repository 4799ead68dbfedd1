"""A network that people know, on CIFAR-10: ResNet-18 with all but its stem and its head tensorized.

Channels stay one mode, so a 3×3 convolution in TT is a chain of 1×1 into the ranks, 3×3 among them and 1×1
out of them; in CP the 3×3 takes every rank by itself. The ranks that are found are the widths of that chain. Both
formats start with about a fifth of the dense network's parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from rankfold.experiments.batch_norm import settle
from rankfold.experiments.cifar10 import augment, load
from rankfold.experiments.spec import FormatName
from rankfold.experiments.task import Folding, Task
from rankfold.models.cifar import ResNet18

# The rank on a side of so many channels: the wider a layer, the more of it is redundant.
_RANKS = {64: 48, 128: 72, 256: 112, 512: 128}
# The components of a 3×3 convolution whose wider side has so many channels.
_COMPONENTS = {64: 160, 128: 208, 256: 288, 512: 336}


def _convolutions() -> dict[str, nn.Conv2d]:
    with torch.device("meta"):  # its layers alone: nearly every command imports this module
        named = ResNet18().named_modules()
    return {name: conv for name, conv in named if isinstance(conv, nn.Conv2d) and name.startswith("blocks.")}


def _tensor_train_ranks(conv: nn.Conv2d) -> tuple[int, ...]:
    inward, outward = _RANKS[conv.in_channels], _RANKS[conv.out_channels]
    return (inward,) if conv.kernel_size == (1, 1) else (inward, outward)


def _num_components(conv: nn.Conv2d) -> int:
    if conv.kernel_size == (1, 1):
        return _RANKS[conv.in_channels]
    return _COMPONENTS[max(conv.in_channels, conv.out_channels)]


def _folding(rank: Callable[[nn.Conv2d], int | tuple[int, ...]]) -> Folding:
    convolutions = _convolutions()
    layers = {name: ((conv.in_channels,), (conv.out_channels,)) for name, conv in convolutions.items()}
    return Folding({name: rank(conv) for name, conv in convolutions.items()}, layers)


FOLDINGS: dict[FormatName, Folding] = {"cp": _folding(_num_components), "tt": _folding(_tensor_train_ranks)}
TASK = Task(ResNet18, FOLDINGS, load, augment=augment, settle=settle)
