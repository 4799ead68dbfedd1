"""Every test starts from the same seed, on one thread; property-based tests repeat the same examples."""

import os
import signal

import pytest
import torch
from hypothesis import settings

settings.register_profile("rankfold", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("rankfold")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has background jobs ignore it
if not torch.cuda.is_available():  # read when triton is first imported; only tests of the kernels use it
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _alike():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # commands that the test before has called may have chosen otherwise
