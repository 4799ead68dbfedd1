"""Watching ranks over training: one is dead when it was found so at several checks running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.pruning.averaging import WindowAverage, update_all
from rankfold.pruning.rules import PruningRule, default_rule
from rankfold.wrapping import warn


@final
class RankWatch:
    """Averages the posteriors of all tensors, and counts for every rank at how many checks running it was dead.

    Attributes:
        averages: of every Bayesian tensor, by its name.
        streaks: the counts, one tensor (R_n,) per rank group, of every tensor with a prior.
    """

    def __init__(self, tensors: Mapping[str, BayesianTensor], rule: PruningRule | None) -> None:
        self.tensors = tensors
        self.rule = rule
        self.averages = {name: WindowAverage(t) for name, t in tensors.items() if t.inference == "bayes"}
        self.streaks = {name: _zeros(t) for name, t in tensors.items() if t.has_prior}
        self._places = {name: _place(tensors[name]) for name in self.streaks}

    def update(self) -> None:
        """Take in the posteriors of this step; runs on the device, without waiting for it."""
        update_all(self.averages.values())

    @torch.no_grad()
    def examine(self) -> None:
        """Look at every rank, by the averages since the last two looks."""
        self.check_unchanged()
        for name, streaks in self.streaks.items():
            tensor = self.tensors[name]
            windows = self.averages[name].close_window() if name in self.averages else None
            if windows is None and name in self.averages:
                continue  # the first window of two has just closed
            dead = (self.rule or default_rule(tensor)).dead(tensor, windows)
            self.streaks[name] = [(s + 1) * d for s, d in zip(streaks, dead, strict=True)]

    def check_unchanged(self) -> None:
        """Refuse tensors that others have moved, and ranks that they have changed: what is known of them is void."""
        for name, streaks in self.streaks.items():
            if (place := _place(self.tensors[name])) != self._places[name]:
                raise RuntimeError(
                    f"λ of {name} was {_named(self._places[name])} when RankDetermination was made, and is now "
                    f"{_named(place)}: the model was moved or converted meanwhile. Do that first, and then make the "
                    f"optimizer and RankDetermination anew"
                )
            before, now = [len(streak) for streak in streaks], list(self.tensors[name].format.ranks)
            if before != now:
                raise RuntimeError(
                    f"the ranks of {name} were {before} and are now {now}, changed by something other than "
                    f"RankDetermination. While it is at work call ranks.prune() instead of rankfold.prune_(model); "
                    f"if you loaded a state into the model, call ranks.load_state_dict() with that of the same moment, "
                    f"or make RankDetermination after loading"
                )

    def dead(self, patience: int) -> dict[str, list[Tensor]]:
        """Which ranks were dead at the last ``patience`` checks, one boolean tensor per group."""
        return {name: [s >= patience for s in streaks] for name, streaks in self.streaks.items()}

    def forget(self, only: set[str] | None = None) -> None:
        """Start anew for these tensors, or for all: their ranks are others now."""
        for name in self.streaks:
            if only is None or name in only:
                self.streaks[name] = _zeros(self.tensors[name])
                if name in self.averages:
                    self.averages[name].restart()

    def state(self) -> dict[str, Any]:
        """Copies of all that it holds, to go on with later."""
        streaks = {name: [s.clone() for s in groups] for name, groups in self.streaks.items()}
        return {"streaks": streaks, "averages": {name: average.state() for name, average in self.averages.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`, of tensors of the same ranks."""
        for name, groups in state["streaks"].items():
            self.streaks[name] = [s.to(self.tensors[name].variance.device) for s in groups]
        for name, average in state["averages"].items():
            self.averages[name].restore(average)


def check_known(model: nn.Module, known: Mapping[str, BayesianTensor]) -> None:
    """Refuse a model whose tensors are not the ``known`` ones: others would have no KL and no updates of λ."""
    now = tensors_of(model)
    new = [name for name, tensor in now.items() if known.get(name) is not tensor]
    gone = [name for name, tensor in known.items() if now.get(name) is not tensor]
    if new or gone:
        found = f"has {new[0]}, which it had not" if new else f"no longer has {gone[0]}, which it had"
        raise RuntimeError(
            f"the model {found} when RankDetermination was made; tensorize, tie, wrap and replace layers first, and "
            f"then make the optimizer and RankDetermination anew"
        )


def check_saved(state: Mapping[str, Any], own: Mapping[str, Any], tensors: Mapping[str, BayesianTensor]) -> None:
    """Refuse a saved state that is not like ``own``, of the same ``tensors``, at the ranks that these have now.

    Other numbers than those it was saved with are pointed out.
    """
    if not isinstance(state, Mapping) or state.keys() != own.keys():
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(f"expected what ranks.state_dict() returns, with {sorted(own)}, got {found}")
    if not isinstance(state["num_steps"], int) or state["num_steps"] < 0:
        raise ValueError(f"num_steps of the saved state must be 0 or a positive integer, got {state['num_steps']!r}")
    strangers = sorted(state["streaks"].keys() ^ own["streaks"].keys())
    if strangers:
        raise ValueError(f"the saved state is of another model: {strangers[0]} is in only one of the two")
    others = sorted(state["eta"].keys() ^ own["eta"].keys())
    if others:
        was, now = ("half-Cauchy" if others[0] in known["eta"] else "log-uniform" for known in (state, own))
        raise ValueError(
            f"the saved state of {others[0]} is of training with the {was} prior, and the model has the {now} one; "
            f"tensorize the model with the prior it was trained with"
        )
    for name in own["streaks"]:
        if list(map(len, state["streaks"][name])) != list(tensors[name].format.ranks):
            raise ValueError(f"the saved state of {name} has other ranks than the model; load the model first")
    changed = [name for name, number in own["numbers"].items() if state["numbers"][name] != number]
    if changed:
        was, now = (", ".join(f"{name}={known['numbers'][name]}" for name in changed) for known in (state, own))
        warn(
            f"the saved state is of training with {was}, and goes on with {now}: step {state['num_steps']} means "
            f"another β and other moments of pruning now. Give RankDetermination the numbers of the whole run, unless "
            f"you mean to change them"
        )


def _zeros(tensor: BayesianTensor) -> list[Tensor]:
    return [torch.zeros(rank, dtype=torch.long, device=tensor.variance.device) for rank in tensor.format.ranks]


def _place(tensor: BayesianTensor) -> tuple[torch.dtype, torch.device]:
    variance = tensor.variance
    return variance.dtype, variance.device


def _named(place: tuple[torch.dtype, torch.device]) -> str:
    dtype, device = place
    return f"{str(dtype).removeprefix('torch.')} on {device}"
