"""Files and folders that cannot be written: every command says so in the same words, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import typer

from rankfold.whole_files import not_written


@contextmanager
def writing(place: Path, option: str = "--out") -> Iterator[None]:
    """Within this context an error of the file system is a wrong ``option``.

    It names the file or folder that was asked for, whichever one beside or in it has failed.
    """
    try:
        yield
    except OSError as error:
        raise typer.BadParameter(not_written(place, error), param_hint=option) from error


def check_folder(folder: Path, option: str = "--out") -> None:
    """Refuse, before anything is computed, a folder that nothing can be written to; it is made if it is missing."""
    with writing(folder, option):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
