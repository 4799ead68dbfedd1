"""``rankfold table``: the results of a table beside the paper's numbers."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rankfold.cli.reading import refusal
from rankfold.cli.writing import writing
from rankfold.experiments.planning import Request
from rankfold.experiments.registry import TASKS
from rankfold.experiments.results import DamagedResult, Places
from rankfold.experiments.summary import summarize
from rankfold.experiments.tables import brief_grid, grids
from rankfold.grids import Style, render, write_between_markers

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
    """Show our results of a table beside the paper's, averaged over seeds, and which targets are met.

    *FR* trains at a fixed rank. *TC* trains a dense network, compresses it at the maximum rank (*MR*) or at the ranks
    that ARD-LU has found (*OR*), and tunes it. *ARD* finds its ranks, with a log-uniform (*LU*) or half-Cauchy (*HC*)
    prior. A *bar* is what a row must reach, a *goal* what it should. One AUC is not below another if the interval of
    their difference, by a paired bootstrap over the seeds that both have, reaches zero. What the tables mean is said
    in docs/results.
    """
    request, places = Request(name, quick=quick, validation=validation), Places(experiments, results)
    try:
        summary = summarize(request, places)
        tables = [brief_grid(summary)] if brief else grids(summary)
        said = render(tables, format)
        if write is not None:
            with writing(write, "--write"):
                changed = write_between_markers(write, f"table {name}", render(tables, "markdown"))
            said = f"{write} is {'now' if changed else 'already'} up to date"
    except DamagedResult as error:
        instead = _named_itself(request, places)
        raise refusal(ValueError(f"{error}; but if it is one of {instead}") if instead else error) from error
    except (ValueError, OSError) as error:
        raise refusal(error) from error
    typer.echo(said)
    if (task := TASKS.get(name)) is not None and task.remark is not None:
        typer.echo(f"note: {task.remark}", err=True)
    runs = [result for row in summary.rows for result in row.results]
    if unverified := sum(run.get("data", {}).get("verified") is False for run in runs):
        typer.echo(f"note: {unverified} of these runs took data that nobody verified, by --no-verify", err=True)
    if not runs:
        typer.echo(_nothing_found(request, places), err=True)


def _nothing_found(request: Request, places: Places) -> str:
    """Where results were looked for, and where there are some, or how to make them."""
    folder = _folder(request, places)
    nothing = f"note: there are no results in {folder}"
    for other in _variants(request) if not request.variant else ():
        if _has_results(_folder(other, places)):
            return f"{nothing}, but in {_folder(other, places)}: give {_options(other)} to see them"
    if instead := _named_itself(request, places):
        return f"{nothing}; for those of {instead}"
    below = folder.relative_to(places.results)
    make = f"make some with `{_command(request, places)}`"
    if (task := TASKS.get(request.table)) is not None and task.edition is not None:
        make += " (which says where those of other data than the published ones go)"
    return f"{nothing}; {make}, or give with --results the folder {below} is in"


def _named_itself(request: Request, places: Places) -> str | None:
    """What to give in place of a folder that holds the results of a variant, such as results/quick."""
    for other in _variants(request):
        if places.results.name == "-".join(other.variant) and _has_results(places.results / request.table):
            return f"{_options(other)}, give --results {places.results.parent} {_options(other)}"
    return None


def _command(request: Request, places: Places) -> str:
    """That makes the results where they were looked for."""
    words = ["rankfold", "reproduce", request.table, *_options(request).split()]
    if places.experiments != _DEFAULT.experiments:
        words += ["--experiments", str(places.experiments)]
    if places.results != _DEFAULT.results:
        words += ["--results", str(places.results)]
    return shlex.join(words)


def _variants(request: Request) -> list[Request]:
    """The same request with results that are kept apart."""
    options = ((True, False), (False, True), (True, True))
    return [replace(request, quick=quick, validation=validation) for quick, validation in options]


def _folder(request: Request, places: Places) -> Path:
    return request.places(places).results / request.table


def _has_results(folder: Path) -> bool:
    return any(folder.glob("*-seed*.json"))


def _options(request: Request) -> str:
    return " ".join(f"--{name}" for name in request.variant)
