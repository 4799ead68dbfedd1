"""``rankfold predict``: what a trained model says about new data, and how sure it is."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from rankfold.cli.device import Device, chosen_device
from rankfold.cli.reading import refusal, refusing
from rankfold.cli.train_options import MOST_SEED
from rankfold.cli.writing import check_folder, writing
from rankfold.data.errors import DataError
from rankfold.jobs.predicting import FinishedRun, Predictions
from rankfold.jobs.preparation import counted
from rankfold.jobs.targets import Quantity
from rankfold.whole_files import write_whole

_STDOUT = Path("-")


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run, as `rankfold train` leaves it.")],
    data: Annotated[
        Path, typer.Argument(readable=False, help="New data in the form that was trained on; labels may be missing.")
    ],
    samples: Annotated[
        int, typer.Option(min=0, help="Draws of the weights; 0 takes their mean, which has no spread.")
    ] = 32,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The CSV file to write; - prints it.")] = Path(
        "predictions.csv"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if there is one.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="The same seed gives the same draws.")] = 0,
    device: Device = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Predict for new data: class probabilities with their spread, or mean and standard deviation of a number.

    `rankfold predict runs/photos new-photos/ --out new.csv`

    New data have the form of those that were trained on, and labels may be missing: an image, a folder of
    images without sub-folders, a table without the target's column, lines of text without label and tab, Criteo lines
    of 39 fields. If there are labels, the predictions are scored.

    Columns of the file, for classes: `prediction`, its `probability`, and `std`, by how much that varies over draws
    of the weights; then both for every class. For a number: `mean`; `std`, by how much a new value is expected to
    differ from it; `std_of_weights`, the part of it that more data would remove. With `--samples 0` the weights do not
    vary: probabilities have no `std`, and a number has no `std_of_weights`. Where data have categories, `unknown`
    counts the values of a row that training did not see, or saw only once.

    Exit codes: 0 written, 2 the request or the data are wrong.
    """
    import_module("torchmetrics")  # for the scores
    if samples == 1:
        raise typer.BadParameter("one draw has no spread; take 0 for the mean, or at least 2", param_hint="--samples")
    with refusing():
        finished = FinishedRun.open(run, chosen_device(device))
        examples = finished.preparation.read(data)
    if out != _STDOUT and out.exists() and not overwrite:
        raise typer.BadParameter(f"{out} exists; choose another file, or give --overwrite", param_hint="--out")
    if out != _STDOUT:
        check_folder(out.parent)
    try:
        predictions = finished.predict_examples(examples, samples, seed)
    except DataError as error:
        raise refusal(error) from error
    _write(predictions, out)
    if as_json:
        typer.echo(json.dumps(_figures(predictions, out)), err=out == _STDOUT)
        return
    if out != _STDOUT:
        _print(predictions, out)
    for note in predictions.notes:
        Console(stderr=out == _STDOUT).print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _write(predictions: Predictions, out: Path) -> None:
    """The whole file or nothing."""
    text = predictions.to_csv()
    if out == _STDOUT:
        typer.echo(text, nl=False)
        return
    with writing(out):
        write_whole(out, text)


def _figures(predictions: Predictions, out: Path) -> dict[str, Any]:
    unknown = dict(predictions.examples.unknown)
    return {
        "file": str(out),
        "count": len(predictions),
        "scores": predictions.scores(),
        "unknown": unknown,
        "notes": predictions.notes,
    }


def _print(predictions: Predictions, out: Path) -> None:
    console = Console()
    console.print(f"{counted(len(predictions), 'prediction')} in [bold]{out}[/].", highlight=False, soft_wrap=True)
    scores = predictions.scores()
    if scores is None:
        return
    if isinstance(predictions.preparation.target, Quantity):
        line = f"RMSE {scores['rmse']:.4g}, mean error {scores['mae']:.4g}"
        line += f", R² {scores['r2']:.3f}" if "r2" in scores else ""
    else:
        line = f"accuracy {scores['accuracy']:.1%}, NLL {scores['nll_nats']:.3f}, calibration error {scores['ece']:.3f}"
        line += f", AUC {scores['auc']:.4f}" if "auc" in scores else ""
    console.print(f"The data have labels: {line}.", highlight=False)
