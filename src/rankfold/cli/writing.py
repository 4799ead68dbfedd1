"""Files that cannot be written."""

from __future__ import annotations

from pathlib import Path

import typer


def not_written(file: Path, error: OSError, option: str = "--out") -> typer.BadParameter:
    """To raise: names the file or folder that was asked for, whichever one beside or in it has failed."""
    what = f"{file} cannot be written ({error.strerror or error}); choose another place"
    return typer.BadParameter(what, param_hint=option)
