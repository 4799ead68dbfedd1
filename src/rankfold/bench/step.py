"""Whole training steps of the paper's networks: dense, at fixed rank, and Bayesian with everything that takes.

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
from rankfold.bench.ceilings import Ceilings, Work, forward_work
from rankfold.bench.contender import BAYESIAN, DENSE, FIXED
from rankfold.bench.measure import CALLS_IN_A_ROW, Timing, kernel_launches, peak_memory, time_calls
from rankfold.bench.networks import NETWORKS, Network
from rankfold.bench.profile import kernel_microseconds
from rankfold.capture import CapturedStep
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination

BATCH = 128
_LEARNING_RATE = 2e-3
# Nothing is cut, and nobody looks for NaN, while steps are timed.
_NEVER = 10**9
# A captured step needs a few calls until it is captured.
_CALLS_UNTIL_CAPTURED = 5


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        steps_per_epoch: whole batches of the training set.
        step, step_graph: the step as it is, and as one CUDA graph.
        launches: kernels that a step starts on CUDA when it is not a graph.
        memory_bytes: on CUDA, parameters, the optimizer's state, and the peak of a step beyond them.
        floor_ms: the least time on this device.
        kernels: microseconds of a step on CUDA, by kind of kernel.
    """

    case: str
    library: str
    format: str
    parameters: int
    steps_per_epoch: int
    step: Timing
    step_graph: Timing | None = None
    launches: int | None = None
    memory_bytes: int | None = None
    floor_ms: float | None = None
    kernels: dict[str, float] | None = None


@dataclass(frozen=True)
class Training:
    """A network with its optimizer and, if it has a prior, its rank determination."""

    model: nn.Module
    optimizer: Adam
    ranks: RankDetermination | None

    @classmethod
    def of(cls, model: nn.Module, device: torch.device, num_data: int = 60_000) -> Training:
        model = model.to(device).train()
        groups = param_groups(model)
        for group in groups:  # on the device, where a captured graph reads it
            group["lr"] = torch.tensor(_LEARNING_RATE, device=device)
        optimizer = Adam(groups, fused=True, capturable=device.type == "cuda")
        if not any(tensor.has_prior for tensor in tensors_of(model).values()):
            return cls(model, optimizer, None)
        ranks = RankDetermination(
            model, optimizer, num_data=num_data, warmup_steps=_NEVER, check_every=_NEVER, snapshots=False
        )
        return cls(model, optimizer, ranks)

    def held_bytes(self) -> int:
        """Of parameters, buffers and the optimizer's state."""
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        return sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers(), *state))

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
    name: str, formats: Sequence[str], device: torch.device, repeat: int, ceilings: Ceilings | None = None
) -> Iterator[Row]:
    """Time the steps of one of the ``NETWORKS`` in all formats, in turns."""
    torch.manual_seed(0)
    network = NETWORKS[name]
    x, labels = network.make_batch(BATCH, device)
    made = {names: Training.of(build(), device, network.num_data) for names, build in _networks(network, formats)}
    eager = {_joined(names): partial(one.step, x, labels) for names, one in made.items()}
    in_a_row = CALLS_IN_A_ROW if x.is_cuda else 1
    times = time_calls(eager, device, repeat, in_a_row=in_a_row)
    graphs = {_joined(names): _captured(one, x, labels) for names, one in made.items()} if x.is_cuda else {}
    graph_times = time_calls(graphs, device, repeat, in_a_row=in_a_row)
    on_device = eager if x.is_cuda else {}
    memory = {key: peak_memory(call, device) for key, call in on_device.items()}
    # last: launches may take longer once the profiler has been at work
    launches = {key: kernel_launches(call) for key, call in on_device.items()}
    kernels = {key: kernel_microseconds(call) for key, call in on_device.items()}
    for names, one in made.items():
        key = _joined(names)
        yield Row(
            f"Training step of the {name} network, batch {BATCH}",
            *names,
            parameters=sum(p.numel() for p in one.model.parameters()),
            steps_per_epoch=network.num_data // BATCH,
            step=times[key],
            step_graph=graph_times.get(key),
            launches=launches.get(key),
            memory_bytes=one.held_bytes() + memory[key] if key in memory else None,
            floor_ms=None if ceilings is None else ceilings.floor_ms(step_work(one.model, x)),
            kernels=kernels.get(key),
        )


def _joined(names: tuple[str, str]) -> str:
    return ", ".join(names)


def _networks(network: Network, formats: Sequence[str]) -> Iterator[tuple[tuple[str, str], Callable[[], nn.Module]]]:
    yield (DENSE, "dense"), network.task.network
    for format in formats:
        yield (FIXED, format), partial(network.tensorized, format, "fixed")
        yield (BAYESIAN, format), partial(network.tensorized, format, "bayes")


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
