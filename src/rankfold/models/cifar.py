"""Networks for CIFAR-10: six convolutions and three fully connected layers, and ResNet-18."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn

NUM_CLASSES = 10
# (inputs, outputs) of every convolution, and whether the image is halved behind it.
_CONVOLUTIONS = (
    (3, 64, False),
    (64, 64, True),
    (64, 128, False),
    (128, 128, True),
    (128, 128, False),
    (128, 128, False),
)
_HIDDEN = (1536, 512)


def conv_network() -> nn.Sequential:
    """Convolutions 3→64→64→128→128→128→128 and fully connected layers 8192→1536→512→10.

    Convolutions are 3×3, with batch norm and ReLU behind them, and 2×2 maxima behind the second and the
    fourth. All numbers together, running statistics of batch norm included: 13,942,602.

    Shape: (N, 3, 32, 32) to (N, 10).

    >>> conv_network().conv2
    Conv2d(64, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for n, (inputs, outputs, halved) in enumerate(_CONVOLUTIONS, start=1):
        layers[f"conv{n}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers[f"norm{n}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{n}"] = nn.ReLU()
        if halved:
            layers[f"pool{n}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    features = _CONVOLUTIONS[-1][1] * 8 * 8
    for n, outputs in enumerate(_HIDDEN, start=1):
        layers[f"fc{n}"] = nn.Linear(features, outputs)
        layers[f"fc_norm{n}"] = nn.BatchNorm1d(outputs)
        layers[f"fc_relu{n}"] = nn.ReLU()
        features = outputs
    layers["fc3"] = nn.Linear(features, NUM_CLASSES)
    return nn.Sequential(layers)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is 1×1 where the shape changes.

    Shape: (N, inputs, H, W) to (N, outputs, H / stride, W / stride).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            pointwise = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=pointwise, norm=nn.BatchNorm2d(outputs)))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(x)).relu()
        y: Tensor = self.norm2(self.conv2(inner)) + self.shortcut(x)
        return y.relu()


class ResNet18(nn.Module):
    """ResNet-18 for small images: a 3×3 stem and no maximum behind it; 11,173,962 parameters.

    Shape: (N, 3, 32, 32) to (N, 10).
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        channels = (64, 64, 128, 256, 512)
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        for n, (inputs, outputs) in enumerate(pairwise(channels), start=1):
            blocks[f"block{n}a"] = ResidualBlock(inputs, outputs, stride=1 if n == 1 else 2)
            blocks[f"block{n}b"] = ResidualBlock(outputs, outputs, stride=1)
        self.blocks = nn.Sequential(blocks)
        self.head = nn.Linear(channels[-1], NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.norm(self.stem(x)).relu())  # (N, 512, 4, 4)
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits
