"""``rankfold export``: a trained model as a file that runs without rankfold."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from rankfold.architecture import Architecture, Input, find_network, rebuild
from rankfold.checkpoint import MANIFEST_FILE, read_manifest
from rankfold.cli.reading import failure, refusing
from rankfold.cli.writing import writing
from rankfold.counts import accounting
from rankfold.export import ExportError, export_onnx, export_program
from rankfold.export.int8 import MIN_ENTRIES
from rankfold.export.layouts import Layout, changes
from rankfold.jobs.finished import check_finished_if_trained
from rankfold.whole_files import write_whole

Figures = dict[str, Any]

_NO_BYTES = f"No matrix or factor has {MIN_ENTRIES} entries or more: --int8 has changed nothing."
_NO_LAYER = {
    "halves": "No linear layer of this model has halves (TTM has none): --layout halves has changed nothing.",
    "dense": "No layer of this model is made of factors: --layout dense has changed nothing.",
}
_REMEDY = (
    "name a function that makes the network and takes no arguments with --model, or leave it out for a run of rankfold"
)
_EXAMPLES = 8  # in the batch that the file is made and checked with
# Where inputs are indices, an example has them from as many as all its tables have.
_INDICES_BELOW = (1000, 100, 10, 2, 1)


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as runs/demo, or of a saved model.")],
    out: Annotated[
        Path | None,
        typer.Argument(help="The file: .onnx, or .pt2 for torch.export; model.onnx in the run's folder if left out."),
    ] = None,
    model: Annotated[str, typer.Option(help="Function that makes the dense network, as package.module:function.")] = "",
    input: Annotated[
        list[str] | None,
        typer.Option(help="Shape of one example, such as 784, 3x32x32 or 200:int64; once per input of the model."),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(help="factors: the smallest; halves: the fastest at small batches; dense: plain layers."),
    ] = "factors",
    int8: Annotated[
        bool, typer.Option("--int8", help="Store large weights as bytes: files down to a quarter.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write the posterior mean of a trained model to an ONNX file, at the ranks it has found.

    The file takes batches of any size. It is run by onnxruntime before it gets its name, and must give what
    the model gives. Runs of `rankfold demo`, `train` and `reproduce` say themselves which network they trained.
    For any other checkpoint name the function that makes the network, before it was tensorized, and its inputs:

    `rankfold export runs/mine net.onnx --model mypackage.nets:small --input 3x32x32`

    The package is one that is installed or on PYTHONPATH, or it lies in the current folder.

    For a run of `train` the file takes what the network takes, not the data as they are on disk: `preprocessing.json`
    in the run's folder says how one becomes the other. Of a table, numbers are standardised, (x − mean) / std, with 0
    for a missing one; a category is its place in the column's list, from 1, with 0 for an unknown one. Out come the
    logits of the classes, or a quantity, standardised likewise. The documentation tells the
    same of other data, under *Export a model*.

    Exit codes: 0 written, 1 the model cannot be exported, 2 the request is wrong.
    """
    target = out or run / "model.onnx"
    if target.suffix not in (".onnx", ".pt2") or (int8 and target.suffix == ".pt2"):
        raise typer.BadParameter(f"the file must end in .onnx, or in .pt2 without --int8, got {target}")
    with refusing():
        network, example = _load(run, model, [Input.parse(text) for text in input or []])
    try:
        with writing(target, "OUT"):
            figures = _write(network, target, example, layout, int8)
    except ExportError as error:
        raise failure(error) from error
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        _print(figures)


def _load(run: Path, model: str, inputs: list[Input]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The trained network, and a batch of examples for it."""
    if not run.is_dir():
        raise ValueError(f"there is no folder {run}; name that of a run, such as runs/demo, or of a saved model")
    check_finished_if_trained(run)
    folder = run / "model" if (run / "model" / MANIFEST_FILE).exists() else run
    read_manifest(folder)  # where there is no model, it does not matter what the network is
    found = None if model and inputs else Architecture.read(folder)
    name, shapes = model or (found.network if found else ""), inputs or (found.inputs if found else ())
    if not name or not shapes:
        raise ValueError(
            f"{folder} does not say which network it holds; name the function that makes it with --model "
            f"package.module:function, and its inputs with --input, such as --input 784"
        )
    dense = found.make() if found and not model else _named(name)
    network = rebuild(dense, folder)
    for below in _INDICES_BELOW:
        example = tuple(shape.example(_EXAMPLES, below) for shape in shapes)
        try:
            with torch.no_grad():
                network.eval()(*example)
            return network, example
        except Exception as error:
            why = error
    remedy = "name the shape of one example, without the batch, for every input, indices as --input 10:int64"
    if found and inputs:
        remedy = f"leave --input out: the network was trained with {_options(found.inputs)}"
    raise ValueError(f"{name} makes a network that cannot be called with {_options(shapes)} ({why}); {remedy}") from why


def _options(inputs: Sequence[Input]) -> str:
    return " ".join(f"--input {shape}" for shape in inputs)


def _named(name: str) -> nn.Module:
    """What the function makes; a module in the current folder is found, as it is by `python -m`."""
    sys.path.insert(0, os.getcwd())
    function = find_network(name)
    try:
        network = function()
    except Exception as error:  # whatever a user's function stumbles over
        raise ValueError(f"{name}() failed ({type(error).__name__}: {error}); {_REMEDY}") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{name}() makes {type(network).__name__}, expected a torch module; {_REMEDY}")
    return network


def _write(network: nn.Module, target: Path, example: tuple[Tensor, ...], layout: Layout, int8: bool) -> Figures:
    """Write the file; what there is to say of it."""
    counts = accounting(network).total
    figures: Figures = {
        "file": str(target),
        "dense_parameters": counts.dense_parameters,
        "dense_bytes": counts.dense_bytes,
        "notes": [] if layout == "factors" or changes(network, layout) else [_NO_LAYER[layout]],
    }
    if target.suffix == ".onnx":
        file = export_onnx(network, target, example, layout=layout, quantize="int8" if int8 else None)
        figures |= {"parameters": file.num_parameters, "bytes": file.num_bytes}
        figures["notes"] += [_NO_BYTES] if int8 and not file.num_as_bytes else []
        rounding = file.rounding if file.num_as_bytes else None
        return figures | {"difference_from_model": file.difference, "change_by_rounding": rounding}
    program = export_program(network, example, layout=layout)
    content = io.BytesIO()  # torch ends the whole process where its own file cannot be written
    torch.export.save(program, content)
    write_whole(target, content.getvalue())
    parameters = sum(value.numel() for value in program.state_dict.values())
    return figures | {"parameters": parameters, "bytes": target.stat().st_size}


def _print(figures: Figures) -> None:
    console = Console()
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    table.add_column("")
    table.add_column("parameters", justify="right")
    table.add_column("bytes", justify="right")
    table.add_row("dense network", f"{figures['dense_parameters']:,}", f"{figures['dense_bytes']:,}", style="dim")
    table.add_row("exported file", f"{figures['parameters']:,}", f"{figures['bytes']:,}", style="bold cyan")
    console.print(table)
    if "difference_from_model" in figures:
        console.print(f"onnxruntime and the model agree to {figures['difference_from_model']:.0e} of the output.")
    if figures.get("change_by_rounding") is not None:
        console.print(f"Rounding to int8 changes the output by {figures['change_by_rounding']:.1%}.")
    for note in figures["notes"]:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    console.print(f"The file is [bold]{figures['file']}[/].", soft_wrap=True)
