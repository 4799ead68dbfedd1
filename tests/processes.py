"""Running a test in several processes that talk through gloo, with a file to meet at instead of a port."""

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
_PATIENCE_S = 60


def run_in_processes(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """What ``work(rank)`` returns in each of the processes; it must be a function of a module."""
    context = mp.get_context("spawn")
    processes = [context.Process(target=_run, args=(work, rank, str(folder)), daemon=True) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_PATIENCE_S)
    for process in processes:
        if process.exitcode is None:
            process.terminate()
    failures = [file.read_text() for file in sorted(folder.glob("failure-*"))]
    assert not failures, "\n".join(failures)
    assert [process.exitcode for process in processes] == [0] * WORLD
    return [torch.load(folder / f"result-{rank}", weights_only=True) for rank in range(WORLD)]


def _run(work: Callable[[int], Any], rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    status = 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
        torch.save(work(rank), f"{folder}/result-{rank}")
        dist.barrier()
        status = 0
    except BaseException:
        Path(folder, f"failure-{rank}").write_text(f"process {rank}:\n{traceback.format_exc()}")
    finally:
        # torch's own destructors of DDP and gloo sometimes wait for each other for ever
        os._exit(status)
