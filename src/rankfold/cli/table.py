"""``rankfold table``: the results of a table beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rankfold.cli.kept_results import (
    Kept,
    command_to_make,
    command_to_show,
    folder_of,
    kept_elsewhere,
    kept_in_folder_itself,
)
from rankfold.cli.reading import refusal, refusing
from rankfold.cli.writing import writing
from rankfold.experiments.planning import Request
from rankfold.experiments.registry import TASKS
from rankfold.experiments.results import DamagedResult, Places
from rankfold.experiments.summary import Result, Summary, summarize
from rankfold.experiments.tables import brief_grid, grids
from rankfold.grids import Grid, Style, render, write_between_markers

NOTHING_THERE = 2


def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A folder of experiments, such as mnist.")],
    format: Annotated[Style, typer.Option(help="How to write it.")] = "text",
    write: Annotated[
        Path | None, typer.Option(help="Put it as Markdown into the marked section of this file instead.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Size and accuracy of the main rows alone.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The results of reproduce --quick, without targets.")] = False,
    validation: Annotated[bool, typer.Option("--validation", help="The results of reproduce --validation.")] = False,
    experiments: Annotated[Path, typer.Option(help="Folder of the tables.")] = Places.experiments,
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = Places.results,
) -> None:
    """Show our results of a table beside the paper's, averaged over seeds, and which targets are met.

    *FR* trains at a fixed rank. *TC* trains a dense network, compresses it at the maximum rank (*MR*) or at the ranks
    that ARD-LU has found (*OR*), and tunes it. *ARD* finds its ranks, with a log-uniform (*LU*) or half-Cauchy (*HC*)
    prior. A *bar* is what a row must reach, a *goal* what it should. One AUC is not below another if the interval of
    their difference, by a paired bootstrap over the seeds that both have, reaches zero. What the tables mean is said
    in docs/results.

    Exit codes: 0 there are results, 2 there are none, or the request is wrong.
    """
    request, places = Request(name, quick=quick, validation=validation), Places(experiments, results)
    summary = _summary(request, places)
    runs = [result for row in summary.rows for result in row.results]
    if not runs:
        typer.echo(f"error: {_nothing_found(request, places)}", err=True)
        raise typer.Exit(NOTHING_THERE)
    tables = [brief_grid(summary)] if brief else grids(summary)
    typer.echo(render(tables, format) if write is None else _written(write, name, tables))
    for remark in _remarks(name, runs):
        typer.echo(f"note: {remark}", err=True)
    if unverified := sum(run.get("data", {}).get("verified") is False for run in runs):
        typer.echo(f"note: {unverified} of these runs took data that nobody verified, by --no-verify", err=True)


def _summary(request: Request, places: Places) -> Summary:
    """All there is, or an error about the request or a file."""
    try:
        return summarize(request, places)
    except DamagedResult as error:
        if (kept := kept_in_folder_itself(request, places)) is None:
            raise refusal(error) from error
        options = " ".join(f"--{name}" for name in kept[0].variant)
        raise refusal(ValueError(f"{error}; but if it is one of {options}, give {_shown_by(kept)}")) from error
    except (ValueError, OSError) as error:
        raise refusal(error) from error


def _written(file: Path, name: str, tables: Sequence[Grid]) -> str:
    """Put the tables into their section of a file; what to say of it."""
    with refusing(), writing(file, "--write"):
        changed = write_between_markers(file, f"table {name}", render(tables, "markdown"))
    return f"{file} is {'now' if changed else 'already'} up to date"


def _remarks(name: str, runs: Sequence[Result]) -> list[str]:
    """What to know before these results are held beside the paper's."""
    task = TASKS.get(name)
    if task is None or task.remark is None:
        return []
    return list(dict.fromkeys(filter(None, (task.remark(run.get("data", {})) for run in runs))))


def _nothing_found(request: Request, places: Places) -> str:
    """Where results were looked for, and how to see those there are, or to make some."""
    folder = folder_of(request, places)
    nothing = f"there are no results in {folder}"
    itself = kept_in_folder_itself(request, places)
    others = [itself] if itself else kept_elsewhere(request, places)
    if shown := [f"those in {folder_of(*kept)} are shown by {_shown_by(kept)}" for kept in others]:
        return "; ".join([nothing, *shown])
    below = folder.relative_to(places.results)
    make = f"make some with `{command_to_make(request, places)}`"
    if (task := TASKS.get(request.table)) is not None and task.edition is not None:
        make += (
            "; those of other data than the published ones go into a folder of their own below --results, as it says"
        )
    return f"{nothing}; {make}, or give with --results the folder {below} is in"


def _shown_by(kept: Kept) -> str:
    return f"`{command_to_show(*kept)}`"
