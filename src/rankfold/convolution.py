"""A convolution as three small ones: 1×1 into the ranks, k×k among them, 1×1 out of them.

In CP, Tucker and TT the mode of the kernel's positions stands between the modes of the input and of
the output channels, so the kernel is a product of three:

    A[c, k, o] = Σ_{r, s} W_in[c, r] · W_mid[r, k, s] · W_out[s, o]

with one rank index r = s in CP, where the middle one works on every rank channel by itself. In TTM every
core but the last carries both kinds of channels, and the kernel does not fall apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from rankfold.compiled import constant
from rankfold.contraction import contract, plan, planned_size
from rankfold.contraction_order import cost_of
from rankfold.formats import Factors, TensorFormat
from rankfold.formats.base import RANK

# In CP the middle convolution is depthwise: so little to do with every number it reads that a processor does
# it at a small part of the speed of a matrix product. Measured on a CPU, forward and backward.
_DEPTHWISE_SLOWNESS = 30.0


class Stage(NamedTuple):
    """One of the three: which factors it is made of, and the contraction that makes it."""

    factors: tuple[int, ...]
    equation: str


class Stages(NamedTuple):
    """The three stages of a kernel, and their rank channels.

    ``groups`` are those of the middle one: in CP every rank channel is one by itself.
    """

    inward: Stage
    middle: Stage
    outward: Stage
    ranks_in: int
    ranks_out: int
    groups: int


def build_kernels(
    parts: Stages, format: TensorFormat, factors: Factors, kernel_size: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the three convolutions, in the layout of ``torch.nn``."""
    points = [1] * len(kernel_size)
    in_channels = format.inputs.size // math.prod(kernel_size)
    inward = _build(parts.inward, factors).reshape(parts.ranks_in, -1)[:, :in_channels]
    outward = _build(parts.outward, factors).reshape(-1, parts.ranks_out)[: format.outputs.size]
    return (
        inward.reshape(parts.ranks_in, -1, *points),
        _build(parts.middle, factors).reshape(parts.ranks_out, -1, *kernel_size),
        outward.reshape(-1, parts.ranks_out, *points),
    )


@constant
def stages(format: TensorFormat) -> Stages | None:
    """How the kernel ``format`` falls apart, or ``None`` if it does not."""
    terms, position = format.subscripts, format.input_letters[-1]
    inward = _having(terms, format.input_letters[:-1])
    outward = _having(terms, format.output_letters)
    middle = tuple(n for n in range(len(terms)) if n not in inward and n not in outward)
    if set(inward) & set(outward) or position not in "".join(terms[n] for n in middle):
        return None
    r, s = _shared_ranks(terms, inward), _shared_ranks(terms, outward)
    size = format.letter_sizes
    ranks_in, ranks_out = math.prod(size[c] for c in r), math.prod(size[c] for c in s)
    separate = r == s
    return Stages(
        _stage(terms, inward, r + format.input_letters[:-1]),
        _stage(terms, middle, s + ("" if separate else r) + position),
        _stage(terms, outward, format.output_letters + s),
        ranks_in,
        ranks_out,
        ranks_out if separate else 1,
    )


def chain_is_cheaper(format: TensorFormat, kernel: int, pixels_in: int, pixels_out: int) -> bool:
    """Whether three small convolutions cost less than rebuilding the kernel and one large one.

    ``pixels`` are those of the whole batch, before and after; ``kernel`` is the number of positions.
    """
    return _chain_is_cheaper(format, kernel, planned_size(pixels_in), planned_size(pixels_out))


@constant
def _chain_is_cheaper(format: TensorFormat, kernel: int, pixels_in: int, pixels_out: int) -> bool:
    parts = stages(format)
    if parts is None:
        return False
    c, o = format.inputs.size // kernel, format.outputs.size
    r, s = parts.ranks_in, parts.ranks_out
    slowness = _DEPTHWISE_SLOWNESS if parts.groups > 1 else 1.0
    between = slowness * s * kernel * r / parts.groups
    chain = (
        cost_of(2.0 * pixels_in * c * r, pixels_in * (c + r))
        + cost_of(2.0 * pixels_out * between, pixels_in * r + pixels_out * s)
        + cost_of(2.0 * pixels_out * s * o, pixels_out * (s + o))
    )
    rebuild = plan(format.rebuild_equation, format.factor_shapes).cost
    whole = cost_of(2.0 * pixels_out * c * kernel * o, pixels_in * c + pixels_out * o)
    return chain < rebuild + whole


def _having(terms: Sequence[str], letters: str) -> tuple[int, ...]:
    return tuple(n for n, term in enumerate(terms) if set(term) & set(letters))


def _shared_ranks(terms: Sequence[str], side: Sequence[int]) -> str:
    """Rank letters that connect one side with the rest."""
    rest = "".join(term for n, term in enumerate(terms) if n not in side)
    return "".join(c for c in dict.fromkeys("".join(terms[n] for n in side)) if c in RANK and c in rest)


def _build(stage: Stage, factors: Factors) -> Tensor:
    return contract(stage.equation, *(factors[n] for n in stage.factors))


def _stage(terms: Sequence[str], side: tuple[int, ...], target: str) -> Stage:
    return Stage(side, f"{','.join(terms[n] for n in side)}->{target}")
