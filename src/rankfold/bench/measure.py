"""How long a call takes and how much memory it needs.

Contenders take turns, one call each per round, or a few short ones in a row, so that whatever else the
machine does hits all of them alike. The order is drawn anew for every round: who follows a heavy call
finds the caches empty, who follows a twin finds them full. Times are medians with quartiles.

Memory is the peak of what torch allocated during the call beyond what was there before: on CUDA by the
allocator's own count, on the CPU from the profiler's record of every allocation. Scratch space inside
vendor libraries is not in it.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]

WARMUP_ROUNDS = 2
MIN_ROUNDS = 3
# On CUDA short calls are timed so many in a row, as training makes them, but not for longer than about this. The first
# of them finds the host's caches full of what another contender has left, and the device waiting.
CALLS_IN_A_ROW, _LONGEST_ROW_MS = 10, 20.0
# A contender that has taken this long sits out the remaining rounds.
PATIENCE_SECONDS = 15.0


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median and the quartiles around it."""

    median_ms: float
    lower_ms: float
    upper_ms: float
    rounds: int


def time_calls(
    calls: Mapping[str, Call], device: torch.device, repeat: int, *, in_a_row: int = 1, pause_seconds: float = 0.0
) -> dict[str, Timing]:
    """Time every call ``repeat`` times, in turns of random order.

    Args:
        in_a_row: a short call is timed so many times in a row, and the time divided by how many they were.
        pause_seconds: between two contenders.
    """
    clock = _cuda_milliseconds if device.type == "cuda" else _cpu_milliseconds
    for call in calls.values():
        for _ in range(WARMUP_ROUNDS):
            call()
    rows = {name: _row_length(call, clock, in_a_row) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    draw = random.Random(0)
    with _old_objects_left_alone():
        for taken in range(repeat):
            for name in draw.sample(list(calls), len(calls)):
                if taken < MIN_ROUNDS or sum(times[name]) * rows[name] < 1e3 * PATIENCE_SECONDS:
                    time.sleep(pause_seconds)
                    times[name].append(clock(calls[name], rows[name]))
    return {name: _summary(values) for name, values in times.items()}


@contextmanager
def _old_objects_left_alone() -> Iterator[None]:
    """Within this context Python looks for garbage among new objects only.

    All contenders and the libraries they need are in this one process, more objects than any of them has alone, and
    a look at all of them would hit whoever is timed at that moment.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _row_length(call: Call, clock: Callable[[Call, int], float], longest: int) -> int:
    return 1 if longest == 1 else max(1, min(longest, int(_LONGEST_ROW_MS / max(clock(call, 1), 1e-3))))


def share_of_cores(seconds: float = 0.3) -> float:
    """How much of the time of its cores torch gets: about 1, or less where other programs want them too."""
    x = torch.rand(768, 768)
    x @ x  # starts the threads
    wall, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        x @ x
    return (time.process_time() - used) / ((time.perf_counter() - wall) * torch.get_num_threads())


def peak_memory(call: Call, device: torch.device) -> int:
    """Bytes that torch held at most during the call, beyond those before it."""
    return _cuda_peak(call, device) if device.type == "cuda" else _cpu_peak(call)


def _summary(values: list[float]) -> Timing:
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, lower, upper, len(values))


def _cpu_milliseconds(call: Call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return 1e3 * (time.perf_counter() - start) / times


def _cuda_milliseconds(call: Call, times: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / times


def _cuda_peak(call: Call, device: torch.device) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device) - before


def kernel_launches(call: Call) -> int | None:
    """How many kernels the call starts on CUDA, as the profiler saw them; ``None`` if it saw nothing."""
    events = profiled(call, [ProfilerActivity.CPU, ProfilerActivity.CUDA])
    return sum("LaunchKernel" in event.name() for event in events) or None


def profiled(call: Call, activities: list[ProfilerActivity], profile_memory: bool = False) -> list[Any]:
    """What torch's profiler saw of a call."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise
    with profile(activities=activities, profile_memory=profile_memory) as record:
        call()
        if ProfilerActivity.CUDA in activities:
            torch.cuda.synchronize()
    kineto = record.profiler
    if kineto is None or kineto.kineto_results is None:
        raise RuntimeError("torch's profiler returned no record; nothing can be counted")
    return list(kineto.kineto_results.events())


def _cpu_peak(call: Call) -> int:
    events = profiled(call, [ProfilerActivity.CPU], profile_memory=True)
    changes = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
