"""Answers of the pruned MNIST networks beside the dense one: onnxruntime, torch as it is, torch.compile.

The networks have the ranks that were found and random weights, which take as long as trained ones. No dense
weight is kept: the factors, or the two halves of a linear layer, are all there is. Exported files and compiled code
are made for the batch they are timed at.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.bench.contender import failure
from rankfold.bench.measure import Call, Timing, time_calls
from rankfold.bench.networks import NETWORKS, Ranks
from rankfold.experiments.mnist import NUM_PIXELS, classifier
from rankfold.export.layouts import Layout, changes, laid_out
from rankfold.export.onnx_file import export_onnx

ONNX, EAGER, COMPILED = "onnxruntime", "torch", "torch.compile"
NO_ONNX = "onnx, onnxscript or onnxruntime is not installed: pip install 'rankfold[export]'"
LAYOUTS: tuple[Layout, ...] = ("factors", "halves")
# A call of few microseconds is timed so many times in a row.
_IN_A_ROW = 20
# Threads that wait for work keep a core busy for a while after a call, and would disturb the next contender.
_PAUSE_SECONDS = 0.005
# More networks than anybody times at once.
_MANY = 1000


@dataclass(frozen=True)
class Row:
    """One network, run in one way; ``parameters`` are those that the program holds."""

    case: str
    library: str
    format: str
    layout: str
    parameters: int | None = None
    answer: Timing | None = None
    note: str | None = None


@dataclass(frozen=True)
class Setting:
    """Where and how networks are run."""

    batch: int
    threads: int
    device: torch.device
    compiled: bool

    @property
    def case(self) -> str:
        if self.device.type != "cpu":
            return f"Pruned MNIST network, batch {self.batch}"
        return f"Pruned MNIST network, batch {self.batch}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    @property
    def runtimes(self) -> tuple[str, ...]:
        """onnxruntime takes part on the CPU alone."""
        exported = (ONNX,) if self.device.type == "cpu" else ()
        return (*exported, EAGER, *((COMPILED,) if self.compiled else ()))


def networks(ranks: Mapping[str, Ranks]) -> dict[tuple[str, Layout], nn.Module]:
    """By format and layout, in eval mode with nothing of training in them; first the dense one.

    Halves are left out where they are the factors: in TTM.
    """
    torch.manual_seed(0)
    found: dict[tuple[str, Layout], nn.Module] = {("dense", "dense"): classifier().eval().requires_grad_(False)}
    for format, of_layers in ranks.items():
        model = NETWORKS["MNIST"].tensorized(format, "fixed", of_layers)
        layouts = [layout for layout in LAYOUTS if layout == "factors" or changes(model, layout)]
        found |= {(format, layout): laid_out(model, layout).eval().requires_grad_(False) for layout in layouts}
    return found


def run_inference(models: Mapping[tuple[str, Layout], nn.Module], setting: Setting, repeat: int) -> Iterator[Row]:
    """Time all networks in all ways of one setting, in turns."""
    x = torch.randn(setting.batch, NUM_PIXELS, device=setting.device)
    calls: dict[str, Call] = {}
    ready: dict[str, Row] = {}
    with _threads(setting.threads), _many_compiled():
        for (format, layout), model in models.items():
            for runtime in setting.runtimes:
                row = Row(setting.case, runtime, format, layout, sum(p.numel() for p in model.parameters()))
                call = _made(runtime, model.to(setting.device), x, setting.threads)
                if isinstance(call, str):
                    yield Row(setting.case, runtime, format, layout, note=call)
                else:
                    name = f"{runtime}, {format}, {layout}"
                    calls[name], ready[name] = call, row
        # on CUDA, calls in a row overlap: one answer takes longer than they do on average
        inner = _IN_A_ROW if setting.device.type == "cpu" else 1
        times = time_calls(calls, setting.device, repeat, in_a_row=inner, pause_seconds=_PAUSE_SECONDS)
    for name, row in ready.items():
        yield replace(row, answer=times[name])


def _made(runtime: str, model: nn.Module, x: Tensor, threads: int) -> Call | str:
    """A call of the network, or the reason why it cannot run that way."""
    if runtime == ONNX and any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", ONNX)):
        return NO_ONNX
    try:
        call = _CALLS[runtime](model, x, threads)
        call()
    except Exception as error:
        if runtime != COMPILED:
            raise
        # a machine without a compiler still has all other figures
        return failure(error)
    return call


def _eager(model: nn.Module, x: Tensor, threads: int) -> Call:
    def call() -> None:
        with torch.inference_mode():
            model(x)

    return call


def _compiled(model: nn.Module, x: Tensor, threads: int) -> Call:
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, fullgraph=True, dynamic=False)

    def call() -> None:
        with torch.no_grad():
            compiled(x)

    return call


def _exported(model: nn.Module, x: Tensor, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(model, Path(folder) / "network.onnx", x)
        session: Any = onnxruntime.InferenceSession(str(file.path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


_CALLS: dict[str, Callable[[nn.Module, Tensor, int], Call]] = {
    ONNX: _exported,
    EAGER: _eager,
    COMPILED: _compiled,
}


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _many_compiled() -> Iterator[None]:
    """torch keeps the compiled code of all modules of a class together, and few of them unless told otherwise.

    The code that ran last is tried first, so calls in a row are not slowed down by the others.
    """
    import torch._dynamo  # takes seconds, and only this benchmark needs it

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=_MANY):
        yield


def all_settings(batches: Sequence[int], threads: Sequence[int], device: torch.device, compiled: bool) -> list[Setting]:
    """Every batch at every number of threads; on CUDA these do not matter, and there is one."""
    counts = threads if device.type == "cpu" else (1,)
    return [Setting(batch, count, device, compiled) for batch in batches for count in counts]
