"""``rankfold table``: the results of a table beside the paper's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rankfold.cli.reading import refusal
from rankfold.cli.writing import writing
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places
from rankfold.experiments.summary import summarize
from rankfold.experiments.tables import Style, brief_grid, grids, render, write_between_markers

_DEFAULT = Places()


def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A folder of experiments, such as mnist.")],
    format: Annotated[Style, typer.Option(help="How to write it.")] = "text",
    write: Annotated[
        Path | None, typer.Option(help="Put it as Markdown into the marked section of this file instead.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Size and accuracy of the main rows alone.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The results of reproduce --quick, without targets.")] = False,
    validation: Annotated[bool, typer.Option("--validation", help="The results of reproduce --validation.")] = False,
    experiments: Annotated[Path, typer.Option(help="Folder of the tables.")] = _DEFAULT.experiments,
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = _DEFAULT.results,
) -> None:
    """Show our results of a table beside the paper's, averaged over seeds, and which targets are met."""
    request, places = Request(name, quick=quick, validation=validation), Places(experiments, results)
    try:
        summary = summarize(request, places)
        tables = [brief_grid(summary)] if brief else grids(summary)
        said = render(tables, format)
        if write is not None:
            with writing(write, "--write"):
                changed = write_between_markers(write, f"table {name}", render(tables, "markdown"))
            said = f"{write} is {'now' if changed else 'already'} up to date"
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    typer.echo(said)
    if not any(row.results for row in summary.rows):
        typer.echo(_nothing_found(request, places), err=True)


def _nothing_found(request: Request, places: Places) -> str:
    """Where results were looked for, and where there are some, or how to make them."""
    nothing = f"note: there are no results in {_folder(request, places)}"
    for quick, validation in ((True, False), (False, True), (True, True)) if not request.variant else ():
        other = replace(request, quick=quick, validation=validation)
        if any(_folder(other, places).glob("*-seed*.json")):
            return f"{nothing}, but in {_folder(other, places)}: give {_options(other)} to see them"
    command = " ".join(("rankfold reproduce", request.table, _options(request))).rstrip()
    return f"{nothing}; make some with `{command}`, or name the folder they are in with --results"


def _folder(request: Request, places: Places) -> Path:
    return request.places(places).results / request.table


def _options(request: Request) -> str:
    return " ".join(f"--{name}" for name in request.variant)
