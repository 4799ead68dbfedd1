"""Files that are written whole or not at all, and what may prevent it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from safetensors import SafetensorError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_FOLDER = (errno.EEXIST, errno.ENOTDIR)


class NotWritten(OSError):
    """A file or folder that cannot be written, in words; ``errno`` and ``strerror`` are what the system says.

    >>> print(NotWritten(errno.ENOSPC, "No space left on device", "model.onnx"))
    model.onnx cannot be written (No space left on device); free some space there
    """

    def __str__(self) -> str:
        return not_written(self.filename, self)


def given_path(path: str | os.PathLike[str], example: str) -> Path:
    """A path as it was given; what is none is refused, and so is an empty one, which would be the current folder.

    >>> given_path("", "a file, such as model.onnx")
    Traceback (most recent call last):
    ValueError: the path is empty; name a file, such as model.onnx
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"the path must be a string or a pathlib.Path, got {type(path).__name__}; name {example}")
    if not os.fspath(path):
        raise ValueError(f"the path is empty; name {example}")
    return Path(path)


def not_written(place: str | Path, error: OSError, then: str = "") -> str:
    """What has failed and what to do: of a full disk, to free some space and ``then`` go on."""
    why, remedy = error.strerror or str(error), "choose another place"
    if error.errno in _NO_FOLDER:
        why = _file_in_the_way(Path(place)) or why
    elif error.errno in _FULL:
        remedy = f"free some space there{then}"
    elif error.errno == errno.EISDIR:
        remedy = "it is a folder: name a file in it"
    return f"{place} cannot be written ({why}); {remedy}"


def _file_in_the_way(place: Path) -> str | None:
    """Which part of a path is a file where there should be a folder; the system says only that there is one."""
    files = [part for part in (place, *place.parents) if part.is_file()]
    return f"{'it' if files[0] == place else files[0]} is a file, not a folder" if files else None


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Within this context an error of the file system names ``place``, whichever file beside or in it has failed."""
    try:
        yield
    except OSError as error:
        raise NotWritten(error.errno, error.strerror or str(error), str(place)) from error


def check_writable(file: Path) -> None:
    """Refuse, before anything is computed, a file that cannot be written; nothing is made yet."""
    with writing(file):
        nearest = next(folder for folder in real_file(file).parents if folder.exists())
        nearest.mkdir(exist_ok=True)  # fails of a file, in the words of making the folder
        with TemporaryFile(dir=nearest):
            pass


def real_file(file: Path) -> Path:
    """Where a link leads. A folder, a device or a pipe is refused: a file would take its place."""
    real = file.resolve()
    if real.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if real.exists() and not real.is_file():
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")
    return real


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Where to write what becomes ``file`` once all of it is there; its folder is made if it is missing.

    If writing fails, what ``file`` held before is still there, and nothing half written stays behind. A link stays one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder, "page.html")) as partial:
    ...         _ = partial.write_text("<p>")
    ...     os.listdir(folder)
    ['page.html']
    """
    with writing(file):
        real = real_file(file)
        partial = real.with_name(f".{os.getpid()}.{real.name}")  # the ending stays: it says what is to be written
        real.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            os.replace(partial, real)
        finally:
            partial.unlink(missing_ok=True)


def write_whole(file: Path, content: str | bytes) -> None:
    """A text, or bytes, as a whole file."""
    with whole_file(file) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def publish(partial: Path, folder: Path) -> None:
    """Give a whole folder its name. If another process was faster, what it has written is the same, and stays."""
    try:
        os.replace(partial, folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.is_dir():
            raise


@contextmanager
def errors_of_the_system() -> Iterator[None]:
    """Within this context what torch and safetensors make of a full disk is the ``OSError`` that it was.

    torch must write to an open file: of a path it keeps no cause.
    """
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        if number is not None:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise
