"""``rankfold train``: a model for one's own data, from its first step made of factors that find their ranks."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.live import Live

from rankfold.cli import train_options as o
from rankfold.cli.device import Device, chosen_device
from rankfold.cli.reading import failure, refusing
from rankfold.cli.saying import Unheard, say_no_more, saying
from rankfold.cli.stopping import above_cursor, exit_code, nothing_written_yet, patience, stop_requests
from rankfold.cli.train_output import Output
from rankfold.cli.train_screen import hints, opening, result_table
from rankfold.cli.train_wording import how_to_go_on, is_finished, under_way, what_is_kept, where_it_goes_on, why
from rankfold.cli.writing import check_folder
from rankfold.experiments.progress import StopAsked
from rankfold.health import NumericalFault
from rankfold.jobs.dense_twin import check_has_twin
from rankfold.jobs.fingerprint import is_same
from rankfold.jobs.job import JOB_FILE, Job, check_not_failed, learn_again
from rankfold.jobs.preparation import counted
from rankfold.jobs.running import JobRun, Record, Watcher
from rankfold.reporting.run import RUN_FILE


def train(
    context: typer.Context,
    data: o.Data,
    model: o.Model = None,
    target: o.Target = None,
    task: o.Task = None,
    categorical: o.Categorical = None,
    ignore: o.Ignore = None,
    image_size: o.ImageSize = None,
    format: o.Format = "ttm",
    prior: o.Prior = "log-uniform",
    kl_weight: o.KlWeight = None,
    max_rank: o.MaxRank = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    lr: o.LearningRate = None,
    seed: o.Seed = 0,
    validation_share: o.ValidationShare = 0.1,
    dense: o.Dense = False,
    device: Device = "",
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder of the run; runs/NAME after the data if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the final figures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per epoch, and one at the end.")] = False,
) -> None:
    """Train a model on your own data; its weights are small factors that find their ranks.

    **What it reads**

    - a folder of images, one sub-folder per class: `rankfold train photos/`
    - a CSV or Parquet table: `rankfold train houses.csv --target price`
    - a text file, each line a label, a tab and a text: `rankfold train reviews.txt`
    - clicks in the Criteo format, 40 fields with tabs between them: `rankfold train train.txt --model dlrm`

    **What it leaves** in `runs/NAME`: all figures in `run.json`, the model in `model/`, what predicting needs of the
    data in `preprocessing.json`, TensorBoard events in `events/` if tensorboardX is installed. Then:

    - `rankfold predict runs/photos new-photos/` for new data
    - `rankfold report runs/photos` for a page about the run
    - `rankfold export runs/photos` for an ONNX file

    A tenth of the data is held back; the scores at the end are of those examples, and nothing is chosen by them.
    Ctrl-C stops between two steps and keeps a checkpoint, from which `--resume` goes on; a second Ctrl-C stops at
    once, and the last checkpoint stays: there is one about every 20 seconds, within a long epoch every 5 minutes.
    SIGTERM does the same, and a terminal that is closed the first.

    Exit codes: 0 done, 1 training failed, 2 the request or the data are wrong, 130 stopped by Ctrl-C, 143 by SIGTERM,
    129 by a terminal that is closed.
    """
    folder, chosen = out or Path("runs") / _run_name(data), chosen_device(device)
    with refusing(), nothing_written_yet():
        import_module("torchmetrics")  # what the end needs is missed at the start
        run = _resumed(context, data, folder, chosen) if resume else _new(context.params, data, folder, chosen)
    check_folder(folder)
    try:
        _train(Output(run, quiet, as_json), resume)
    except Unheard as error:
        say_no_more()
        raise failure(f"{error}; {how_to_go_on(run)}") from error


# What to train ----------------------------------------------------------------------------------------


def _new(given: dict[str, Any], data: Path, folder: Path, device: torch.device) -> JobRun:
    """A run in a folder of its own; a mistake in the options or the data is named before a folder that is taken."""
    job, learned = o.asked_for(given, data)
    if given["dense"]:
        check_has_twin(learned.preparation, job.model)
    _check_free(folder)
    return JobRun(replace(job, dense=given["dense"]), learned, folder, device)


def _check_free(folder: Path) -> None:
    """Refuse a folder that holds a run, or anything else."""
    check_not_failed(folder)
    other = f"choose another folder with --out, such as --out {folder}-2"
    if (folder / RUN_FILE).exists():
        raise ValueError(f"{folder} holds a finished run of {Job.read(folder).data}; {other}")
    if (folder / JOB_FILE).exists():
        job = Job.read(folder)
        raise ValueError(
            f"{folder} holds an unfinished run of {job.data}; go on with: {job.resume_command(folder)}; or {other}"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds files that are no run; choose another folder with --out")


def _resumed(context: typer.Context, data: Path, folder: Path, device: torch.device) -> JobRun:
    """The run that is in the folder; the data must be the same, and so must all options that are given."""
    if not folder.exists():
        raise ValueError(
            f"there is no run in {folder} to go on with; leave --resume out to start it, or name its --out"
        )
    check_not_failed(folder)
    kept_job = Job.read(folder)
    job, began_with = replace(kept_job, data=data), "it" if kept_job.data == data else kept_job.data
    if (folder / RUN_FILE).exists():
        raise ValueError(f"the run in {folder} is finished; train another one in another folder, with --out")
    kept = {
        "model": job.model,
        **{name: getattr(job.spec, name) for name in o.SPEC_OPTIONS},
        **{name: getattr(job.options, field) for name, field in o.DATA_OPTIONS.items()},
    }
    for name, value in kept.items():
        wanted = o.plain(context.params[name])
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and wanted != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is {value} in {folder}, got {wanted}; leave it out, or start anew with --out")
    learned = learn_again(data, kept_job, folder)
    if not is_same(job.fingerprint, learned):
        raise ValueError(f"{data} is not what {began_with} was when the run in {folder} began; start anew with --out")
    if context.params["dense"]:  # nothing speaks against deciding it later
        check_has_twin(learned.preparation, job.model)
        job = replace(job, dense=True)
    return JobRun(job, learned, folder, device)


def _run_name(data: Path) -> str:
    """A folder's name after the data.

    >>> _run_name(Path("data/My houses.csv")), _run_name(Path("photos/"))
    ('my-houses', 'photos')
    """
    return re.sub(r"[^a-z0-9]+", "-", data.resolve().name.split(".")[0].lower()).strip("-") or "run"


# Training and what is shown of it ---------------------------------------------------------------------


def _train(output: Output, resumed: bool) -> None:
    run, console = output.run, output.console
    speaks = not (output.quiet or output.as_json)
    if speaks:
        console.print(opening(run), markup=False, highlight=False, soft_wrap=not console.is_terminal)
        if resumed:
            console.print(where_it_goes_on(run), highlight=False)
    live = speaks and console.is_terminal
    with stop_requests(patience if live else lambda number: f"{patience(number)}\n") as requests:
        try:
            result = _watched(output, requests, live)
        except Unheard:
            raise  # asks to stop too, and is told in other words
        except (StopAsked, KeyboardInterrupt) as stop:
            _say_stopped(output, stop)
            raise typer.Exit(exit_code(requests)) from None
        except (NumericalFault, OSError) as error:
            raise failure(why(run, error)) from error
    _say_result(output, result)


def _watched(output: Output, requests: list[int], live: bool) -> Record:
    screen = Live(above_cursor(under_way(output.run)), console=output.console, auto_refresh=False) if live else None
    shown = replace(output, live=screen)
    with screen or nullcontext():
        return output.run.train(Watcher(shown.show, shown.show_moment, lambda: bool(requests), shown.show_dense))


@saying()
def _say_stopped(output: Output, stop: BaseException) -> None:
    run, console = output.run, output.console
    if output.as_json:
        done = (len(run.history), 0) if is_finished(run) else run.checkpoint
        epoch, step = done or (0, 0)  # steps of the epoch after that
        resume = None if is_finished(run) else run.resume_command
        typer.echo(json.dumps({"event": "stopped", "epoch": epoch, "step": step, "resume": resume}))
        return
    console.print(what_is_kept(run, stop), style="yellow", markup=False, highlight=False, soft_wrap=True)
    if not is_finished(run):
        console.print(f"Go on with: {run.resume_command}", markup=False, highlight=False, soft_wrap=True)


@saying()
def _say_result(output: Output, result: Record) -> None:
    run, console = output.run, output.console
    if output.as_json:
        kept = {key: value for key, value in result.items() if key != "history"}
        typer.echo(json.dumps({"event": "result", "folder": str(run.folder), **kept}, ensure_ascii=False))
        return
    console.print(result_table(result))
    for hint in hints(result):
        console.print(hint, style="yellow", markup=False, highlight=False)
    seconds = result["timing"]["training_seconds"]
    console.print(
        f"{counted(len(run.history), 'epoch')} in {seconds:.0f} s; all of it is in [bold]{run.folder}[/].",
        highlight=False,
    )
    console.print(f"New data: rankfold predict {run.folder} DATA", markup=False, highlight=False, soft_wrap=True)
