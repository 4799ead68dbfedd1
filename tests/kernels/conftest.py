"""Kernels run on the GPU if there is one, else in Triton's interpreter, which tests/conftest.py asks for."""

import pytest
import torch

from rankfold.kernels import dispatch, launch, tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def device(monkeypatch):
    """Where kernels run; they do so for any number of rows."""
    monkeypatch.setattr(launch, "DEVICES", (DEVICE,))
    monkeypatch.setitem(dispatch.LEAST_ROWS, DEVICE, dict.fromkeys(("CP", "Tucker", "TT", "TTM"), 0))
    return DEVICE


@pytest.fixture(params=["kernel", "kernel of sorted rows", "twin"])
def way(request, device, monkeypatch):
    """Where rows are fetched: by a kernel one by one, by one that has them sorted, or by the twin on the CPU."""
    if request.param == "kernel":
        return device
    if request.param == "kernel of sorted rows":
        monkeypatch.setattr(tiles, "MOST_SINGLE_ROWS", 0)
        return device
    monkeypatch.setattr(launch, "DEVICES", ())
    monkeypatch.setitem(dispatch.LEAST_ROWS, "cpu", dict.fromkeys(("CP", "Tucker", "TT", "TTM"), 0))
    return "cpu"
