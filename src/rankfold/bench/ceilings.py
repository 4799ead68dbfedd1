"""The roofline: what a device can do at most, and how long a piece of work takes at least.

The ceilings are measured, not taken from a data sheet: the bytes of a large copy and the operations of a large
matrix product, per second. A piece of work takes at least as long as its bytes and as its operations do. What stays
in a cache can be faster than the copy, so small work may come out below its floor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from rankfold.bench.measure import Call, time_calls
from rankfold.contraction import planned_size
from rankfold.export.posterior_mean import Rows
from rankfold.kernels import reference
from rankfold.kernels.programs import best_program
from rankfold.layers import Embedding

_ROUNDS = 5


@dataclass(frozen=True)
class Work:
    """What must be moved and computed."""

    num_bytes: int
    flops: int


@dataclass(frozen=True)
class Ceilings:
    """What the device reached, in bytes and in floating-point operations per second; TF32 on CUDA alone."""

    bytes_per_second: float
    flops_per_second: float
    tf32_flops_per_second: float | None = None

    def floor_ms(self, work: Work, tf32: bool = False) -> float:
        """max(bytes / bandwidth, operations / rate), in ms.

        >>> Ceilings(bytes_per_second=1e9, flops_per_second=1e12).floor_ms(Work(num_bytes=2_000_000, flops=10**9))
        2.0
        """
        rate = self.tf32_flops_per_second if tf32 else None
        return 1e3 * max(work.num_bytes / self.bytes_per_second, work.flops / (rate or self.flops_per_second))

    @property
    def rates(self) -> str:
        """In words.

        >>> Ceilings(29e9, 98e9).rates
        '29 GB/s, 98 GFLOP/s'
        >>> Ceilings(4.2e12, 51.2e12, 445e12).rates
        '4,200 GB/s, 51.20 TFLOP/s, 445 TFLOP/s with TF32'
        """
        flops, tf32 = self.flops_per_second, self.tf32_flops_per_second
        products = f"{flops / 1e12:,.2f} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:,.0f} GFLOP/s"
        with_tf32 = f", {tf32 / 1e12:,.0f} TFLOP/s with TF32" if tf32 else ""
        return f"{self.bytes_per_second / 1e9:,.0f} GB/s, {products}{with_tf32}"


# Measured -----------------------------------------------------------------------------------------------


def measure_ceilings(device: torch.device) -> Ceilings:
    """Copy a large array and multiply two large matrices, several times; the faster ones count."""
    tf32 = _multiplied_per_second(device, tf32=True) if device.type == "cuda" else None
    return Ceilings(_copied_per_second(device), _multiplied_per_second(device, tf32=False), tf32)


def _copied_per_second(device: torch.device) -> float:
    entries = 2**28 if device.type == "cuda" else 2**25
    source = torch.ones(entries, device=device)
    target = torch.empty_like(source)
    # a copy reads and writes every byte
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _multiplied_per_second(device: torch.device, *, tf32: bool) -> float:
    side = 8192 if device.type == "cuda" else 1536
    matrix = torch.ones(side, side, device=device)
    with matmul_precision(tf32):
        return 2 * side**3 / _seconds(lambda: matrix @ matrix, device)


def _seconds(call: Call, device: torch.device) -> float:
    return time_calls({"": call}, device, _ROUNDS)[""].lower_ms / 1e3


@contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """Products and convolutions of float32 in TF32, or in full precision, as long as the context lasts."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


# Counted ------------------------------------------------------------------------------------------------


def forward_work(layer: nn.Module, x: torch.Tensor) -> Work:
    """Input, parameters and output move once each; operations are those of the way that the layer takes."""
    flops, output_bytes = _on_meta(layer, x)
    return Work(x.nbytes + touched_bytes(layer, x) + output_bytes, flops)


def training_work(layer: nn.Module, x: torch.Tensor) -> Work:
    """The same, and the gradients of all of these; backward computes twice what forward does.

    An optimizer's own traffic is not counted.
    """
    flops, output_bytes = _on_meta(layer, x)
    input_bytes = x.nbytes * (2 if x.requires_grad else 1)
    return Work(input_bytes + 2 * touched_bytes(layer, x) + 2 * output_bytes, 3 * flops)


def touched_bytes(layer: nn.Module, x: torch.Tensor) -> int:
    """Of the parameters; of a dense table only the rows that are asked for."""
    if isinstance(layer, nn.Embedding):
        return int(x.unique().numel()) * layer.embedding_dim * layer.weight.element_size()
    return sum(parameter.nbytes for parameter in layer.parameters())


def _on_meta(layer: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Operations of a forward and bytes of its output, without computing anything.

    Rows of a tensorized table are counted in both ways there are, and the cheaper one counts; rows that are asked
    for several times are computed once.
    """
    if not isinstance(layer, Embedding):
        return _counted(layer, x.detach().to("meta"))
    distinct = x.unique()
    counted = [_counted(way, distinct.to("meta")) for way in (Rows(layer), _SharedRows(layer))]
    return min(flops for flops, _ in counted), counted[0][1] // distinct.numel() * x.numel()


def _counted(module: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    tensors = {name: t.detach().to("meta") for name, t in (*module.named_parameters(), *module.named_buffers())}
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = functional_call(module, tensors, (x,))
    return counter.get_total_flops(), output.nbytes


class _SharedRows(nn.Module):
    """Rows of a table as the kernels compute them: what many rows share is contracted once."""

    def __init__(self, layer: Embedding) -> None:
        super().__init__()
        self.tensor = layer.tensor

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        format, factors = self.tensor.format, list(self.tensor.factors.mean)
        batch = planned_size(index.shape[0])
        program = best_program(format.name, format.inputs.dims, format.outputs.dims, format.ranks, batch)
        if program is None:
            return format.rows(factors, index)
        tables = [recipe.form(factors) for recipe in program.tables]
        weight = None if program.weight is None else program.weight.form(factors)
        if format.name == "CP":
            assert weight is not None
            return reference.product_rows(index, tables, weight, program.places, None, None, 0)
        left, middle, *right = (table.index_select(0, index) for table in tables)  # shapes alone, on the meta device
        rows = torch.einsum("bjq,bqkr->bjkr", left, middle)
        rows = torch.einsum("bjkr,brn->bjkn", rows, right[0]) if right else rows
        return rows.flatten(1) if weight is None else rows.flatten(1) @ weight
