"""The bytes that data-parallel training sends per step: dense embedding tables against tensorized ones.

    python -m rankfold.bench.allreduce                      # prints the tables
    python -m rankfold.bench.allreduce --json benchmarks/allreduce.json --page docs/explanation/distributed.md

Two processes train through DDP, and a communication hook counts what they all-reduce. Dense tables of
the full size do not fit, so they are modelled from small ones: every byte of a gradient is reduced.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from rankfold.config import TTM
from rankfold.grids import Grid, render, with_section, write_between_markers
from rankfold.surgery.tensorize import tensorize_
from rankfold.whole_files import check_writable, write_whole

# The five large tables of the paper's DLRM, 4,248,739,968 parameters.
ROWS = (10_131_227, 2_202_608, 8_351_593, 5_461_306, 7_046_547)
DIM = 128
MAX_RANK = 16
BATCH = 512  # examples per worker and step
SHRINK = 1_000  # the dense tables that are measured have so many times fewer rows
WORKERS = (2, 8, 64, 256)
FLOAT, INDEX = 4, 8  # bytes
COPIES = 4  # Adam keeps a parameter, its gradient and two moments


class Tables(nn.Module):
    """Embedding tables side by side, their rows summed."""

    def __init__(self, rows: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, DIM) for size in rows)

    def forward(self, index: Tensor) -> Tensor:
        return torch.stack([table(index[:, n]) for n, table in enumerate(self.tables)]).sum(0)  # (B, DIM)


# Measured -----------------------------------------------------------------------------------------------


def bytes_reduced(model: nn.Module, *inputs: Tensor) -> int:
    """What DDP all-reduces in one step of ``model``, in bytes; a collective call."""
    counted: list[int] = []

    def count(state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations, and takes no strings
        state.append(bucket.buffer().nbytes)
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(counted, count)
    ddp(*inputs).square().mean().backward()
    return sum(counted)


def measure() -> dict[str, int]:
    """Bytes per step of small dense tables and of tensorized tables of the full size, in this process group."""
    small = [rows // SHRINK for rows in ROWS]
    with torch.device("meta"):
        full = Tables(ROWS)
    tensorized = tensorize_(full, TTM(max_rank=MAX_RANK))
    return {
        "dense_small": bytes_reduced(Tables(small), _indices(small)),
        "tensorized": bytes_reduced(tensorized, _indices(ROWS)),
    }


def _indices(rows: Sequence[int]) -> Tensor:
    return torch.stack([torch.randint(size, (BATCH,)) for size in rows], 1)  # (B, tables)


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = measure()
    Path(folder, str(rank)).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # torch's destructors of DDP and gloo sometimes wait for each other for ever


# Modelled -----------------------------------------------------------------------------------------------


def ring(payload: int, workers: int) -> float:
    """Bytes each worker sends in a ring all-reduce: ``2 (p − 1) / p`` times the payload."""
    return 2 * (workers - 1) / workers * payload


def sparse_gather(workers: int) -> float:
    """Bytes each worker receives when replicas exchange only the rows they touched, with their indices."""
    return (workers - 1) * BATCH * len(ROWS) * (DIM * FLOAT + INDEX)


def sharded_exchange(workers: int) -> float:
    """Bytes each worker sends when tables are spread: indices out, rows back, gradients out."""
    away = (workers - 1) / workers
    return away * BATCH * len(ROWS) * (2 * DIM * FLOAT + INDEX)


def record(measured: dict[str, int]) -> dict[str, Any]:
    """All figures of the page."""
    small = sum(rows // SHRINK for rows in ROWS) * DIM
    dense = sum(ROWS) * DIM
    return {
        "settings": {"rows": ROWS, "dim": DIM, "max_rank": MAX_RANK, "batch_per_worker": BATCH, "format": "TTM"},
        "measured": {
            "processes": 2,
            "dense_small": {"parameters": small, "bytes": measured["dense_small"]},
            "tensorized": {"parameters": measured["tensorized"] // FLOAT, "bytes": measured["tensorized"]},
        },
        "modelled": {
            "dense": {"parameters": dense, "bytes": round(measured["dense_small"] / small * dense)},
            "workers": [_at(workers, round(measured["dense_small"] / small * dense), measured) for workers in WORKERS],
        },
        "memory": {"dense": COPIES * FLOAT * dense, "tensorized": COPIES * measured["tensorized"]},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }


def _at(workers: int, dense: int, measured: dict[str, int]) -> dict[str, float]:
    return {
        "workers": workers,
        "dense": ring(dense, workers),
        "sparse": sparse_gather(workers),
        "sharded": sharded_exchange(workers),
        "tensorized": ring(measured["tensorized"], workers),
    }


# Shown --------------------------------------------------------------------------------------------------


def page_section(figures: dict[str, Any]) -> str:
    """The generated part of the page, as Markdown."""
    measured, modelled, memory = figures["measured"], figures["modelled"], figures["memory"]
    small, factors, dense = measured["dense_small"], measured["tensorized"], modelled["dense"]
    once = Grid(
        "All-reduced per step, one copy",
        ("tables", "how", "parameters", "bytes"),
        (
            ("dense, a thousandth of the rows", "measured", f"{small['parameters']:,}", _size(small["bytes"])),
            ("dense", "modelled", f"{dense['parameters']:,}", _size(dense["bytes"])),
            ("tensorized", "measured", f"{factors['parameters']:,}", _size(factors["bytes"])),
        ),
    )
    lines = [(str(row["workers"]), *(_size(row[name]) for name in _WAYS)) for row in modelled["workers"]]
    sent = Grid("Per worker and step", ("workers", *_WAYS.values()), tuple(lines), labels=1)
    kept = Grid(
        "Memory per worker: parameters, gradients and Adam's two moments",
        ("dense replica", "tensorized replica"),
        ((_size(memory["dense"]), _size(memory["tensorized"])),),
        labels=0,
    )
    return f"{_setting(figures['settings'])}\n\n{render([once, sent, kept], 'markdown')}"


def _setting(settings: dict[str, Any]) -> str:
    """What the figures depend on: the batch those of touched rows and of sharded tables, the rank the tensorized."""
    return (
        f"{len(settings['rows'])} tables of {sum(settings['rows']):,} rows in all, {settings['dim']} wide, in float32. "
        f"Tensorized: {settings['format']} of maximum rank {settings['max_rank']}, before any rank is cut. "
        f"Every worker looks up one row of each table for {settings['batch_per_worker']} examples in a step."
    )


_WAYS = {
    "dense": "dense, all-reduce",
    "sparse": "dense, touched rows only",
    "sharded": "sharded, all-to-all",
    "tensorized": "tensorized, all-reduce",
}


def _size(count: float) -> str:
    """Three digits.

    >>> _size(4_264_960), _size(999_600)
    ('4.26 MB', '1 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 999.5:  # what is rounded to 1000 is 1 of the next unit
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def main() -> None:
    """Measure, and write the figures into a file and on a page, or print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--page", type=Path, help="Markdown page with the section allreduce")
    options = parser.parse_args()
    if complaint := _complaint(options.json, options.page):
        parser.exit(2, f"error: {complaint}\n")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_worker, (folder,), nprocs=2)
        measured = json.loads(Path(folder, "0").read_text(encoding="utf-8"))
    figures = record(measured)
    if options.json is not None:
        write_whole(options.json, json.dumps(figures, indent=2) + "\n")
    if options.page is not None:
        write_between_markers(options.page, "allreduce", page_section(figures))
    if options.json is None and options.page is None:
        print(page_section(figures))


def _complaint(json_file: Path | None, page: Path | None) -> str | None:
    """Why the figures could not be written in the end, so that nobody measures in vain."""
    if json_file is not None:
        try:
            check_writable(json_file)
        except OSError as error:
            return f"--json: {error}"
    if page is None:
        return None
    try:
        with_section(page.read_text(encoding="utf-8"), "allreduce", "", str(page))
    except (OSError, UnicodeDecodeError) as error:
        return f"--page: cannot read {page}: {error}"
    except ValueError as error:
        return "--page: " + " ".join(str(error).splitlines())
    return None


if __name__ == "__main__":
    main()
