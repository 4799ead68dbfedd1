"""Networks of the paper with random weights, dense and tensorized: for timing, not for answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rankfold.config import Inference
from rankfold.experiments import cifar10, mnist
from rankfold.experiments.spec import FormatName
from rankfold.experiments.task import CONFIGS, Task
from rankfold.surgery import tensorize_

Ranks = Mapping[str, Sequence[int]]
FORMAT_NAMES: dict[str, FormatName] = {config.__name__: name for name, config in CONFIGS.items()}


@dataclass(frozen=True)
class Network:
    """A network of the paper, the shape of one example, and how many there are to train on."""

    task: Task
    shape: tuple[int, ...]
    num_data: int

    def tensorized(self, format: str, inference: Inference, ranks: Ranks | None = None) -> nn.Module:
        """In a format, at the maximum rank or at the given ranks of each layer."""
        name = FORMAT_NAMES[format]
        configs = self.task.foldings[name].configs(name, inference, ranks)
        return tensorize_(self.task.network(), None, overrides=configs)

    def make_batch(self, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random examples and labels; images with their channels last, as in training."""
        x = torch.randn(size, *self.shape, device=device)
        layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        return x.to(memory_format=layout), torch.randint(10, (size,), device=device)


NETWORKS = {
    "MNIST": Network(mnist.TASK, (mnist.NUM_PIXELS,), 60_000),
    "CIFAR-10": Network(cifar10.TASK, (3, 32, 32), 50_000),
}


def found_ranks(format: str, results: Path) -> Ranks:
    """The ranks that rank determination found, with the log-uniform prior and seed 0, from its result file."""
    file = results / f"{FORMAT_NAMES[format]}-ard-lu-seed0.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} is missing: the ranks to prune to are read from it; name the folder of MNIST's results, "
            f"or make them with: rankfold reproduce mnist"
        )
    ranks: Ranks = json.loads(file.read_text(encoding="utf-8"))["ranks"]["after"]
    return ranks
