"""Watching that a training step happens in its order.

``ranks.kl()``, ``backward()``, ``optimizer.step()``, ``ranks.step()``: each is the user's own line, so each can be
missing or in the wrong place. Everything is noticed from calls on the host; the device is asked once,
at the first step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankfold.wrapping import unwrapped_optimizer, warn

# So many steps of an optimizer without ranks.step() are no accident of the order any more.
MOST_STEPS_AHEAD = 50


@final
class StepOrder:
    """Counts what has happened since the last ``ranks.step()``."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._kl_calls = 0
        self._kl_without_gradient = False  # kl() was called under no_grad(), so that no loss learns from its value
        self._open_kl = False  # kl() was called, and no backward() has come through it yet
        self._backwards = 0
        self._weight: Tensor | float | None = None  # Σ ∂loss/∂kl of the first step, on the device
        self._weight_is_known = False
        self._optimizer_steps: dict[int, int] = {}
        self._stepped_too_early = False
        self._warned: set[str] = set()
        for optimizer in map(unwrapped_optimizer, optimizers):
            optimizer.register_step_pre_hook(self._count_closure_once)
            optimizer.register_step_post_hook(self._note_optimizer)

    def watch(self, kl: Tensor, parts: Iterable[nn.Module]) -> None:
        """Note a call of ``kl()`` of these ``parts``, and the backward that will come through its value."""
        if not torch.is_grad_enabled() and _any_trained(parts):
            self._kl_without_gradient = True  # good for a log, not for a loss
            return
        self.note_kl()
        if kl.requires_grad and not torch.compiler.is_compiling():
            self._open_kl = True
            kl.register_hook(self.note_backward)

    def note_kl(self) -> None:
        self._kl_calls += 1
        if self._optimizer_steps and max(self._optimizer_steps.values()) == MOST_STEPS_AHEAD:
            self._warn(
                "no step",
                f"optimizer.step() was called {MOST_STEPS_AHEAD} times and ranks.step() never since; call it after "
                f"every optimizer.step(), or λ stays as it is, β does not rise and no rank is cut",
            )

    def check(self) -> None:
        """At ``ranks.step()``: refuse what cannot be right, warn of what looks wrong, and start anew."""
        if self._kl_calls == 0 and self._kl_without_gradient:
            raise RuntimeError(
                "ranks.step(), but ranks.kl() was computed under torch.no_grad() only, where the loss learns nothing "
                "from it; add it to the loss where gradients are kept, loss = nll + ranks.kl(), before every step"
            )
        if self._kl_calls == 0:
            raise RuntimeError(
                "ranks.step() without ranks.kl(): add it to the loss, loss = nll + ranks.kl(), before every step"
            )
        if self._open_kl and self._backwards == 0:
            raise RuntimeError(
                "ranks.step(), but no backward() has reached ranks.kl(): add it to the loss, loss = nll + ranks.kl(), "
                "and keep the order loss.backward(); optimizer.step(); ranks.step()"
            )
        self._check_optimizer_steps()
        self._check_weight()
        self._stepped_too_early = self._backwards > 0 and not self._optimizer_steps
        self.start_anew()

    def start_anew(self) -> None:
        """A step is over, or never was."""
        self._optimizer_steps.clear()
        self._kl_calls = self._backwards = 0
        self._open_kl = self._kl_without_gradient = False
        self._weight = None

    # Events ---------------------------------------------------------------------------------------

    def note_backward(self, grad: Tensor | float) -> None:
        """A backward has come through the KL, whose gradient of the loss is this."""
        self._open_kl = False
        self._stepped_too_early = False
        self._backwards += 1
        if not self._weight_is_known:
            grad = grad.detach() if isinstance(grad, Tensor) else grad
            self._weight = grad if self._weight is None else self._weight + grad

    def _count_closure_once(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Before a step: an optimizer may ask for the loss several times, as LBFGS does; the last time counts."""
        before = self._backwards, self._weight

        def counted(part: Any) -> Any:
            def closure() -> Any:
                self._backwards, self._weight = before
                return part()

            return closure if callable(part) else part

        return (args[0], *map(counted, args[1:])), {name: counted(part) for name, part in kwargs.items()}

    def _note_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # a GradScaler may skip this for good reasons, so its absence alone means nothing
        if self._stepped_too_early and self._backwards == 0:
            self._warn(
                "too early",
                "ranks.step() came between backward() and optimizer.step(), so λ lags one step behind; keep the order "
                "loss.backward(); optimizer.step(); ranks.step()",
            )
        elif self._backwards > 0:  # steps on a loss without the KL are no concern of λ
            self._optimizer_steps[id(optimizer)] = self._optimizer_steps.get(id(optimizer), 0) + 1

    # What looks wrong -----------------------------------------------------------------------------

    def _check_optimizer_steps(self) -> None:
        most = max(self._optimizer_steps.values(), default=0)
        if most > 1:
            self._warn(
                "too rarely",
                f"optimizer.step() was called {most} times since the last ranks.step(); call ranks.step() after every "
                f"one of them, or λ and the warm-up fall behind (total_steps counts calls of ranks.step())",
            )

    def _check_weight(self) -> None:
        """Whether the KL of several batches entered one step with its full weight each time."""
        weight, self._weight = self._weight, None
        if weight is None or self._weight_is_known:
            return
        if isinstance(weight, Tensor) and weight.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        self._weight_is_known = True
        several = max(self._optimizer_steps.values(), default=0) > 1
        if self._backwards > 1 and not several and abs(float(weight) - self._backwards) < 1e-3:
            self._warn(
                "too much KL",
                f"the KL entered this step {self._backwards} times, each time with its full weight. If the NLL of the "
                f"accumulated batches is averaged, average both, ((nll + ranks.kl()) / {self._backwards}).backward(), "
                f"or leave kl() out of the loss and call ranks.kl_backward() once before optimizer.step()",
            )

    def _warn(self, fault: str, message: str) -> None:
        """Every fault is said once."""
        if fault not in self._warned:
            self._warned.add(fault)
            warn(message)


def check_mode(parts: Iterable[nn.Module]) -> None:
    """Refuse a step in eval mode."""
    if _any_trained(part for part in parts if not part.training):
        raise RuntimeError(
            "ranks.step() while tensorized layers are in eval mode, where they are not sampled and their posterior "
            "learns nothing from the data; call model.train() before training goes on"
        )


def warn_past_the_end(step: int, total_steps: int | None) -> None:
    """Point out the first step after the last one."""
    if total_steps is not None and step == total_steps + 1:
        warn(
            f"this is step {step}, but total_steps is {total_steps}: the warm-up and all pruning are over. For several "
            f"epochs give total_steps=epochs * len(loader)"
        )


def _any_trained(parts: Iterable[nn.Module]) -> bool:
    """Whether anything in these parts is not frozen."""
    return any(parameter.requires_grad for part in parts for parameter in part.parameters())
