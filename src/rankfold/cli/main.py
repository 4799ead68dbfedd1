"""The commands, each in a module of its own."""

from __future__ import annotations

import typer

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

app = typer.Typer(
    help="Train neural networks that are compact from the first step and find their own tensor ranks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
)
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
