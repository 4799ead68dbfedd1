"""The training objective's second part and the second half step.

The objective of one training step is ``mean NLL + β · w · KL / N``: nats per example. The first half
step is the user's own ``loss.backward(); optimizer.step()``; the second sets the rank variances λ to
their closed form, advances the warm-up and, when it is due, cuts the ranks the data do not support.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankfold.bayesian_tensor import BayesianTensor, tensors_of
from rankfold.bayesian_vector import BayesianVector
from rankfold.health import Health
from rankfold.parameters import check_optimizers
from rankfold.posterior import joint_kl, sum_of
from rankfold.pruning.averaging import WindowAverage
from rankfold.pruning.cutting import PruneResult, cut_dead_ranks, optimizers_of, prune_
from rankfold.pruning.optimizer_state import check_state
from rankfold.pruning.rules import PruningRule, default_rule
from rankfold.schedule import Pruning, Schedule, check_positive
from rankfold.shapes import is_positive_integer


@final
class RankDetermination:
    """Finds the ranks while the model trains.

    >>> import torch, rankfold as rf
    >>> model = torch.nn.Sequential(rf.Linear(8, 6, config=rf.CP(max_rank=3)))
    >>> optimizer = torch.optim.Adam(rf.param_groups(model))
    >>> ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=40)
    >>> for _ in range(40):
    ...     loss = model(torch.randn(5, 8)).square().mean() + ranks.kl()
    ...     loss.backward(); optimizer.step(); optimizer.zero_grad()
    ...     pruned = ranks.step()

    Args:
        model: a model with tensorized layers.
        optimizer: the optimizer, or all of them.
        num_data: N, the number of terms that the mean NLL averages over one epoch: examples for a
            classifier, tokens for a language model.
        total_steps: how many times ``step()`` will be called, once for every ``optimizer.step()``: epochs
            times batches. Without it (and with ``warmup_steps``) ranks are cut by ``prune()`` alone.
        kl_weight: w, the one trade-off: above 1 smaller models, below 1 larger ones.
        warmup_steps: e_w, steps until β reaches 1; half of ``total_steps`` if left out.
        step_size: γ of the incremental update of λ.
        pruning: when and how ranks are cut during training.
        copies: averaged copies of the model (EMA), cut together with it.
        check_every: steps between looks for NaN and infinity.
        snapshots: keep the last good state, for ``restore()``.

    Attributes:
        beta: β, on the model's device.
        num_steps: how many steps were taken.
        history: what every pruning did, with its step.
        version: counts the moments at which tensors were replaced; a captured graph is stale after one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        num_data: int,
        total_steps: int | None = None,
        *,
        kl_weight: float = 1.0,
        warmup_steps: int | None = None,
        step_size: float = 0.9,
        pruning: Pruning | None = None,
        copies: Sequence[nn.Module] = (),
        check_every: int = 100,
        snapshots: bool = True,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self.optimizers = optimizers_of(optimizer)
        self.tensors = tensors_of(model)
        if not self.tensors:
            raise ValueError("the model has no tensorized layer; call rankfold.tensorize_(model, config) first")
        _check_numbers(num_data, kl_weight, step_size, check_every)
        check_optimizers(model, self.optimizers)
        self.num_data = num_data
        self.kl_weight = kl_weight
        self.step_size = step_size
        self.schedule = Schedule(total_steps, warmup_steps, pruning or Pruning())
        self.rule = self.schedule.pruning.rule
        self.copies = tuple(copies)
        self.check_every = check_every
        self.num_steps = 0
        self.version = 0
        self.history: list[tuple[int, PruneResult]] = []
        self._parts = [m for m in model.modules() if isinstance(m, (BayesianTensor, BayesianVector)) and m.has_prior]
        first = next(iter(self.tensors.values()))
        self.beta = torch.zeros((), device=first.variance.device)
        self._last_kl = torch.zeros((), device=first.variance.device)
        self._kl_calls = 0
        self._backward_seen = True
        self._averages = {n: WindowAverage(t) for n, t in self.tensors.items() if t.inference == "bayes"}
        self._streaks = {n: _no_streaks(t) for n, t in self.tensors.items() if t.has_prior}
        self._health = Health(model, self.optimizers, first.variance.device, snapshots)
        self._health.take_snapshot(0)

    # Half step 1 --------------------------------------------------------------------------------

    def kl(self) -> Tensor:
        """``β · w · KL / N``, to be added to the mean NLL.

        When gradients of k batches are accumulated, the KL counts once: ``((nll + ranks.kl()) / k).backward()``.
        """
        nats = self._nats()
        self._last_kl = nats.detach()
        self._kl_calls += 1
        value = self.beta * (self.kl_weight / self.num_data) * nats
        if value.requires_grad and not torch.compiler.is_compiling():
            self._backward_seen = False
            value.register_hook(self._note_backward)
        return value

    def terms(self) -> dict[str, float]:
        """The parts of the objective besides the NLL, now: KL and penalty on λ in nats, and β."""
        with torch.no_grad():
            nats = float(self._nats())
        penalty = sum_of(t.penalty().to(self.beta.device) for t in self.tensors.values())
        return {"kl_nats": nats, "penalty_nats": float(penalty), "beta": float(self.beta)}

    # Half step 2 --------------------------------------------------------------------------------

    def step(self) -> PruneResult | None:
        """Update λ in closed form, advance β, and prune when it is due.

        Returns:
            What was cut, if shapes changed at this step: then wrap DDP again and capture CUDA graphs
            again. ``None`` otherwise.
        """
        self._check_order()
        self._check_mode()
        self._update()
        if self.beta.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # the host's part follows every replay
        return self.advance()

    @torch.no_grad()
    def _update(self) -> None:
        """The part of ``step()`` that runs on the device, without waiting for it."""
        self._health.note(self._last_kl)
        for tensor in self.tensors.values():
            tensor.update_variance(self.step_size)
        for average in self._averages.values():
            average.update()
        # β = min(1, e / e_w), on the device, one increment a step
        self.beta.add_(1.0 / self.schedule.warmup).clamp_(max=1.0)

    def advance(self) -> PruneResult | None:
        """The part of ``step()`` that runs on the host: counting, checking, pruning.

        ``step()`` calls it; only code that replays a captured step calls it itself.
        """
        self.num_steps += 1
        if self.num_steps == 1 and self.schedule.pruning.at:
            check_state(self.optimizers, (p for t in self.tensors.values() for p in t.parameters()))
        if self.num_steps % self.check_every == 0 or self.schedule.prunes_at(self.num_steps):
            self._health.check(self.num_steps)
        self._warn_past_the_end()
        if self.schedule.checks_at(self.num_steps):
            self._examine()
        return self._prune_patiently() if self.schedule.prunes_at(self.num_steps) else None

    def prune(self, rule: PruningRule | None = None) -> PruneResult | None:
        """Cut the ranks that are dead right now, without waiting for a moment or for patience."""
        return self._record(prune_(self.model, self.optimizers, rule=rule or self.rule, copies=self.copies))

    def restore(self) -> int:
        """Return to the last good state after a :class:`~rankfold.NumericalFault`; its step."""
        self.num_steps = self._health.restore()
        self.beta.fill_(self.schedule.beta(self.num_steps))
        self._forget()
        return self.num_steps

    # State ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on later, besides the states of the model and the optimizer."""
        streaks = {name: [s.clone() for s in groups] for name, groups in self._streaks.items()}
        averages = {name: average.state() for name, average in self._averages.items()}
        return {"num_steps": self.num_steps, "beta": self.beta.clone(), "streaks": streaks, "averages": averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; load the model's own state first, since ranks must match."""
        self.num_steps = state["num_steps"]
        self.beta.copy_(state["beta"])
        self._forget()
        for name, groups in state["streaks"].items():
            if [len(s) for s in groups] != list(self.tensors[name].format.ranks):
                raise ValueError(f"the saved state of {name} has other ranks than the model; load the model first")
            self._streaks[name] = [s.to(self.beta.device) for s in groups]
        for name, average in state["averages"].items():
            self._averages[name].restore(average)
        self._health.take_snapshot(self.num_steps)

    def __repr__(self) -> str:
        total = self.schedule.total_steps or "?"
        ranks = ", ".join(f"{name}: {list(t.format.ranks)}" for name, t in self.tensors.items())
        return f"RankDetermination(step {self.num_steps} of {total}, β {float(self.beta):.2f}, ranks {ranks})"

    # Inside ---------------------------------------------------------------------------------------

    def _nats(self) -> Tensor:
        """The KL of all tensors and biases."""
        if not self._parts:
            return torch.zeros_like(self.beta)
        return joint_kl([part.beside_prior() for part in self._parts]).to(self.beta.device)

    @torch.no_grad()
    def _examine(self) -> None:
        """Count for every rank at how many checks running it was dead."""
        for name, streaks in self._streaks.items():
            tensor = self.tensors[name]
            windows = self._averages[name].close_window() if name in self._averages else None
            if windows is None and name in self._averages:
                continue  # the first window of two has just closed
            dead = (self.rule or default_rule(tensor)).dead(tensor, windows)
            self._streaks[name] = [(s + 1) * d for s, d in zip(streaks, dead, strict=True)]

    def _prune_patiently(self) -> PruneResult | None:
        patience = self.schedule.pruning.patience
        dead = {n: [s >= patience for s in streaks] for n, streaks in self._streaks.items()}
        return self._record(cut_dead_ranks(self.model, dead, self.optimizers, copies=self.copies, rule=self.rule))

    def _record(self, result: PruneResult | None) -> PruneResult | None:
        if result is not None:
            self.history.append((self.num_steps, result))
            self._forget(only={t.name for t in result.tensors})
            self._health.take_snapshot(self.num_steps)
        return result

    def _forget(self, only: set[str] | None = None) -> None:
        """Start averages and streaks anew for tensors whose ranks have changed."""
        self.version += 1
        for name in self._streaks:
            if only is None or name in only:
                self._streaks[name] = _no_streaks(self.tensors[name])
                if name in self._averages:
                    self._averages[name].restart()

    def _note_backward(self, grad: Tensor) -> None:
        self._backward_seen = True

    def _check_order(self) -> None:
        if self._kl_calls == 0:
            raise RuntimeError(
                "ranks.step() without ranks.kl(): add it to the loss, loss = nll + ranks.kl(), before every step"
            )
        if not self._backward_seen:
            raise RuntimeError(
                "ranks.step(), but no backward() has reached ranks.kl(): add it to the loss, loss = nll + ranks.kl(), "
                "and keep the order loss.backward(); optimizer.step(); ranks.step()"
            )
        self._kl_calls = 0

    def _check_mode(self) -> None:
        asleep = [part for part in self._parts if not part.training]
        if any(p.requires_grad for part in asleep for p in part.parameters()):
            raise RuntimeError(
                "ranks.step() while tensorized layers are in eval mode, where they are not sampled and their posterior "
                "learns nothing from the data; call model.train() before training goes on"
            )

    def _warn_past_the_end(self) -> None:
        total = self.schedule.total_steps
        if total is not None and self.num_steps == total + 1:
            warnings.warn(
                f"this is step {self.num_steps}, but total_steps is {total}: the warm-up and all pruning are over. For "
                f"several epochs give total_steps=epochs * len(loader)",
                stacklevel=4,
            )


def _no_streaks(tensor: BayesianTensor) -> list[Tensor]:
    return [torch.zeros(rank, dtype=torch.long, device=tensor.variance.device) for rank in tensor.format.ranks]


def _check_numbers(num_data: int, kl_weight: float, step_size: float, check_every: int) -> None:
    if not is_positive_integer(num_data):
        raise ValueError(f"num_data must be a positive integer, the number of training examples, got {num_data!r}")
    check_positive(check_every=check_every)
    if not kl_weight >= 0:
        raise ValueError(f"kl_weight must be at least 0, got {kl_weight!r}")
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be in (0, 1], got {step_size!r}")
