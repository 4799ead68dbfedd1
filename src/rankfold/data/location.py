"""Where data lie: in a folder that is named, else in ``RANKFOLD_DATA``, else in ``./data``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankfold.data.errors import MissingData

VARIABLE = "RANKFOLD_DATA"
DEFAULT = "data"
TRY_ANYWAY = "load with verify=False to use it as it is"  # what to do about a file that was not published so


def data_root(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder for all data sets. The first of the three that is given decides, whatever it holds.

    >>> data_root("/tmp/mine").as_posix()
    '/tmp/mine'
    """
    return Path(folder or os.environ.get(VARIABLE) or DEFAULT).expanduser()


def find_folder(name: str, files: Sequence[str], folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the ``files`` of a data set, with ``.gz`` or without.

    It is the subfolder called ``name`` of the data root, even if it has only some of them, or else the root
    itself if it has them all: other data sets have files of the same names.
    """
    root = data_root(folder)
    if len(_absent(root / name, files)) < len(files):
        return root / name
    if not _absent(root, files):
        return root
    raise MissingData(
        f"{name} is not here; looked in {' and '.join(_account(place, files) for place in (root / name, root))}. "
        f"The data root is {origin(folder)}. {remedies(name)}"
    )


def find_file(folder: Path, name: str) -> Path | None:
    """The file called ``name.gz`` or ``name``, the first there is."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def remedies(name: str) -> str:
    """What to do about a data set that is not there."""
    return (
        f"Download it with `rankfold data get {name}`, or name the folder that has it with --data or in "
        f"the environment variable {VARIABLE}"
    )


def _absent(place: Path, files: Sequence[str]) -> list[str]:
    return [file for file in files if find_file(place, file) is None]


def _account(place: Path, files: Sequence[str]) -> str:
    """A place, and why it will not do."""
    if not place.exists():
        state = "no such folder"
    elif not place.is_dir():
        state = "a file, not a folder"
    else:
        state = f"no {', '.join(_absent(place, files))}, with .gz or without"
    return f"{place.absolute()} ({state})"


def origin(folder: str | os.PathLike[str] | None) -> str:
    """Why the data root is where it is."""
    if folder:
        return "the path you named"
    return f"taken from {VARIABLE}" if os.environ.get(VARIABLE) else f"./{DEFAULT}, because no other was named"
