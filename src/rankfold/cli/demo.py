"""``rankfold demo``: train the demonstration, show it, and leave its results in a folder."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.live import Live
from torch import nn

from rankfold.architecture import Architecture
from rankfold.checkpoint import save
from rankfold.cli import train_options as o
from rankfold.cli.demo_plot import plot_ranks
from rankfold.cli.demo_screen import progress_lines, result_table, screen
from rankfold.cli.stopping import above_cursor, exit_code, stop_requests
from rankfold.cli.writing import check_folder, writing
from rankfold.counts import accounting
from rankfold.data.digits import Digits, load_digits
from rankfold.demo import DemoRun, Settings, accuracy, classifier, train_dense
from rankfold.experiments.provenance import provenance
from rankfold.experiments.results import write_record
from rankfold.predictive import predict
from rankfold.reporting.run import DEMO_FILE


def demo(
    format: o.Format = Settings.format,
    prior: o.Prior = Settings.prior,
    kl_weight: Annotated[
        float, typer.Option(min=0.0, help="The one trade-off between size and fit: larger means smaller models.")
    ] = Settings.kl_weight,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = Settings.epochs,
    seed: o.Seed = Settings.seed,
    out: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            help="Folder for the model, the plot and the figures; an earlier demo there is overwritten.",
        ),
    ] = Path("runs/demo"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the final table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per epoch, and one at the end.")] = False,
) -> None:
    """Train a digit classifier whose weights exist only as small factors, and watch it find their ranks.

    The network (64-256-256-10) learns scikit-learn's 1,797 handwritten digits. Its layers start at a
    generous rank. While it trains, ranks that the data do not support carry no information, and they
    are cut out for good: the factors get smaller, and so do the optimizer's states. At first there is a
    warm-up, in which the prior gains its weight (β rises to 3/2 of the KL weight) and nothing is cut.

    Ctrl-C stops after the current epoch and keeps what was done. Before the first epoch, while the dense network is
    trained for comparison, and pressed twice, it stops at once, and there is nothing to keep.
    """
    console = Console(quiet=as_json)
    if not math.isfinite(kl_weight):
        raise typer.BadParameter(f"must be a finite number, got {kl_weight}", param_hint="--kl-weight")
    _check_free(out)
    check_folder(out)
    settings = Settings(format, prior, kl_weight, epochs, seed)
    torch.set_num_threads(1)  # the matrices are small: one thread is faster than several
    data = load_digits()
    try:
        with console.status("training the dense network, for comparison"):
            dense = train_dense(settings, data)
        run = DemoRun(settings, data)
        requests = _train(run, console, quiet, as_json)
    except KeyboardInterrupt:
        _say_nothing_kept(console, as_json)
        raise typer.Exit(exit_code([])) from None
    figures = _figures(run, dense, data, bool(requests))
    with writing(out):
        _leave_results(run, figures, out)
    if as_json:
        kept = {key: value for key, value in figures.items() if key != "history"}
        _say({"event": "result", "folder": str(out), **kept})
    console.print(result_table(figures))
    _say_where(console, run, out)
    if requests:
        raise typer.Exit(exit_code(requests))


def _check_free(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier demo."""
    if out.is_dir() and any(out.iterdir()) and not (out / DEMO_FILE).exists():
        raise typer.BadParameter(f"{out} holds something that is no demo; choose another folder", param_hint="--out")


def _say(event: dict[str, Any]) -> None:
    typer.echo(json.dumps(event, ensure_ascii=False))


def _say_nothing_kept(console: Console, as_json: bool) -> None:
    if as_json:
        _say({"event": "stopped", "kept": False})
    console.print("Stopped at once; nothing was kept yet.", style="yellow")


def _train(run: DemoRun, console: Console, quiet: bool, as_json: bool) -> list[int]:
    """Train to the end, or until Ctrl-C; the signals to stop that have come before the end."""
    every = max(1, run.settings.epochs // 10)
    live = console.is_terminal and not quiet
    with stop_requests() as requests, Live(console=console, transient=False, auto_refresh=False) as display:
        for snapshot in run.train():
            if as_json and not quiet:
                _say({"event": "epoch", **asdict(snapshot)})
            if live:
                display.update(above_cursor(screen(run)), refresh=True)
            elif not quiet and snapshot.epoch % every == 0:
                console.print(progress_lines(run))
            if requests:
                return requests
    return []


def _figures(run: DemoRun, dense: nn.Module, data: Digits, stopped: bool) -> dict[str, Any]:
    """Everything the run found, as plain values."""
    counts = accounting(run.model).total
    probabilities, spread = predict(run.model, data.test_images, transform=lambda y: y.softmax(1), seed=0)
    right = probabilities.argmax(1) == data.test_labels
    top_spread = spread.gather(1, probabilities.argmax(1, keepdim=True)).squeeze(1)
    return {
        "settings": asdict(run.settings),
        "stopped_early": stopped,
        "epochs_done": len(run.history),
        "seconds": run.history[-1].seconds,
        "dense": {
            "parameters": counts.dense_parameters,
            "bytes": counts.dense_bytes,
            "accuracy": accuracy(dense, data),
        },
        "before": {
            "parameters": run.before.final_parameters,
            "bytes": run.before.final_bytes,
        },
        "after": {
            "parameters": counts.final_parameters,
            "bytes": counts.final_bytes,
            "accuracy": run.history[-1].accuracy,
            "accuracy_of_32_samples": float(right.float().mean()),
        },
        "spread_where_right": _mean_or_none(top_spread[right]),
        "spread_where_wrong": _mean_or_none(top_spread[~right]),
        "history": [asdict(snapshot) for snapshot in run.history],
        "data": {"num_train": len(data.train_labels), "num_evaluation": len(data.test_labels)},
        **provenance(data.test_images.device),
    }


def _mean_or_none(values: torch.Tensor) -> float | None:
    return float(values.mean()) if values.numel() else None


def _leave_results(run: DemoRun, figures: dict[str, Any], out: Path) -> None:
    # the figures first: a folder that has them may be written to again, should the disk be full
    write_record(out / DEMO_FILE, figures)
    save(run.model, out / "model")
    Architecture.of(classifier, [run.data.test_images]).write(out / "model")
    plot_ranks(run, out / "ranks.png")


def _say_where(console: Console, run: DemoRun, out: Path) -> None:
    done, wanted = len(run.history), run.settings.epochs
    if done < wanted:
        console.print(f"[yellow]Stopped after {done} of {wanted} epochs; what was learned until then is kept.[/]")
    console.print(f"The model is in [bold]{out}/model[/], its ranks over training in [bold]{out}/ranks.png[/],")
    console.print(f"all figures in [bold]{out}/demo.json[/].")
