"""``rankfold bench``."""

from __future__ import annotations

import typer

bench = typer.Typer(help="Time layers side by side.", no_args_is_help=True)
