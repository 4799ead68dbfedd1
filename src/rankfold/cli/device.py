"""The option ``--device``."""

from __future__ import annotations

import torch
import typer


def chosen_device(name: str) -> torch.device:
    """The device of that name; without one, CUDA where there is some, or the CPU."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is no torch device; use cpu or cuda", param_hint="--device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no CUDA device on this machine; use cpu", param_hint="--device")
    return device
