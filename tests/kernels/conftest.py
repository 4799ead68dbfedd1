"""Kernels run on the GPU if there is one, else in Triton's interpreter, which tests/conftest.py asks for."""

import pytest
import torch

from rankfold.kernels import dispatch, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def device(monkeypatch):
    """Where kernels run; they do so for any number of rows."""
    monkeypatch.setattr(launch, "DEVICES", (DEVICE,))
    monkeypatch.setitem(dispatch.LEAST_ROWS, DEVICE, dict.fromkeys(("CP", "Tucker", "TT", "TTM"), 0))
    return DEVICE


@pytest.fixture(params=["kernel", "twin"])
def way(request, device, monkeypatch):
    """Where rows are fetched, once by a kernel and once on the CPU by its twin."""
    if request.param == "kernel":
        return device
    monkeypatch.setattr(launch, "DEVICES", ())
    monkeypatch.setitem(dispatch.LEAST_ROWS, "cpu", dict.fromkeys(("CP", "Tucker", "TT", "TTM"), 0))
    return "cpu"
