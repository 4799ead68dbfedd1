"""The ``rankfold`` command."""

from __future__ import annotations

import sys

_EXTRA = {
    **dict.fromkeys(("typer", "rich", "matplotlib", "sklearn"), "cli"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "export"),
    **dict.fromkeys(("torchmetrics", "PIL"), "experiments"),
    "pyarrow": "parquet",
    "tensorboardX": "tensorboard",
}


def app() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from rankfold.cli.main import app as commands

        commands()
    except OSError as error:
        from rankfold.cli.saying import WRITING, say_no_more, unheard

        # errors of files are named by the commands; what is left is a full disk behind standard output
        if error.filename is not None or error.errno not in WRITING:
            raise
        say_no_more()
        sys.exit(f"error: {unheard(error)}")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(f"this command needs {package}; install it with: pip install 'rankfold[{_EXTRA[package]}]'")
