"""The training objective's second part and the second half step.

The objective of one training step is ``mean NLL + β · KL / N``: nats per example. The first half
step is the user's own ``loss.backward(); optimizer.step()``; the second sets the rank variances λ to
their closed form, advances the warm-up and, when it is due, cuts the ranks the data do not support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankfold.bayesian_tensor import BayesianTensor, tensors_of, update_variances
from rankfold.bayesian_vector import BayesianVector
from rankfold.distributed import agreed
from rankfold.gaussian import Weight
from rankfold.health import Health
from rankfold.order import StepOrder, check_mode, warn_past_the_end
from rankfold.parameters import add_gradients, check_optimizers, check_scaler
from rankfold.posterior import joint_kl, joint_kl_with_gradient, sum_of
from rankfold.priors import HalfCauchy
from rankfold.pruning.copies import carry_marks, copies_of, followers_of, same_in_copies
from rankfold.pruning.cutting import PruneResult, check_cut, cut_dead_ranks, optimizers_of
from rankfold.pruning.optimizer_state import check_kind
from rankfold.pruning.patience import RankWatch, check_known, check_saved
from rankfold.pruning.redundancy import simplify_
from rankfold.pruning.rules import PruningRule, check_rule, dead_ranks
from rankfold.schedule import Pruning, Schedule, check_numbers

if TYPE_CHECKING:  # some builds of torch have no processes
    from torch.distributed import ProcessGroup


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
            times batches. Without it (and with ``warmup_steps``) ranks are cut by ``prune()`` alone, and the rest of
            the schedule is that of a training of which the warm-up is 0.3.
        kl_weight: w, the one trade-off: above 1 smaller models, below 1 larger ones. While ranks are found the KL
            counts 3/2 w times; after that w/2 times, or half if w is larger than 1.
        warmup_steps: e_w, steps until β is at its highest; 0.3 of ``total_steps`` if left out.
        step_size: γ of the incremental update of λ.
        pruning: when and how ranks are cut during training; ``Pruning(at=())`` never cuts them.
        copies: an averaged copy of the model (EMA), or several, cut together with it.
        check_every: steps between looks for NaN and infinity.
        snapshots: keep the last good state, for ``restore()``.
        process_group: the processes that train this model together; all of them if left out, as in DDP.

    Attributes:
        beta: β, the weight of the KL now, on the model's device.
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
        pruning: Pruning = Pruning(),
        copies: nn.Module | Sequence[nn.Module] = (),
        check_every: int = 100,
        snapshots: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self.tensors = tensors_of(model)
        self.optimizers = optimizers_of(optimizer)
        if not self.tensors:
            raise ValueError("the model has no tensorized layer; call rankfold.tensorize_(model, config) first")
        check_numbers(num_data, step_size, check_every)
        check_optimizers(model, self.optimizers)
        self.num_data = int(num_data)
        self.step_size = step_size
        self.schedule = Schedule(total_steps, warmup_steps, pruning, kl_weight)
        if pruning.at:
            check_kind(self.optimizers, self.tensors.values())
        check_rule(pruning.rule, self.tensors)
        self.rule = pruning.rule
        self.copies = copies_of(model, copies)
        self._followers = followers_of(self.tensors, self.copies)
        self.check_every = int(check_every)
        self.process_group = process_group
        self.num_steps = 0
        self._begun = False
        self.version = 0
        self.history: list[tuple[int, PruneResult]] = []
        self._parts = [m for m in model.modules() if isinstance(m, (BayesianTensor, BayesianVector)) and m.has_prior]
        first = next(iter(self.tensors.values()))
        self.beta = first.variance.new_zeros(())  # in at least float32, whatever the default dtype
        self._last_kl = self.beta.clone()
        self._order = StepOrder(self.optimizers)
        self._watch = RankWatch(self.tensors, self.rule)
        self._health = Health((model, *self.copies), self.optimizers, first.variance.device, snapshots)
        self._health.take_snapshot(0)

    # Half step 1 --------------------------------------------------------------------------------

    def kl(self) -> Tensor:
        """``β · KL / N``, to be added to the mean NLL.

        When gradients of k batches are accumulated, the KL counts once: ``((nll + ranks.kl()) / k).backward()``, or
        :meth:`kl_backward`.
        """
        self._watch.check_unchanged()
        value = self._joint_kl(Weight(self.beta, self.num_data))
        self._last_kl = value.detach()
        self._order.watch(value, self._parts)
        return value

    def kl_backward(self, scaler: torch.amp.GradScaler | None = None) -> Tensor:
        """Add the gradient of ``kl()`` to the parameters now, instead of ``kl()`` to a loss; its value.

        Called once for every ``optimizer.step()``, at any moment between ``zero_grad()`` and clipping, it counts once
        however many batches are accumulated. Give the ``scaler`` while gradients are scaled by one.
        """
        check_scaler(scaler)
        self._watch.check_unchanged()
        self._order.note_kl()
        if not self._parts:
            return torch.zeros_like(self.beta)
        pairs = [part.beside_prior() for part in self._parts]
        value, parameters, gradients = joint_kl_with_gradient(pairs, Weight(self.beta, self.num_data))
        self._last_kl = value.to(self.beta.device)
        # added here, not by backward(): hooks of DDP on the parameters must not take it for the backward of a batch
        if add_gradients(parameters, gradients if scaler is None else scaler.scale(gradients)):
            self._order.note_backward(1.0)
        return self._last_kl

    def terms(self) -> dict[str, float]:
        """The parts of the objective besides the NLL, now: KL and penalty on λ in nats, and β."""
        with torch.no_grad():
            nats = float(self._joint_kl())
        penalty = sum_of(t.penalty().to(self.beta.device) for t in self.tensors.values())
        return {"kl_nats": nats, "penalty_nats": float(penalty), "beta": float(self.beta)}

    # Half step 2 --------------------------------------------------------------------------------

    def step(self) -> PruneResult | None:
        """Update λ in closed form, advance β, and prune when it is due.

        Returns:
            What was cut, if shapes changed at this step: then wrap DDP again and capture CUDA graphs
            again. ``None`` otherwise.
        """
        self._order.check()
        check_mode(self._parts)
        self._watch.check_unchanged()
        self._update()
        if self.beta.is_cuda and torch.cuda.is_current_stream_capturing():
            return None  # the host's part follows every replay
        return self.advance()

    @torch.no_grad()
    def _update(self) -> None:
        """The part of ``step()`` that runs on the device, without waiting for it."""
        self._health.note(self._last_kl)
        update_variances(self.tensors.values(), self.step_size)
        self._watch.update()

    def advance(self) -> PruneResult | None:
        """The part of ``step()`` that runs on the host: counting, checking, pruning.

        ``step()`` calls it; only code that replays a captured step calls it itself.
        """
        if not self._begun:
            self._begin()
        self.num_steps += 1
        for tensor in self.tensors.values():
            tensor.num_updates += 1
        self._set_beta()
        if self.num_steps % self.check_every == 0 or self.schedule.changes_factors_at(self.num_steps):
            self._health.check(self.num_steps)
        warn_past_the_end(self.num_steps, self.schedule.total_steps)
        if self.schedule.checks_at(self.num_steps):
            self._watch.examine()
        result = None
        if self.schedule.prunes_at(self.num_steps):
            result = self._cut(self._watch.dead(self.schedule.pruning.patience), self.rule)
        if self.schedule.simplifies_at(self.num_steps):
            self._simplify()  # last: it changes the ranks that were watched
        carry_marks(self._followers)
        return result

    def prune(self, rule: PruningRule | None = None) -> PruneResult | None:
        """Cut the ranks that are dead right now, without waiting for a moment or for patience."""
        check_rule(rule, self.tensors)
        chosen = rule or self.rule
        return self._cut(dead_ranks(self.tensors, chosen), chosen)

    def restore(self) -> int:
        """Return to the last good state after a :class:`~rankfold.NumericalFault`; its step."""
        self.num_steps = self._health.restore()
        self._set_beta()
        self._order.start_anew()
        self._forget()
        return self.num_steps

    # State ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on later, besides the states of the model and the optimizer."""
        return {"num_steps": self.num_steps, **self._settings(), **self._watch.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; load the model's own state first, since ranks must match."""
        if isinstance(state, Mapping) and "num_steps" in state:
            state = self._settings() | state  # earlier versions kept none
        check_saved(state, self.state_dict(), self.tensors)
        priors = {name: HalfCauchy(eta) for name, eta in state["eta"].items()}
        self.num_steps = state["num_steps"]
        for name, prior in priors.items():
            self.tensors[name].prior = prior
        self._set_beta()
        self._forget()
        self._watch.restore(state)
        self._health.take_snapshot(self.num_steps)

    def __repr__(self) -> str:
        total = self.schedule.total_steps or "?"
        ranks = ", ".join(f"{name}: {list(t.format.ranks)}" for name, t in self.tensors.items())
        return f"RankDetermination(step {self.num_steps} of {total}, β {float(self.beta):.2f}, ranks {ranks})"

    # Inside ---------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """What the number of a step means, and η by the names of tensors."""
        schedule = self.schedule
        numbers = {"num_data": self.num_data, "total_steps": schedule.total_steps, "warmup_steps": schedule.warmup}
        scales = {name: t.prior.eta for name, t in self.tensors.items() if isinstance(t.prior, HalfCauchy)}
        return {"numbers": {**numbers, "kl_weight": float(schedule.kl_weight)}, "eta": scales}

    def _begin(self) -> None:
        """Look, once, at what may have changed since this was made."""
        check_known(self.model, self.tensors)
        if self.schedule.pruning.at:
            check_cut(self.tensors, self.optimizers, self.copies)
        self._begun = True

    def _set_beta(self) -> None:
        self.beta.fill_(self.schedule.beta(self.num_steps))  # in place, where a captured graph finds it

    def _joint_kl(self, weight: Weight | None = None) -> Tensor:
        """The KL of all tensors and biases in nats, times ``weight``."""
        if not self._parts:
            return torch.zeros_like(self.beta)
        return joint_kl([part.beside_prior() for part in self._parts], weight).to(self.beta.device)

    def _simplify(self) -> None:
        """Bring redundant ranks to light; what was known of single ranks is void where factors changed."""
        learned = {name: tensor for name, tensor in self.tensors.items() if tensor.has_prior}
        followers = same_in_copies(learned, self.copies)
        changed = {name for name, tensor in learned.items() if simplify_(tensor, self.optimizers, followers[name])}
        if changed:
            self._forget(only=changed)
            self._health.take_snapshot(self.num_steps)

    def _cut(self, dead: Mapping[str, Sequence[Tensor]], rule: PruningRule | None) -> PruneResult | None:
        """Cut these ranks, in all processes alike, and note it."""
        variances = {name: self.tensors[name].variance for name in dead}
        dead = agreed(dead, variances, self.beta.device, self.process_group)
        result = cut_dead_ranks(self.model, dead, self.optimizers, copies=self.copies, rule=rule)
        if result is not None:
            self.history.append((self.num_steps, result))
            self._forget(only={t.name for t in result.tensors})
            self._health.take_snapshot(self.num_steps)
        return result

    def _forget(self, only: set[str] | None = None) -> None:
        """Tensors were replaced: what was known of their ranks is void, and so is a captured graph."""
        self.version += 1
        self._watch.forget(only)
