"""What both families of kernels do first: find and load the rows of tables that a flat index asks for."""

import triton
import triton.language as tl


@triton.jit
def load(table, offset, mask):
    """Entries in float32, zeros where the mask is off."""
    return tl.load(table + offset, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def place(index, row, live, stride, size, WIDE: tl.constexpr):
    """The row of a table, ``(i // stride) mod size``, for the flat indices at ``row``."""
    flat = tl.load(index + row, mask=live, other=0)
    if not WIDE:  # divisions of 64 bits cost as much as all the rest
        flat = flat.to(tl.int32)
    return ((flat // stride) % size).to(tl.int32)
