"""The ``rankfold`` command."""

from __future__ import annotations

import sys

_EXTRA = {"typer", "rich", "matplotlib", "sklearn"}


def app() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from rankfold.cli.main import app as commands

        commands()
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _EXTRA:
            raise
        sys.exit(f"the rankfold command needs {error.name}; install it with: pip install 'rankfold[cli]'")
