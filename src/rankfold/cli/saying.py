"""Standard output that cannot be written: a full disk behind it, or a reader that has left, as ``head`` does."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rankfold.experiments.progress import StopAsked

# What may happen to whoever writes.
WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


class Unheard(StopAsked):
    """What was said has not arrived; a training that nobody listens to stops."""

    def __init__(self, error: OSError) -> None:
        super().__init__(unheard(error))


def unheard(error: OSError) -> str:
    """Why, and what to do.

    >>> unheard(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    'standard output was closed'
    >>> unheard(OSError(errno.ENOSPC, "No space left on device"))
    'standard output cannot be written (No space left on device); send it elsewhere'
    """
    if error.errno == errno.EPIPE:
        return "standard output was closed"
    return f"standard output cannot be written ({error.strerror}); send it elsewhere"


@contextmanager
def saying() -> Iterator[None]:
    """For what does nothing but print: that it fails is told apart from a failure of other files."""
    try:
        yield
    except OSError as error:
        raise Unheard(error) from error
    except SystemExit as error:  # what rich makes of a closed pipe
        if isinstance(error.__context__, BrokenPipeError):
            raise Unheard(error.__context__) from error
        raise


def say_no_more() -> None:
    """Let go of standard output: Python writes what is left of it at the end, and would fail once more."""
    with suppress(io.UnsupportedOperation):  # no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
