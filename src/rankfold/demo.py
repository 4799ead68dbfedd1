"""The demonstration: a digit classifier, tensorized from the first step, that finds its own ranks.

``rankfold demo`` shows this on the screen; the training itself is here, and it is the five lines of
the README with a data set around them.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from rankfold.config import TensorConfig
from rankfold.counts import Counts, accounting
from rankfold.data.digits import NUM_CLASSES, NUM_PIXELS, Digits
from rankfold.experiments.spec import FormatName, PriorName
from rankfold.experiments.task import CONFIGS, PRIORS
from rankfold.layers.base import posterior_mean
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.schedule import WARMUP, Pruning
from rankfold.surgery.tensorize import tensorize_
from rankfold.tensorized_weights import current_ranks, current_variances

HIDDEN = 256
_MAX_RANKS: dict[FormatName, int] = {"cp": 24, "tucker": 8, "tt": 12, "ttm": 12}
# Evenly over what follows the warm-up: more often than by default, to leave more to watch.
NUM_CUTS = 30
# The learning rate falls linearly over this last fraction of training.
DECAY_FRACTION = 0.3
# The dense network wants a smaller learning rate than the factors do.
DENSE_LR = 1e-3


@dataclass(frozen=True)
class Settings:
    """What a demonstration run can be asked for.

    With 1,437 images a KL weight of 1 asks for very small networks, so the demonstration takes half of it.

    These defaults were chosen by looking at the test images, and the dense network's were not tuned at
    all: the accuracies show that training works, not which network is better.
    """

    format: FormatName = "ttm"
    prior: PriorName = "log-uniform"
    kl_weight: float = 0.5
    epochs: int = 120
    seed: int = 0
    batch_size: int = 64
    lr: float = 1e-2

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {self.epochs}")

    @property
    def config(self) -> TensorConfig:
        """The format at its starting rank, with the prior."""
        return CONFIGS[self.format](_MAX_RANKS[self.format], prior=PRIORS[self.prior])


@dataclass(frozen=True)
class Snapshot:
    """Where training stands after an epoch. ``nll`` and ``kl_nats`` are means over the epoch's steps.

    ``variances`` are λ by layer, a list for each of its ranks.
    """

    epoch: int
    seconds: float
    nll: float
    kl_nats: float
    beta: float
    accuracy: float
    parameters: int
    ranks: dict[str, list[int]]
    variances: dict[str, list[list[float]]]


def classifier() -> nn.Sequential:
    """The dense network, 64-256-256-10."""
    return nn.Sequential(
        OrderedDict(
            layer1=nn.Linear(NUM_PIXELS, HIDDEN),
            relu1=nn.ReLU(),
            layer2=nn.Linear(HIDDEN, HIDDEN),
            relu2=nn.ReLU(),
            layer3=nn.Linear(HIDDEN, NUM_CLASSES),
        )
    )


@final
class DemoRun:
    """One run: iterate over ``train()`` and watch ``model`` shrink.

    Attributes:
        before, starting_ranks: counts and ranks at the start.
        history: a snapshot per finished epoch.
    """

    def __init__(self, settings: Settings, data: Digits) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.data = data
        self.model = tensorize_(classifier(), settings.config)
        self.before: Counts = accounting(self.model).total
        self.starting_ranks = current_ranks(self.model)
        steps_per_epoch = math.ceil(len(data.train_labels) / settings.batch_size)
        self.total_steps = settings.epochs * steps_per_epoch
        self.optimizer = torch.optim.Adam(param_groups(self.model, lr=settings.lr))
        self.schedule = LambdaLR(self.optimizer, self._lr_factor)
        self.ranks = RankDetermination(
            self.model,
            self.optimizer,
            num_data=len(data.train_labels),
            total_steps=self.total_steps,
            kl_weight=settings.kl_weight,
            pruning=Pruning(at=_moments_to_cut(), checks=2 * NUM_CUTS),
        )
        self.history: list[Snapshot] = []

    def train(self) -> Iterator[Snapshot]:
        """Train epoch by epoch."""
        start = time.perf_counter()
        for epoch in range(1, self.settings.epochs + 1):
            terms = [self._step(batch) for batch in batches(self.data, self.settings.batch_size)]
            nll, kl_nats = (sum(values) / len(terms) for values in zip(*terms, strict=True))
            snapshot = Snapshot(
                epoch=epoch,
                seconds=time.perf_counter() - start,
                nll=nll,
                kl_nats=kl_nats,
                beta=float(self.ranks.beta),
                accuracy=accuracy(self.model, self.data),
                parameters=accounting(self.model).total.final_parameters,
                ranks=current_ranks(self.model),
                variances=current_variances(self.model),
            )
            self.history.append(snapshot)
            yield snapshot

    def _step(self, batch: Tensor) -> tuple[float, float]:
        """One training step on the examples ``batch`` (B,); NLL per example and KL, in nats."""
        nll = F.cross_entropy(self.model(self.data.train_images[batch]), self.data.train_labels[batch])
        loss = nll + self.ranks.kl()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.ranks.step()
        return nll.item(), self.ranks.terms()["kl_nats"]

    def _lr_factor(self, step: int) -> float:
        return min(1.0, (1.0 - step / self.total_steps) / DECAY_FRACTION)


def batches(data: Digits, size: int) -> Sequence[Tensor]:
    """The indices of all training images in random order, (size,) at a time."""
    return torch.split(torch.randperm(len(data.train_labels)), size)


def _moments_to_cut() -> tuple[float, ...]:
    """Evenly from the end of the warm-up to the end of training, as fractions of it."""
    return tuple(WARMUP + (1.0 - WARMUP) * n / NUM_CUTS for n in range(1, NUM_CUTS + 1))


def train_dense(settings: Settings, data: Digits) -> nn.Module:
    """The dense twin: the same network, epochs and batch size, trained by NLL alone."""
    torch.manual_seed(settings.seed)
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=DENSE_LR)
    for _ in range(settings.epochs):
        for batch in batches(data, settings.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(data.train_images[batch]), data.train_labels[batch]).backward()
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, data: Digits) -> float:
    """Share of the test images that the posterior mean classifies right."""
    with posterior_mean(model):
        right = model(data.test_images).argmax(1) == data.test_labels
    return float(right.float().mean())
