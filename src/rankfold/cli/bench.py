"""``rankfold bench``: measure, print, and keep the figures."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text

import rankfold
from rankfold.bench.cases import Sizes, all_cases
from rankfold.bench.layers import Row, run_case
from rankfold.bench.tensorly_peer import MISSING, installed_version
from rankfold.cli.bench_table import case_table, summary_table

FILE_WIDTH = 160  # more than the widest table needs

bench = typer.Typer(help="Time layers side by side.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Time layers side by side."""


@bench.command()
def layers(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's own choice if left out.")] = None,
    repeat: Annotated[int, typer.Option(min=3, help="Rounds; in each of them every layer is called once.")] = 15,
    only: Annotated[str, typer.Option(help="Run the cases with this in their name, such as Conv.")] = "",
    batch: Annotated[
        int | None, typer.Option(min=1, help="Batch of the large linear layer; 512 on a CPU, 4096 on CUDA.")
    ] = None,
    dense_table: Annotated[
        bool, typer.Option("--dense-table", help="Time the dense 5 GB embedding table on the CPU too.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Write all figures to this file, after every case.")
    ] = None,
) -> None:
    """Time dense torch.nn, tensorly-torch and rankfold on the same layers, in one run.

    *forward* is inference: eval mode, no gradients. *forward + backward* is a training step without the
    optimizer. Both are medians with quartiles over rounds in which all layers take turns; a narrow
    terminal shows the medians alone. *memory* is the peak of what torch allocated during forward +
    backward, beyond parameters and input: output, intermediates and gradients.

    tensorly-torch takes part if it is installed: pip install 'rankfold[bench]'.
    """
    chosen = _device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    cases = all_cases(Sizes.for_device(chosen, batch), dense_table or chosen.type == "cuda")
    cases = [case for case in cases if only.lower() in case.name.lower()]
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    if not cases:
        raise typer.BadParameter(f"no case has {only!r} in its name; leave --only out to run all", param_hint="--only")
    console = _console()
    rows: list[Row] = []
    for case in cases:
        with console.status(case.name):
            rows += run_case(case, chosen, repeat)
        console.print(case_table(case.name, [row for row in rows if row.case == case.name], console))
        if json_file is not None:  # after every case, so that a run cut short keeps what it measured
            _write(json_file, _record(rows, chosen, repeat))
    console.print(Text(MISSING) if installed_version() is None else summary_table(rows))


def _console() -> Console:
    """Where to print; a file or a pipe has room for every line, whatever the width of the terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, FILE_WIDTH))


def _write(file: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is no torch device; use cpu or cuda", param_hint="--device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no CUDA device on this machine; use cpu", param_hint="--device")
    return device


def _record(rows: list[Row], device: torch.device, repeat: int) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": {"type": device.type, "name": name, "threads": torch.get_num_threads()},
        "repeat": repeat,
        "versions": {
            "rankfold": rankfold.__version__,
            "torch": torch.__version__,
            "tensorly-torch": installed_version(),
            "python": platform.python_version(),
        },
        "rows": [asdict(row) for row in rows],
    }
