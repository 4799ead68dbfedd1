"""The option ``--device``."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; cuda if there is one.")]


def chosen_device(name: str) -> torch.device:
    """The device of that name; without one, CUDA where there is some, or the CPU."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise typer.BadParameter(f"{name!r} is no torch device; use cpu or cuda", param_hint="--device") from error
    if device.type not in ("cpu", "cuda"):
        raise typer.BadParameter(
            f"{name!r} is a device that rankfold does not train on; use cpu or cuda", param_hint="--device"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch sees no CUDA device on this machine; use cpu", param_hint="--device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        known = f"torch sees {torch.cuda.device_count()}, counted from 0"
        raise typer.BadParameter(f"there is no {name}: {known}; use another, or cuda", param_hint="--device")
    return device
