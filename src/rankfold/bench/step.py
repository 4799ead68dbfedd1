"""Whole training steps of the MNIST networks: dense, at fixed rank, and Bayesian with everything that takes.

A Bayesian step draws the factors, runs forward and backward, adds the KL, steps Adam and sets λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from rankfold.bayesian_tensor import tensors_of
from rankfold.bench.ceilings import Ceilings, Work, forward_work, matmul_precision
from rankfold.bench.contender import BAYESIAN, DENSE, FIXED
from rankfold.bench.graph import REPLAYS_IN_A_ROW
from rankfold.bench.measure import Timing, kernel_launches, time_calls
from rankfold.bench.networks import mnist_network
from rankfold.capture import CapturedStep
from rankfold.experiments.mnist import NUM_CLASSES, NUM_PIXELS, classifier
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination

BATCH = 128
NUM_DATA = 60_000
_LEARNING_RATE = 2e-3
# Nothing is cut, and nobody looks for NaN, while steps are timed.
_NEVER = 10**9
# A captured step needs a few calls until it is captured.
_CALLS_UNTIL_CAPTURED = 5


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        step, step_graph: the step as it is, and as one CUDA graph.
        launches: kernels that a step starts on CUDA when it is not a graph.
        floor_ms: the least time on this device.
    """

    case: str
    library: str
    format: str
    parameters: int
    step: Timing
    step_graph: Timing | None = None
    launches: int | None = None
    floor_ms: float | None = None


@dataclass(frozen=True)
class Training:
    """A network with its optimizer and, if it has a prior, its rank determination."""

    model: nn.Module
    optimizer: Adam
    ranks: RankDetermination | None

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> Training:
        model = model.to(device).train()
        groups = param_groups(model)
        for group in groups:  # on the device, where a captured graph reads it
            group["lr"] = torch.tensor(_LEARNING_RATE, device=device)
        optimizer = Adam(groups, fused=True, capturable=device.type == "cuda")
        if not any(tensor.has_prior for tensor in tensors_of(model).values()):
            return cls(model, optimizer, None)
        ranks = RankDetermination(
            model, optimizer, num_data=NUM_DATA, warmup_steps=_NEVER, check_every=_NEVER, snapshots=False
        )
        return cls(model, optimizer, ranks)

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        """One training step."""
        loss = F.cross_entropy(self.model(x), labels)
        loss.backward()
        if self.ranks is not None:
            self.ranks.kl_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ranks is not None:
            self.ranks.step()
        return loss.detach()


def run_steps(
    formats: Sequence[str], device: torch.device, repeat: int, ceilings: Ceilings | None = None
) -> Iterator[Row]:
    """Time the steps of all networks, in turns."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, NUM_PIXELS, device=device)
    labels = torch.randint(NUM_CLASSES, (BATCH,), device=device)
    with matmul_precision(tf32=False):
        trainings = {names: Training.of(build(), device) for names, build in _networks(formats).items()}
        eager = {_joined(names): partial(one.step, x, labels) for names, one in trainings.items()}
        times = time_calls(eager, device, repeat)
        launches = {name: kernel_launches(call) for name, call in eager.items()} if x.is_cuda else {}
        graphs = {_joined(names): _captured(one, x, labels) for names, one in trainings.items()} if x.is_cuda else {}
        graph_times = time_calls(graphs, device, repeat, inner=REPLAYS_IN_A_ROW)
    for names, one in trainings.items():
        yield Row(
            f"Training step of the MNIST network, batch {BATCH}",
            *names,
            parameters=sum(p.numel() for p in one.model.parameters()),
            step=times[_joined(names)],
            step_graph=graph_times.get(_joined(names)),
            launches=launches.get(_joined(names)),
            floor_ms=None if ceilings is None else ceilings.floor_ms(step_work(one.model, x)),
        )


def _joined(names: tuple[str, str]) -> str:
    return ", ".join(names)


def _networks(formats: Sequence[str]) -> dict[tuple[str, str], Callable[[], nn.Module]]:
    found: dict[tuple[str, str], Callable[[], nn.Module]] = {(DENSE, "dense"): classifier}
    for format in formats:
        found[FIXED, format] = partial(mnist_network, format, "fixed")
        found[BAYESIAN, format] = partial(mnist_network, format, "bayes")
    return found


def _captured(training: Training, x: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    step = partial(CapturedStep(training.step, training.ranks), x, labels)
    for _ in range(_CALLS_UNTIL_CAPTURED):
        step()
    return step


def step_work(model: nn.Module, x: Tensor) -> Work:
    """Forward and backward, and Adam: it reads and writes a parameter and two moments, and reads its gradient."""
    forward = forward_work(model, x)
    parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
    # the parameter's read is in forward already; beside it: gradient out and in, moments in and out, parameter out
    return Work(forward.num_bytes + 7 * parameter_bytes, 3 * forward.flops)
