"""Whether the memory of a device is enough for the dense networks that runs would train."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch

from rankfold.experiments.results import Run
from rankfold.experiments.task import Task


def adam_bytes(parameters: int) -> int:
    """What Adam keeps: every parameter, its gradient and two moments, in float32."""
    return 4 * 4 * parameters


def check_memory(runs: Sequence[Run], task: Task, device: torch.device) -> None:
    """Refuse runs that train a dense network which cannot fit, before the first of them takes all memory there is."""
    dense = dict.fromkeys(run.row for run in runs if run.spec.method == "dense" or run.spec.compresses)
    if not task.too_large or not dense:
        return
    count = sum(parameter.numel() for parameter in task.network().parameters())
    needed, there = adam_bytes(count), memory_of(device)
    if needed > there:
        others = [row for row in dict.fromkeys(run.row for run in runs) if row not in dense]
        remedy = f"name the rows to run: {' '.join(others)}" if others else "run them on another --device"
        raise ValueError(
            f"rows that train the dense network ({', '.join(dense)}) need {needed / 1e9:.0f} GB for its {count:,} "
            f"parameters with Adam, and {device} has {there / 1e9:.0f} GB; {remedy}"
        )


def memory_of(device: torch.device) -> float:
    """All bytes that the device has; infinite if it does not say."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
