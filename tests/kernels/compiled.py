"""Compiles kernels for a GPU that need not be there, as layers launch them; ``test_compiled.py`` runs it.

Prints a line for every launch: the kernel, and the bytes of shared memory that a program of it needs.
"""

import inspect
import sys
import warnings

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import rankfold as rf
from rankfold.kernels import chain_triton, dispatch, launch, product_triton, slices_triton
from rankfold.layers import embedding

KERNELS = {
    chain_triton: ("chain_forward", "chain_backward"),
    product_triton: ("product_forward", "product_backward"),
    slices_triton: ("slice_sample", "slice_kl", "slice_variances"),
}
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
# The largest table of DLRM, at the ranks of the paper, and how many of its rows are asked for: few and many.
ROWS, COLUMNS = {"in_dims": (200, 220, 250)}, {"out_dims": (128,)}
CASES = [
    (rf.TTM(16, **ROWS, out_dims=(4, 4, 8)), 2_048, torch.float32),
    (rf.TTM(16, **ROWS, out_dims=(4, 4, 8)), 65_536, torch.float32),
    (rf.TT(24, **ROWS, **COLUMNS), 16_384, torch.float32),
    (rf.Tucker(20, **ROWS, **COLUMNS), 16_384, torch.float32),
    (rf.CP(350, **ROWS, **COLUMNS, prior=rf.HalfCauchy()), 16_384, torch.float32),
    (rf.TTM(16, **ROWS, out_dims=(4, 4, 8)), 65_536, torch.bfloat16),
    (rf.CP(350, **ROWS, **COLUMNS), 16_384, torch.bfloat16),
]


class Compiled:
    """Stands where a kernel does; a launch compiles it, and does nothing else."""

    def __init__(self, kernel, target):
        self.kernel, self.target = kernel, target

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *arguments, **named):
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        values = inspect.signature(self.kernel.fn).bind(*arguments, **named).arguments
        constants = {p.name: values[p.name] for p in self.kernel.params if p.is_constexpr}
        signature = {name: "constexpr" if name in constants else kind_of(value) for name, value in values.items()}
        done = triton.compile(ASTSource(self.kernel, signature, constants), target=self.target, options=options)
        print(self.kernel.fn.__name__, done.metadata.shared)


def kind_of(value):
    """The type of an argument, in Triton's words."""
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def train(config, rows, dtype):
    """Launch what a training step of a table of ten million rows launches."""
    model = torch.nn.Sequential(rf.EmbeddingBag(10_131_227, 128, mode="mean", config=config, dtype=dtype))
    optimizer = torch.optim.Adam(rf.param_groups(model))
    ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=10, snapshots=False)
    (model(torch.arange(rows).view(-1, 2)).float().sum() + ranks.kl()).backward()
    ranks.step()


def main(capability):
    warnings.simplefilter("error")  # to users, a kernel that cannot run is a warning
    launch.DEVICES = ("cpu",)
    dispatch.LEAST_ROWS["cpu"] = dispatch.LEAST_ROWS["cuda"]
    embedding.looks_for_repeats = lambda index: False
    for module, names in KERNELS.items():
        for name in names:
            setattr(module, name, Compiled(getattr(module, name), GPUTarget("cuda", capability, 32)))
    for case in CASES:
        train(*case)


if __name__ == "__main__":
    main(int(sys.argv[1]))
