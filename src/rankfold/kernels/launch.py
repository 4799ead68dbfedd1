"""What every kernel launch needs: Triton if it is there, precision, gradients to add to, and a way out.

Triton is optional and imported only when a kernel is launched. If it cannot compile or start a kernel, the
user is told once, and the plain-torch twin takes over for good.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from rankfold.compiled import constant
from rankfold.wrapping import warn

# Where kernels run.
DEVICES: tuple[str, ...] = ("cuda",)
# A row that is often asked for is added to by many programs, which take turns at it. So small tables have several
# gradients to add to: at most so many, with at most so many entries together.
_MOST_COPIES, _ENTRIES_OF_COPIES = 16, 1 << 18
# Kernels read and write so many bytes at once, where an array begins at a multiple of them.
_ALIGNED_BYTES = 16

_P = ParamSpec("_P")
_T = TypeVar("_T")

_failed = False


@constant
def triton_installed() -> bool:
    """Whether Triton can be imported; it is not imported yet."""
    return importlib.util.find_spec("triton") is not None


def usable(tensor: Tensor) -> bool:
    """Whether kernels can run on tensors like this one."""
    ready = tensor.device.type in DEVICES and tensor.dtype in (torch.float32, torch.bfloat16)
    return ready and not _failed and triton_installed() and not torch.are_deterministic_algorithms_enabled()


def tried(run: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
    """What ``run`` gives; ``None`` if its kernel cannot run here: then plain torch is used from now on."""
    global _failed
    try:
        return run(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise  # this passes; kernels would be gone for good
    except Exception as error:  # whatever stops a compiler or a launch must not stop the user
        _failed = True
        reason = (str(error).strip().splitlines() or [""])[-1][:200]
        warn(
            f"rankfold's Triton kernels cannot run here ({type(error).__name__}: {reason}); plain torch is used from "
            f"now on, which gives the same results more slowly",
            RuntimeWarning,
        )
        return None


def start(
    kernel: Any, grid: tuple[int, int, int], tensors: Sequence[Tensor], count: int,
    numbers: Sequence[float], options: dict[str, Any], forms: dict[Any, Any],
) -> None:  # fmt: skip
    """Run a kernel on the device of its tensors.

    Triton looks at every argument to find the compiled form that suits them, which takes the host longer than to launch
    it does. ``forms`` keeps those it has found, for launches with the same kernel, numbers and options: they differ at
    most in their tensors, and in ``count`` (below 2³¹), which the kernel must not be specialized on.
    """
    device = tensors[0].get_device()
    key = device, *[(tensor.dtype, tensor.data_ptr() % _ALIGNED_BYTES == 0) for tensor in tensors]
    if key in forms and device == torch.cuda.current_device():
        form, constants = forms[key]
        form[grid](*tensors, count, *numbers, *constants)
        return
    with torch.cuda.device_of(tensors[0]):
        found = kernel[grid](*tensors, count, *numbers, **options)
    if found is not None:  # an interpreter compiles nothing
        forms[key] = found, [options[name] for name in kernel.arg_names if name in options]


def precision(dtype: torch.dtype) -> str:
    """How kernels multiply: float32 by three TF32 products, which keep its digits, or by one where torch may use it.

    A bfloat16 number is a TF32 number.
    """
    lowered = dtype == torch.bfloat16 or torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if lowered else "tf32x3"


def is_wide(places: Sequence[int]) -> bool:
    """Whether flat indices need more than 32 bits."""
    return max(stride * size for stride, size in zip(places[::2], places[1::2], strict=True)) >= 2**31


def padded(size: int, least: int = 1) -> int:
    """The next power of two, at least ``least``."""
    return max(least, 1 << (size - 1).bit_length())


def without_gaps(index: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
    """Vectors as kernels read them, one entry beside the next; the index in place of those that are missing.

    A column of a matrix is a vector with gaps.
    """
    index = index.contiguous()
    return index, *(index if other is None else other.contiguous() for other in others)


def zero_gradients(tables: Sequence[Tensor]) -> list[Tensor]:
    """Float32 gradients of tables without gaps, with the same strides; one kernel clears them all."""
    gradients = [torch.empty_like(table, dtype=torch.float32) for table in tables]
    torch._foreach_zero_(gradients)
    return gradients


def with_gradients(tables: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Tables of any strides, and their gradients; what has gaps is copied without them."""
    gradients = zero_gradients(tables)
    return [_laid_out_as(d, table) for d, table in zip(gradients, tables, strict=True)], gradients


def _laid_out_as(gradient: Tensor, table: Tensor) -> Tensor:
    if gradient.stride() == table.stride():
        return table
    return torch.empty_like(gradient, dtype=table.dtype).copy_(table)


def copies_of_gradients(tables: Sequence[Tensor]) -> list[Tensor]:
    """Float32 gradients of zeros (copies, *shape) of tables without gaps, to be added up: several of a small one."""
    copies = [min(_MOST_COPIES, max(1, _ENTRIES_OF_COPIES // max(1, table.numel()))) for table in tables]
    return [
        table.new_zeros(number, *table.shape, dtype=torch.float32) for table, number in zip(tables, copies, strict=True)
    ]
