"""The command ``rankfold``. It stands beside the package, so that it runs before torch and all else is imported."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from importlib import import_module
from types import FrameType


def main() -> None:
    """Run the command line. Ctrl-C while modules are imported, which takes seconds, ends it without a word."""
    # a handler that leaves: an exception in the middle of an import may come out as another one
    previous = signal.signal(signal.SIGINT, _leave)
    with suppress(ModuleNotFoundError):  # app says what to install
        import_module("rankfold.cli.main")
    from rankfold.cli import app

    signal.signal(signal.SIGINT, previous)
    app()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    main()
