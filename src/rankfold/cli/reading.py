"""Requests and data that are wrong, as errors of the command line."""

from __future__ import annotations

import typer


def refusal(error: Exception) -> typer.BadParameter:
    """To raise: what ``error`` says; of a file that the system does not let us read, what to do."""
    if isinstance(error, OSError) and error.errno is not None:
        what = (
            f"{error.filename or 'the file'} cannot be read ({error.strerror}); change its permissions, or give another"
        )
        return typer.BadParameter(what)
    return typer.BadParameter(str(error))
