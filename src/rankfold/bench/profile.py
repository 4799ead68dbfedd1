"""Where the time of a call goes on a GPU: the time of its kernels, by what they do."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity

from rankfold.bench.measure import Call, profiled

# A kernel is of the first kind that has a part of its name, in small letters; all others work element by element.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("rows, KL and moments", ("chain_", "product_", "slice_")),
    ("Adam", ("fusedadam", "fused_adam")),
    ("products", ("gemm", "cutlass", "splitk", "wgrad", "dgrad", "fprop", "gemv", "dot_kernel")),
    ("batch norm and pooling", ("batch_norm", "batchnorm", "pool")),
    ("random numbers", ("distribution",)),
    ("sums", ("reduce",)),
    ("sorting", ("sort", "scan", "histogram")),
    ("copies", ("memcpy", "memset", "copy", "fill", "gather", "index")),
)
_OTHERS = "elementwise"
KINDS = (*(kind for kind, _ in _KINDS), _OTHERS)
_CALLS = 5


def kernel_microseconds(call: Call) -> dict[str, float]:
    """Microseconds on the device per call, by kind of kernel."""
    call()
    torch.cuda.synchronize()
    events = profiled(lambda: [call() for _ in range(_CALLS)], [ProfilerActivity.CPU, ProfilerActivity.CUDA])
    # annotations of torch stand among the kernels, under names such as Optimizer.step#Adam.step
    kernels = [e for e in events if e.device_type() == torch._C._autograd.DeviceType.CUDA and "#" not in e.name()]
    return by_kind((e.name(), e.duration_ns() / (1e3 * _CALLS)) for e in kernels)


def by_kind(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Times of kernels by their names, added up by kind.

    >>> by_kind([("sm80_xmma_gemm_f32f32", 3.0), ("chain_forward", 2.0), ("sm90_xmma_wgrad_indexed", 1.0)])
    {'rows, KL and moments': 2.0, 'products': 4.0}
    """
    found = dict.fromkeys(KINDS, 0.0)
    for name, time in times:
        found[_kind(name.lower())] += time
    return {kind: time for kind, time in found.items() if time}


def _kind(name: str) -> str:
    return next((kind for kind, parts in _KINDS if any(part in name for part in parts)), _OTHERS)
