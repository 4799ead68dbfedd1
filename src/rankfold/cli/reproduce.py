"""``rankfold reproduce``: run the experiments of a table that have no result yet."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.live import Live

from rankfold.cli.device import Device, chosen_device
from rankfold.cli.kept_results import command_to_show, folder_of
from rankfold.cli.reproduce_screen import KEPT_AT_ONCE, Board, final_lines
from rankfold.cli.saying import Unheard, say_no_more, saying
from rankfold.cli.stopping import exit_code, nothing_written_yet, patience, stop_at_once, stop_requests
from rankfold.cli.writing import check_folder
from rankfold.data.errors import DamagedData, MissingData
from rankfold.experiments.memory_check import check_memory
from rankfold.experiments.planning import Request, Schedule, schedule
from rankfold.experiments.progress import StopAsked
from rankfold.experiments.registry import task_named
from rankfold.experiments.results import Places
from rankfold.experiments.run import load_data
from rankfold.experiments.runner import Event, execute
from rankfold.experiments.spec import task_name

FAILED = 1
_GO_ON = "Give the same command again to go on."


def reproduce(
    table: Annotated[str, typer.Argument(help="A folder of experiments, such as mnist.")],
    rows: Annotated[list[str] | None, typer.Argument(help="Rows such as ttm-ard-lu; all of the table if none.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs per row, with seeds 0, 1, …; 3, or 1 with --quick.")
    ] = None,
    device: Device = "",
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side, each in a process of its own.")] = 1,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets, or Criteo's file; RANKFOLD_DATA or ./data if none.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="At most 10 epochs: the trend. On a CPU that is minutes, for cifar10 and imdb hours.",
        ),
    ] = False,
    validation: Annotated[
        bool, typer.Option("--validation", help="Hold training examples back and look at those, not at the test set.")
    ] = False,
    experiments: Annotated[Path, typer.Option(help="Folder of the tables.")] = Places.experiments,
    results: Annotated[Path, typer.Option(help="Folder for the result files.")] = Places.results,
    runs: Annotated[Path, typer.Option(help="Folder for checkpoints and trained models.")] = Places.runs,
    verify: Annotated[bool, typer.Option(help="Insist on the published data, by checksum.")] = True,
) -> None:
    """Run the rows of a table that have no result yet, and the rows they need.

    One run writes one file, `results/<table>/<row>-seed<k>.json`. Ctrl-C stops between two steps and
    keeps a checkpoint; the same command goes on from there. Ctrl-C again stops at once. Results of `--quick`,
    `--validation` and other data than the published ones are kept in folders of their own. The last line
    is the `rankfold table` command that shows them.

    Exit codes: 0 all runs have results, 1 some failed, 2 the request is wrong, 130 stopped by Ctrl-C,
    143 by SIGTERM and 129 by a terminal that is closed, which do the same.
    """
    console = Console()
    chosen = chosen_device(device)
    places = Places(experiments, results, runs, data, verify)
    with nothing_written_yet():
        request = Request(table, rows or [], seeds or (1 if quick else 3), quick, validation, _edition(table, places))
        plan = _schedule(request, places, chosen)
    board = Board(plan)
    try:
        if plan.waiting:
            if needs := task_named(plan.waiting[0].task_name).needs:
                console.print(needs, highlight=False)
            check_folder(results, "--results")
            check_folder(runs, "--runs")
            with stop_at_once() as board.stop_requests:
                _check_files(plan, places)
            _execute(plan, request.places(places), chosen, jobs, board, console)
    except Unheard as error:
        say_no_more()
        typer.echo(f"error: {error}{board.kept} {_GO_ON}", err=True)
        raise typer.Exit(FAILED) from error
    except (StopAsked, KeyboardInterrupt) as stop:
        kept = board.kept if isinstance(stop, StopAsked) else KEPT_AT_ONCE
        console.print(f"[yellow]Stopped{kept}[/] {_GO_ON}", highlight=False)
        raise typer.Exit(exit_code(board.stop_requests)) from None
    for line in final_lines(plan, board, folder_of(request, places), command_to_show(request, places)):
        console.print(line, highlight=False, soft_wrap=True)
    if plan.failures:
        raise typer.Exit(FAILED)


def _edition(table: str, places: Places) -> str | None:
    """What sets the data apart from the published ones; those that nobody has named may be missing."""
    try:
        task = task_named(task_name(places.experiments / table))
        return None if task.edition is None else task.edition(places.data, places.verify)
    except (MissingData, DamagedData) as error:
        if places.data is None:
            return None
        raise typer.BadParameter(str(error)) from error
    except (ValueError, FileNotFoundError):
        return None  # there is no such table, which is said when its rows are looked for


def _schedule(request: Request, places: Places, device: torch.device) -> Schedule:
    """The plan, or an error about the request."""
    try:
        plan = schedule(request, places)
        if plan.waiting:  # what would stop every run is found before the first
            import_module("torchmetrics")
            task = task_named(plan.waiting[0].task_name)
            if task.find is not None:
                task.find(places.data)
            check_memory(plan.waiting, task, device)
    except (ValueError, FileNotFoundError, MissingData, DamagedData) as error:
        raise typer.BadParameter(str(error)) from error
    return plan


def _check_files(plan: Schedule, places: Places) -> None:
    """Find before the first run what is wrong with files of anybody's own. On the CPU they are only opened."""
    if task_named(plan.waiting[0].task_name).edition is None:
        return
    try:
        for run in plan.waiting:
            load_data(run, places, torch.device("cpu"))
    except (ValueError, OSError, MissingData, DamagedData) as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error


def _execute(plan: Schedule, places: Places, device: torch.device, jobs: int, board: Board, console: Console) -> None:
    live = Live(board, console=console, refresh_per_second=4) if console.is_terminal else None

    def report(event: Event) -> None:
        line = board.note(event, live=live is not None)
        if line is not None:
            with saying():
                console.print(line, highlight=False, soft_wrap=True)
        if board.stop_requests and not event.ends:
            raise StopAsked

    def notice(number: int) -> str:
        return "" if live else f"{patience(number)}\n"

    with stop_requests(notice) as board.stop_requests, live or nullcontext():
        execute(plan, places, device, jobs, report)
