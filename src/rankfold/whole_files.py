"""Files that are written whole or not at all, and what may prevent it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Where to write what becomes ``file`` once all of it is there; its folder is made if it is missing.

    If writing fails, what ``file`` held before is still there, and nothing half written stays behind.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder, "page.html")) as partial:
    ...         _ = partial.write_text("<p>")
    ...     os.listdir(folder)
    ['page.html']
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{os.getpid()}.{file.name}")  # the ending stays: it says what is to be written
    try:
        yield partial
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    """A text as a whole file."""
    with whole_file(file) as partial:
        partial.write_text(text, encoding="utf-8")


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
