"""Requests and data that are wrong, and what fails though they are right, as errors of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from rankfold.data.errors import DataError


@contextmanager
def refusing() -> Iterator[None]:
    """Within this context what is wrong with a request or its data is an error of the command line."""
    try:
        yield
    except (DataError, ValueError, OSError) as error:
        raise refusal(error) from error


def refusal(error: Exception) -> typer.BadParameter:
    """To raise: what ``error`` says; of a file that the system does not let us read, what to do."""
    if isinstance(error, OSError) and error.errno is not None:
        what = (
            f"{error.filename or 'the file'} cannot be read ({error.strerror}); change its permissions, or give another"
        )
        return typer.BadParameter(what)
    return typer.BadParameter(str(error))


def failure(why: object) -> typer.Exit:
    """To raise, once ``why`` is said."""
    Console(stderr=True).print(f"error: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(1)
