"""``rankfold table``: the results of a table beside the paper's numbers."""

from __future__ import annotations

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
    request = Request(name, quick=quick, validation=validation)
    try:
        summary = summarize(request, Places(experiments, results))
        tables = [brief_grid(summary)] if brief else grids(summary)
        said = render(tables, format)
        if write is not None:
            with writing(write, "--write"):
                changed = write_between_markers(write, f"table {name}", render(tables, "markdown"))
            said = f"{write} is {'now' if changed else 'already'} up to date"
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    typer.echo(said)
