"""Where a result comes from: the code, the machine, the memory it took."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import rankfold

COMMIT_VARIABLE = "RANKFOLD_COMMIT"


def provenance(device: torch.device) -> dict[str, Any]:
    """Commit, versions and device, as plain values."""
    return {
        "commit": git_commit(Path(rankfold.__file__).parent),
        "versions": {
            "rankfold": rankfold.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "device": {"type": device.type, "name": device_name(device), "threads": torch.get_num_threads()},
    }


def git_commit(folder: Path) -> dict[str, Any] | None:
    """The commit of the checkout that ``folder`` is in, and whether tracked files differ from it.

    A copy of the files, with an older history or none, has the commit that ``RANKFOLD_COMMIT`` names.
    """
    if named := os.environ.get(COMMIT_VARIABLE):
        return {"hash": named, "dirty": None}
    commands = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        head, changes = (
            subprocess.run(
                ["git", "-C", str(folder), *command], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"hash": head, "dirty": bool(changes)}


def available_cores() -> int:
    """Those that this process may use, where the system says so, else those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """Of the GPU or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def _processor() -> str:
    """The model, where Linux says it, else at least the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, models), "") or platform.processor() or platform.machine()


def start_measuring_memory(device: torch.device) -> None:
    """Forget the peak of earlier runs in this process, where that is possible."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> dict[str, int]:
    """Peak bytes: what torch allocated on the GPU in this run, and the largest this process ever was."""
    peak = {"process_bytes": peak_resident_set()}
    if device.type == "cuda":
        peak["device_bytes"] = torch.cuda.max_memory_allocated(device)
    return peak


def peak_resident_set() -> int:
    """The most bytes of memory that this process ever had.

    Linux lets ``ru_maxrss`` of a new process begin with the peak of its parent; ``VmHWM`` is that of the process alone.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
