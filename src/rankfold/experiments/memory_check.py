"""Whether the memory of a device is enough for the dense networks that runs would train.

A dense network that is too large for most machines is trained by the rows that its examples have, with all of it kept
aside: how many those are is known once the data are there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import torch
from torch import nn

from rankfold.experiments.results import Run
from rankfold.experiments.task import Task

_BYTES = 4  # of a float32


def adam_bytes(parameters: int) -> int:
    """What Adam keeps: every parameter, its gradient and two moments, in float32."""
    return 4 * _BYTES * parameters


def check_memory(runs: Sequence[Run], task: Task, device: torch.device) -> None:
    """Refuse runs that train a dense network which cannot fit, before the first of them takes all memory there is."""
    dense = {run.row: run.spec for run in runs if run.spec.method == "dense" or run.spec.compresses}
    if not task.too_large or not dense:
        return
    count = count_parameters(task.network_on_meta())
    decays = any(spec.weight_decay for spec in dense.values())
    needed, there = adam_bytes(count) if decays else _BYTES * count, memory_of(device)
    if needed > there:
        others = [row for row in dict.fromkeys(run.row for run in runs) if row not in dense]
        remedy = f"name the rows to run: {' '.join(others)}" if others else "run them on another --device"
        raise ValueError(
            f"rows that train the dense network ({', '.join(dense)}) need at least {needed / 1e9:.0f} GB for its "
            f"{count:,} parameters, and {device} has {there / 1e9:.0f} GB; {remedy}"
        )


def check_memory_in_use(model: nn.Module, whole: int, device: torch.device) -> None:
    """Refuse to train ``model``, which has what is needed of ``whole`` parameters, if there is no room for Adam."""
    trained = count_parameters(model)
    needed = adam_bytes(trained) + (_BYTES * whole if trained < whole else 0)
    if needed > (there := memory_of(device)):
        raise ValueError(
            f"training the dense network needs {needed / 1e9:.0f} GB for the {trained:,} of its {whole:,} parameters "
            f"that these examples use, with Adam, and {device} has {there / 1e9:.0f} GB; run it on another --device"
        )


def count_parameters(model: nn.Module) -> int:
    """Of the network as it stands, dense or not."""
    return sum(parameter.numel() for parameter in model.parameters())


def memory_of(device: torch.device) -> float:
    """All bytes that the device has; infinite if it does not say."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
