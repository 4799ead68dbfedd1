"""Run the cases: forward in eval mode without gradients, forward + backward in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankfold.bench.ceilings import Ceilings, forward_work, matmul_precision, training_work
from rankfold.bench.contender import FIXED, Case, Contender, failure
from rankfold.bench.graph import captured_or_why
from rankfold.bench.measure import CALLS_IN_A_ROW, Call, Timing, peak_memory, time_calls
from rankfold.bench.profile import kernel_microseconds


@dataclass(frozen=True)
class Row:
    """One contender in one case; without figures, ``note`` says why.

    Attributes:
        forward_graph, forward_backward_graph: the same calls as CUDA graphs.
        extra_bytes: peak of forward + backward beyond parameters, input and the output's gradient.
        floor_forward_ms, floor_ms: the least time of forward and of forward + backward on this device.
        kernels: microseconds of forward + backward on CUDA, by kind of kernel.
    """

    case: str
    library: str
    format: str
    parameters: int | None = None
    forward: Timing | None = None
    forward_backward: Timing | None = None
    extra_bytes: int | None = None
    note: str | None = None
    forward_graph: Timing | None = None
    forward_backward_graph: Timing | None = None
    floor_forward_ms: float | None = None
    floor_ms: float | None = None
    kernels: dict[str, float] | None = None


@dataclass(frozen=True)
class Ready:
    """A contender with its layer on the device."""

    contender: Contender
    layer: nn.Module
    x: Tensor

    def inference(self) -> Call:
        """Forward in eval mode, without gradients."""

        def call() -> None:
            with torch.no_grad():
                self.layer(self.x)

        self.layer.eval()
        return call

    def training(self) -> Call:
        """Forward, backward, the optimizer if it takes part, and dropping the gradients as ``zero_grad()`` does."""
        make = self.contender.optimizer
        optimizer = None if make is None else make(self.layer.parameters())
        self.layer.train()
        with torch.no_grad():
            upstream = torch.randn_like(self.layer(self.x))
        with_gradients = self.x, *self.layer.parameters()

        def call() -> None:
            self.layer(self.x).backward(upstream)
            if optimizer is not None:
                optimizer.step()
            for tensor in with_gradients:
                tensor.grad = None

        return call

    def floors(self, ceilings: Ceilings, tf32: bool) -> tuple[float | None, float | None]:
        """Of forward and of forward + backward; ``None`` for a peer whose work cannot be counted."""
        try:
            works = forward_work(self.layer, self.x), training_work(self.layer, self.x)
        except Exception:  # its code looks at values, and on the meta device there are none
            if self.contender.library.startswith("rankfold"):
                raise
            return None, None
        return ceilings.floor_ms(works[0], tf32), ceilings.floor_ms(works[1], tf32)


def run_case(case: Case, device: torch.device, repeat: int, ceilings: Ceilings | None = None) -> Iterator[Row]:
    """Measure every contender of a case, in turns; with ``ceilings``, beside the least time it takes."""
    torch.manual_seed(0)
    x = case.make_input(device)
    ready: dict[str, Ready] = {}
    with matmul_precision(case.tf32):
        for contender in case.contenders:
            found = contender.skipped or prepare(contender, x, device)
            if isinstance(found, str):
                yield Row(case.name, contender.library, contender.format, note=found)
            else:
                ready[contender.name] = found
        yield from _measured(case, ready, device, repeat, ceilings)


def _measured(
    case: Case, ready: Mapping[str, Ready], device: torch.device, repeat: int, ceilings: Ceilings | None
) -> Iterator[Row]:
    forward, forward_graph, notes = _timed(ready, Ready.inference, device, repeat)
    both, both_graph, more_notes = _timed(ready, Ready.training, device, repeat)
    notes |= more_notes
    for name, one in ready.items():
        floors = (None, None) if ceilings is None else one.floors(ceilings, case.tf32)
        yield Row(
            case.name,
            one.contender.library,
            one.contender.format,
            parameters=sum(p.numel() for p in one.layer.parameters()),
            forward=forward[name],
            forward_backward=both[name],
            extra_bytes=peak_memory(one.training(), device),
            note=notes.get(name),
            forward_graph=forward_graph.get(name),
            forward_backward_graph=both_graph.get(name),
            floor_forward_ms=floors[0],
            floor_ms=floors[1],
            kernels=kernel_microseconds(one.training()) if device.type == "cuda" else None,
        )


def prepare(contender: Contender, x: Tensor, device: torch.device) -> Ready | str:
    """The layer on the device, run once, or the reason why it cannot run there."""
    try:
        with device if contender.format == "dense" else nullcontext():  # a large table is made where it is needed
            layer = contender.build().to(device)
        ready = Ready(contender, layer, x)
        ready.training()()
        ready.inference()()
    except Exception as error:  # a peer's failure is a result, not an end to the comparison
        if contender.library.startswith("rankfold"):
            raise
        return failure(error)
    return ready


def _timed(
    ready: Mapping[str, Ready], make_call: Callable[[Ready], Call], device: torch.device, repeat: int
) -> tuple[dict[str, Timing], dict[str, Timing], dict[str, str]]:
    """As they are, on CUDA as graphs where that can be, and why one cannot."""
    calls = {name: make_call(one) for name, one in ready.items()}
    if device.type != "cuda":
        return time_calls(calls, device, repeat), {}, {}
    eager = time_calls(calls, device, repeat, in_a_row=CALLS_IN_A_ROW)
    made = {name: captured_or_why(call) for name, call in calls.items() if ready[name].contender.capturable}
    graphs = {name: graph for name, graph in made.items() if not isinstance(graph, str)}
    notes = {name: why for name, why in made.items() if isinstance(why, str)}
    return eager, time_calls(graphs, device, repeat, in_a_row=CALLS_IN_A_ROW), notes


def speedups(rows: Sequence[Row], over: str) -> dict[tuple[str, str], tuple[float, float]]:
    """How many times faster fixed-rank rankfold is than the best of a library, for each (case, format).

    The two numbers are forward and forward + backward; the best is taken for each on its own.
    """
    found = {}
    for row in rows:
        rivals = [r for r in rows if (r.case, r.format) == (row.case, row.format) and r.library.startswith(over)]
        timed = [(r.forward, r.forward_backward) for r in rivals if r.forward and r.forward_backward]
        if row.library == FIXED and row.forward and row.forward_backward and timed:
            forward, both = (min(t.median_ms for t in column) for column in zip(*timed, strict=True))
            found[row.case, row.format] = (
                forward / row.forward.median_ms,
                both / row.forward_backward.median_ms,
            )
    return found
