"""A call as one CUDA graph: what is left of its time when nothing waits for the host."""

from __future__ import annotations

import torch

from rankfold.bench.contender import first_line
from rankfold.bench.measure import Call

_WARMUP_CALLS = 3


def captured(call: Call) -> Call:
    """Replays ``call``; it must not wait for the device, and needs the current device to be CUDA."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is set up on first use must be there before a capture
        for _ in range(_WARMUP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def captured_or_why(call: Call) -> Call | str:
    """The replay of ``call``, or why it cannot be captured: one contender less, and the others go on."""
    try:
        return captured(call)
    except RuntimeError as error:
        return f"no graph: {first_line(error)[:120]}"
