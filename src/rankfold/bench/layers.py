"""Run the cases: forward in eval mode without gradients, forward + backward in training mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankfold.bench.contender import FIXED, Case, Contender
from rankfold.bench.measure import Call, Timing, peak_memory, time_calls


@dataclass(frozen=True)
class Row:
    """One contender in one case; without figures, ``note`` says why."""

    case: str
    library: str
    format: str
    parameters: int | None = None
    forward: Timing | None = None
    forward_backward: Timing | None = None
    extra_bytes: int | None = None
    note: str | None = None


def run_case(case: Case, device: torch.device, repeat: int) -> Iterator[Row]:
    """Measure every contender of a case, in turns."""
    torch.manual_seed(0)
    x = case.make_input(device)
    ready: dict[str, tuple[Contender, nn.Module]] = {}
    for contender in case.contenders:
        layer = contender.skipped or _prepare(contender, x, device)
        if isinstance(layer, str):
            yield Row(case.name, contender.library, contender.format, note=layer)
        else:
            ready[contender.name] = (contender, layer)
    forward = _timed(ready, _inference, x, device, repeat)
    both = _timed(ready, _training, x, device, repeat)
    for name, (contender, layer) in ready.items():
        yield Row(
            case.name,
            contender.library,
            contender.format,
            parameters=sum(p.numel() for p in layer.parameters()),
            forward=forward[name],
            forward_backward=both[name],
            extra_bytes=peak_memory(_training(layer, x), device),
        )


def _prepare(contender: Contender, x: Tensor, device: torch.device) -> nn.Module | str:
    """The layer on the device, or the reason why it cannot run there."""
    try:
        layer = contender.build().to(device)
        _training(layer, x)()
        _inference(layer, x)()
    except Exception as error:  # a peer's failure is a result, not an end to the comparison
        if contender.library.startswith("rankfold"):
            raise
        return f"fails: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
    return layer


def _timed(
    ready: dict[str, tuple[Contender, nn.Module]],
    make_call: Callable[[nn.Module, Tensor], Call],
    x: Tensor,
    device: torch.device,
    repeat: int,
) -> dict[str, Timing]:
    return time_calls({name: make_call(layer, x) for name, (_, layer) in ready.items()}, device, repeat)


def _inference(layer: nn.Module, x: Tensor) -> Call:
    def call() -> None:
        with torch.no_grad():
            layer(x)

    layer.eval()
    return call


def _training(layer: nn.Module, x: Tensor) -> Call:
    """Forward, backward, and dropping the gradients again as ``zero_grad()`` does."""
    layer.train()
    with torch.no_grad():
        upstream = torch.randn_like(layer(x))

    def call() -> None:
        layer(x).backward(upstream)
        for tensor in (x, *layer.parameters()):
            tensor.grad = None

    return call


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
