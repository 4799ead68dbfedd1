"""Training that was interrupted goes on where its last checkpoint is.

A checkpoint is a folder ``epoch-0012`` with the model as :func:`rankfold.save` writes it and the rest
of the state beside it; ``epoch-0012-step-000000345`` is one within the epoch after that. It gets its name
only when it is complete, so a run that is killed at any moment leaves a whole one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankfold.checkpoint import load, save
from rankfold.data.errors import DamagedData
from rankfold.whole_files import errors_of_the_system

_STATE_FILE = "state.pt"
_NAME = re.compile(r"epoch-(\d+)(?:-step-(\d+))?")


def write_checkpoint(folder: Path, model: nn.Module, state: dict[str, Any], epoch: int, step: int = 0) -> None:
    """Keep the model and ``state`` of ``step`` steps after the end of ``epoch``, unless that is done.

    Older checkpoints are removed.
    """
    older = _checkpoints(folder)
    name = f"epoch-{epoch:04d}" + (f"-step-{step:09d}" if step else "")
    partial, final = folder / f"partial-{os.getpid()}", folder / name
    if final in older:
        return
    _remove(partial)
    try:
        save(model, partial)
        with errors_of_the_system(), (partial / _STATE_FILE).open("wb") as file:
            torch.save(state, file)
        os.replace(partial, final)
    finally:
        _remove(partial)
    for path in older:
        _remove(path)


def read_checkpoint(folder: Path, model: nn.Module, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Load the last checkpoint into ``model``; the state beside it, or ``None`` if there is none.

    A checkpoint made with other ``settings`` is of another run; it is removed.
    """
    found = _checkpoints(folder)
    if not found:
        return None
    device = next(model.parameters()).device
    state = _read_state(found[-1] / _STATE_FILE, device)
    with of_this_version(folder):
        is_of_this_run = state["settings"] == settings
    if not is_of_this_run:
        for path in found:
            _remove(path)
        return None
    try:
        load(model, found[-1])
    except (ValueError, OSError) as error:
        raise DamagedData(f"{error}; or {_begin_again(found[-1])}") from error
    return state


def _read_state(file: Path, device: torch.device) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    except Exception as error:  # the unpickler raises whatever it stumbles over
        why = str(error).partition(".")[0]
        raise DamagedData(f"{file} is damaged ({why}); {_begin_again(file.parent)}") from error
    return state


@contextmanager
def of_this_version(folder: Path) -> Iterator[None]:
    """Within this context a state that lacks something, or has it in another form, is named with a remedy."""
    try:
        yield
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        checkpoint = _checkpoints(folder)[-1]
        raise DamagedData(f"{checkpoint} was written by another version; {_begin_again(checkpoint)}") from error


def _begin_again(checkpoint: Path) -> str:
    return f"delete {checkpoint} to begin again at epoch 1"


def last_checkpoint(folder: Path) -> tuple[int, int] | None:
    """The epochs that the last checkpoint is after, and the steps after these; ``None`` if there is none."""
    found = _checkpoints(folder)
    return _place(found[-1]) if found else None


def _checkpoints(folder: Path) -> list[Path]:
    """All complete ones, in the order in which they were written."""
    return sorted((path for path in folder.glob("epoch-*") if _NAME.fullmatch(path.name)), key=_place)


def _place(checkpoint: Path) -> tuple[int, int]:
    """The epochs that a checkpoint is after, and the steps after these."""
    match = _NAME.fullmatch(checkpoint.name)
    assert match is not None  # or it would be no checkpoint
    return int(match[1]), int(match[2] or 0)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
