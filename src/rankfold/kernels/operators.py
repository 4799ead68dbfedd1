"""Differentiable operators: of torch where something is traced, plain functions where nothing is.

An operator of torch can be compiled, but calling it takes the host longer than launching its kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Backward = Callable[..., tuple[Tensor, ...]]


@final
class Operator:
    """``forward`` with gradients by ``backward``; it is called with tensors, integers and ``None``.

    Args:
        name: in the namespace ``rankfold`` of torch; the backward's has ``_backward`` behind it.
        fake_forward, fake_backward: empty tensors of the right shape, for tracing.
        save: keeps in a context what backward needs: ``save(ctx, inputs, output)``.
        differentiate: the gradients of all inputs, by the backward it is given: ``differentiate(backward, ctx, grad)``.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Tensor],
        fake_forward: Callable[..., Tensor],
        backward: Backward,
        fake_backward: Backward,
        save: Callable[[Any, tuple[Any, ...], Tensor], None],
        differentiate: Callable[[Backward, Any, Tensor], tuple[Any, ...]],
    ) -> None:
        self.forward, self.save = forward, save
        self.differentiate = partial(differentiate, backward)
        traced = torch.library.custom_op(f"rankfold::{name}_backward", backward, mutates_args=())
        traced.register_fake(fake_backward)
        self._operator = torch.library.custom_op(f"rankfold::{name}", forward, mutates_args=())
        self._operator.register_fake(fake_forward)
        self._operator.register_autograd(partial(differentiate, traced), setup_context=save)

    def __call__(self, *inputs: Any) -> Tensor:
        found: Tensor = self._operator(*inputs) if _is_traced(inputs) else _Direct.apply(self, *inputs)  # type: ignore[no-untyped-call]
        return found


def given(*tables: Tensor | None) -> list[Tensor]:
    """The tables that are there: an operator takes up to three."""
    return [table for table in tables if table is not None]


def of_three(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the tables that are there, and empty ones of those that are not."""
    first, second, third = (*gradients, *(gradients[0].new_empty(0) for _ in range(3 - len(gradients))))
    return first, second, third


def _is_traced(inputs: tuple[Any, ...]) -> bool:
    """Whether some tensor stands for others, as those of a compiler do, or has no entries."""
    if torch.compiler.is_compiling():
        return True
    return any(isinstance(x, Tensor) and (type(x) not in (Tensor, nn.Parameter) or x.is_meta) for x in inputs)


class _Direct(torch.autograd.Function):
    """An operator's own functions. With a ``setup_context`` torch would look up a signature on every call."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Tensor:
        output = operator.forward(*inputs)
        ctx.operator = operator
        operator.save(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return None, *ctx.operator.differentiate(ctx, grad)
