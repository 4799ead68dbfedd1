"""Noticing numbers that are not finite without waiting for the device at every step.

A flag on the device collects trouble; it is read every few steps, together with a look at all
parameters. As long as all is well a snapshot is kept, to which training can return.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankfold.distributed import whole
from rankfold.wrapping import check_model

# What optimizers call their moments: estimates, most of a snapshot, for which half the digits are enough. Other
# states may be weights, of which none can be spared.
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg"}


class NumericalFault(FloatingPointError):
    """A parameter or the KL became NaN or infinite; ``ranks.restore()`` returns to the last good state.

    >>> import rankfold as rf
    >>> model = rf.Linear(8, 6, config=rf.CP(max_rank=2))
    >>> optimizer = torch.optim.SGD(rf.param_groups(model))
    >>> ranks = rf.RankDetermination(model, optimizer, num_data=10, total_steps=10, check_every=1)
    >>> (model(torch.full((1, 8), torch.nan)).sum() + ranks.kl()).backward()
    >>> optimizer.step()
    >>> try:
    ...     ranks.step()
    ... except rf.NumericalFault:
    ...     print("back at step", ranks.restore())
    back at step 0
    """


@final
class Health:
    """Watches all that is trained, and keeps the last state in which everything was finite.

    Args:
        models: the model, and averaged copies of it.
        optimizers: those of the model, and of what else is trained with it.
        snapshots: whether to keep the state of all parameters and, with half the digits, of the optimizers.
    """

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], device: torch.device, snapshots: bool
    ) -> None:
        self.models = models
        self.optimizers = optimizers
        self.snapshots = snapshots
        self.fault = torch.zeros((), device=device)  # NaN once there was trouble
        self.last_good_step: int | None = None
        self._model_states: list[dict[str, Any]] = []
        self._others: list[tuple[Tensor, Tensor]] = []  # parameters outside of the model, and their copies
        self._optimizer_states: list[dict[str, Any]] = []

    def note(self, value: Tensor) -> None:
        """Raise the flag if ``value`` is not finite; costs one operation and no synchronisation."""
        self.fault.add_(value.detach(), alpha=0.0)  # 0 · x is 0 if x is finite, and NaN otherwise

    def check(self, step: int) -> None:
        """Read the flag, look at all parameters, and take a snapshot or raise :class:`NumericalFault`."""
        broken = not_finite(chain(self.models[0].named_parameters(), self._outside()))
        if broken or bool(self.fault.isnan()):
            raise NumericalFault(
                f"{first_of(broken) or 'the KL'} became NaN or infinite by step {step}. {self._remedy()} Then lower "
                f"the learning rate, clip gradients, or look for bad inputs"
            )
        self.take_snapshot(step)

    def take_snapshot(self, step: int) -> None:
        """Remember the current state as good."""
        if self.snapshots:
            # the last one goes first, so that there are never two
            self.last_good_step, self._model_states, self._others, self._optimizer_states = None, [], [], []
            self._model_states = [copy.deepcopy(model.state_dict()) for model in self.models]
            self._others = [(parameter, parameter.detach().clone()) for _, parameter in self._outside()]
            self._optimizer_states = [_halved(optimizer.state_dict()) for optimizer in self.optimizers]
        self.last_good_step = step

    def restore(self) -> int:
        """Put the last good state back; the step it was taken at."""
        if self.last_good_step is None or not self.snapshots:
            raise RuntimeError("there is no snapshot to return to; RankDetermination(snapshots=True) keeps them")
        for model, state in zip(self.models, self._model_states, strict=True):
            model.load_state_dict(state)
        left_alone = self._left_alone()
        for parameter, value in self._others:
            if id(parameter) not in left_alone:
                parameter.data.copy_(value)
        for optimizer, state in zip(self.optimizers, self._optimizer_states, strict=True):
            optimizer.load_state_dict(_except(left_alone, _unhalved(state), optimizer))
        self.fault.zero_()
        return self.last_good_step

    def _left_alone(self) -> set[int]:
        """Ids of parameters of other models, where ranks were cut since: those are for their own restore().

        What is broken and was not cut comes back all the same: it may be a likelihood's, which has none of its own.
        """
        cut = {id(parameter) for parameter, value in self._others if parameter.shape != value.shape}
        if not cut:
            return cut
        return {id(p) for p, _ in self._others if id(p) in cut or not not_finite([("", p)])}

    def _outside(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters of the optimizers that are not the model's, such as those of a likelihood, each with a name."""
        inside = {id(parameter) for parameter in self.models[0].parameters()}
        for number, optimizer in enumerate(self.optimizers):
            for n, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in inside:
                    yield f"a parameter outside of the model, {n} in optimizer {number}", parameter

    def _remedy(self) -> str:
        if self.last_good_step is None or not self.snapshots:
            return "There is no snapshot (snapshots=False)."
        return f"ranks.restore() returns to the good state of step {self.last_good_step}."


def _halved(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of an optimizer's state with moments in bfloat16, and their names."""
    moments = {
        (number, name): value
        for number, of_parameter in state["state"].items()
        for name, value in of_parameter.items()
        if name in _MOMENTS and isinstance(value, Tensor) and value.dtype == torch.float32
    }
    memo = {id(value): value.to(torch.bfloat16) for value in moments.values()}  # deepcopy takes these as they are
    return {"state": copy.deepcopy(state, memo), "moments": list(moments)}


def _unhalved(halved: dict[str, Any]) -> dict[str, Any]:
    """The inverse, as far as the digits go; not all optimizers convert what they load."""
    state: dict[str, Any] = copy.deepcopy(halved["state"])
    for number, name in halved["moments"]:
        state["state"][number][name] = state["state"][number][name].float()
    return state


def _except(parameters: Set[int], state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A state to load, with what ``optimizer`` has now of the parameters with these ids."""
    now = optimizer.state_dict()["state"]
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = {number: now[number] for number, p in enumerate(every) if id(p) in parameters and number in now}
    return {**state, "state": {**state["state"], **kept}}


def not_finite(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of all arrays that hold NaN or infinity."""
    floats = [(name, values.detach()) for name, values in named if values.is_floating_point()]
    # torch cannot ask that of numbers of a single byte
    wide = [values if values.element_size() > 1 else values.float() for _, values in floats]
    finite = [whole(torch.isfinite(values).all()) for values in wide]
    by_device: dict[torch.device, list[int]] = {}
    for n, flag in enumerate(finite):
        by_device.setdefault(flag.device, []).append(n)
    broken = []
    for indices in by_device.values():  # one read per device
        flags = torch.stack([finite[n] for n in indices]).tolist()
        broken += [floats[n][0] for n, ok in zip(indices, flags, strict=True) if not ok]
    return broken


def check_finite(model: nn.Module, action: str) -> None:
    """Refuse a model that is broken already."""
    check_model(model)
    if broken := not_finite(model.named_parameters()):
        raise ValueError(
            f"cannot {action} a model that holds NaN or infinity, in {first_of(broken)}; "
            f"make it anew, or load a good one"
        )


def first_of(names: Sequence[str], most: int = 3) -> str:
    """So many names at most, and how many more there are.

    >>> first_of(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
