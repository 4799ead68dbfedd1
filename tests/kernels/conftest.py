"""Kernels run on the GPU if there is one, else in Triton's interpreter, which tests/conftest.py asks for."""

import pytest
import torch

from rankfold.kernels import dispatch, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(launch, "DEVICES", (DEVICE,))
    monkeypatch.setattr(dispatch, "LEAST_ROWS", dict.fromkeys(dispatch.LEAST_ROWS, 0))
    return DEVICE
