"""A network that people know, on CIFAR-10: ResNet-18 with all but its stem and its head tensorized.

Channels stay one mode, so a 3×3 convolution in TT is a chain of 1×1 into the ranks, 3×3 among them and 1×1
out of them. The ranks it finds are the widths of that chain.
"""

from __future__ import annotations

from torch import nn

from rankfold.experiments.batch_norm import settle
from rankfold.experiments.cifar10 import augment, load
from rankfold.experiments.spec import FormatName
from rankfold.experiments.task import Folding, Task
from rankfold.models.cifar import ResNet18

# The rank on a side of so many channels: the wider a layer, the more of it is redundant.
_RANKS = {64: 48, 128: 72, 256: 112, 512: 128}


def _tensor_train() -> Folding:
    layers, ranks = {}, {}
    for name, conv in ResNet18().named_modules():
        if isinstance(conv, nn.Conv2d) and name.startswith("blocks."):
            inward, outward = _RANKS[conv.in_channels], _RANKS[conv.out_channels]
            layers[name] = (conv.in_channels,), (conv.out_channels,)
            ranks[name] = (inward,) if conv.kernel_size == (1, 1) else (inward, outward)
    return Folding(ranks, layers)


FOLDINGS: dict[FormatName, Folding] = {"tt": _tensor_train()}
TASK = Task(ResNet18, FOLDINGS, load, augment=augment, settle=settle)
