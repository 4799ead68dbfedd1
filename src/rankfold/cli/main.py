"""The commands, each in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from rankfold import __version__
from rankfold.cli.bench import bench
from rankfold.cli.data import data
from rankfold.cli.demo import demo
from rankfold.cli.export import export
from rankfold.cli.figures import figures
from rankfold.cli.plan import plan
from rankfold.cli.predict import predict
from rankfold.cli.report import report
from rankfold.cli.reproduce import reproduce
from rankfold.cli.table import table
from rankfold.cli.train import train
from rankfold.cli.wording import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rankfold {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Train neural networks that are compact from the first step and find their own tensor ranks."""


app.command()(demo)
app.command()(plan)
app.command()(train)
app.command()(predict)
app.command()(reproduce)
app.command()(table)
app.command()(figures)
app.command()(report)
app.command()(export)
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")
