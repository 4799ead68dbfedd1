"""Triton's compiler takes every kernel. Its interpreter, which runs all other tests, takes any Python."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("compiled.py")
# An H200, and the shared memory that a program may have on a GPU for desktops, which has least.
CAPABILITY, MOST_BYTES = "90", 99 * 2**10
ROWS = {"chain_forward", "chain_backward", "product_forward", "product_backward"}
LAUNCHED = {*ROWS, "slice_sample", "slice_kl", "slice_variances"}


def test_every_kernel_compiles_for_a_gpu(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), CAPABILITY], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    needed = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, _ in needed} == LAUNCHED
    assert max(int(shared) for _, shared in needed) <= MOST_BYTES
