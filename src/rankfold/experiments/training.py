"""The one training loop of all methods.

The data lie on the device as one tensor; an epoch is a random order of it, drawn on the device. A step
is the five lines of the README. On CUDA it is captured as a graph, and within an epoch nothing waits
for the device. Without a prior, as for dense and fixed-rank training, the loop is the same and the KL 0.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from rankfold.bayesian_tensor import tensors_of
from rankfold.capture import CapturedStep
from rankfold.counts import accounting
from rankfold.experiments.checkpoints import of_this_version, read_checkpoint, write_checkpoint
from rankfold.experiments.no_ranks import NoRanks
from rankfold.experiments.progress import Epoch, Listener, Moment, StopAsked
from rankfold.experiments.spec import Spec
from rankfold.experiments.task import Examples, num_right
from rankfold.health import NumericalFault, not_finite
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.tensorized_weights import current_ranks

# Seconds of training that a kill may cost: after an epoch, and within a long one.
CHECKPOINT_SECONDS = 20.0
CHECKPOINT_SECONDS_WITHIN = 300.0
# How often one may look how far an epoch is.
MOMENT_SECONDS = 0.5
# Seeds of the orders of two runs never meet, for fewer than so many epochs.
_MOST_EPOCHS = 100_000


@final
class Training:
    """Trains ``model`` on ``examples``, from its last checkpoint in ``folder`` if there is one.

    Args:
        model: on the device of the examples.
        epochs: how many there will be in all.
        stage: what to call them.
        folder: for checkpoints, if there are to be any; that of the last epoch stays until the caller removes it.
        loss: mean NLL in nats of outputs, given labels.
        augment: makes a batch's inputs of its examples.
        count_right: of a batch's outputs, given labels.

    Attributes:
        history: every finished epoch.
        steps_per_epoch: whole batches only; what is left over of an epoch's order is not used.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        spec: Spec,
        *,
        epochs: int,
        stage: str,
        folder: Path | None,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        augment: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None,
        count_right: Callable[[Tensor, Tensor], Tensor] = num_right,
    ) -> None:
        self.model = model.train()
        self.examples = examples
        self.spec = spec
        self.epochs = epochs
        self.stage = stage
        self.folder = folder
        self.loss = loss
        self.augment = augment
        self.count_right = count_right
        self.history: list[Epoch] = []
        self.steps_per_epoch = len(examples) // spec.batch_size
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"batch_size must be at most the number of examples, {len(examples)}, got {spec.batch_size}"
            )
        self.total_steps = epochs * self.steps_per_epoch
        # of the epoch under way: NLL and right answers, and the seconds before the checkpoint it goes on from
        self._sums = torch.zeros(2, device=examples.device)
        self._seconds = 0.0
        self._start = self._last_moment = self._last_checkpoint = time.perf_counter()
        self._steps_done = self._steps_restored = 0
        self._lr_factor = 1.0
        self._warned_before: list[str] = []
        self._caught: list[warnings.WarningMessage] = []
        state = None if folder is None else read_checkpoint(folder, model, self._settings)
        self.optimizer = _adam(model, spec, examples.device)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._full_rates = [float(rate) for rate in self._rates]
        self.ranks = self._rank_determination()
        if folder is not None and state is not None:
            with of_this_version(folder):
                self._restore(state)

    def run(self, listener: Listener = Listener()) -> list[Epoch]:
        """Train to the end, and tell the listener."""
        with warnings.catch_warnings(record=True, action="always") as self._caught:
            self._run(listener)
        for warned in (*self._warned_before, *(warning.message for warning in self._caught)):
            warnings.warn(warned, stacklevel=2)
        return self.history

    def _run(self, listener: Listener) -> None:
        step = CapturedStep(self._step, self.ranks if isinstance(self.ranks, RankDetermination) else None)
        self._last_checkpoint = time.perf_counter()
        while len(self.history) < self.epochs:
            self.history.append(self._run_epoch(step, listener))
            self._tell(listener.epoch, self.history[-1])
            if len(self.history) == self.epochs or self._checkpoint_is_due(CHECKPOINT_SECONDS):
                self._write_checkpoint()

    def _warned(self) -> list[str]:
        """What was warned of in training, before a checkpoint too."""
        return sorted({*self._warned_before, *(str(warning.message) for warning in self._caught)})

    def _tell(self, call: Callable[[Any], None], what: Epoch | Moment) -> None:
        try:
            call(what)
        except StopAsked as stop:
            stop.is_kept = self._write_checkpoint()
            if self.folder is not None and not stop.is_kept:
                raise NumericalFault(f"a parameter became NaN or infinite by step {self._steps_done}") from None
            raise

    # One epoch ------------------------------------------------------------------------------------

    def _run_epoch(self, step: CapturedStep, listener: Listener) -> Epoch:
        self._start = self._last_moment = time.perf_counter()
        for batch in self._order()[self.position :]:
            self._set_learning_rate()
            step(batch)
            self._steps_done += 1
            if time.perf_counter() - self._last_moment >= MOMENT_SECONDS and self.position < self.steps_per_epoch:
                self._within_epoch(listener)
        nll, right = (self._sums / self.steps_per_epoch).tolist()  # waits for the device, once an epoch
        seconds = self._seconds_so_far()
        self._sums.zero_()
        self._seconds = 0.0
        terms, ranks = self.ranks.terms(), current_ranks(self.model)
        return Epoch(
            stage=self.stage,
            epoch=len(self.history) + 1,
            nll=nll,
            accuracy=right / self.spec.batch_size,
            kl_nats=terms["kl_nats"],
            beta=terms["beta"],
            parameters=self._parameters(ranks),
            ranks=ranks,
            seconds=seconds,
        )

    def _within_epoch(self, listener: Listener) -> None:
        """What there is to do between two steps, now and then."""
        self._last_moment = time.perf_counter()
        if self._checkpoint_is_due(CHECKPOINT_SECONDS_WITHIN):
            self._write_checkpoint()
        before = max(0, self._steps_restored - len(self.history) * self.steps_per_epoch)
        now = Moment(self.stage, len(self.history) + 1, self.position, self.steps_per_epoch, before)
        self._tell(listener.moment, now)

    @property
    def position(self) -> int:
        """Steps that are done of the epoch under way."""
        return self._steps_done - len(self.history) * self.steps_per_epoch

    def _seconds_so_far(self) -> float:
        """Of the epoch under way, before and after a checkpoint it was continued from."""
        return self._seconds + time.perf_counter() - self._start

    def _step(self, batch: Tensor) -> Tensor:
        """One training step on the examples ``batch`` (B,); all of it on the device."""
        inputs, labels = self.examples.batch(batch), self.examples.labels[batch]
        outputs = self._forward(inputs if self.augment is None else self.augment(inputs))
        nll = self.loss(outputs, labels)
        (nll + self.ranks.kl()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ranks.step()
        self._sums.add_(torch.stack([nll.detach(), self.count_right(outputs.detach(), labels).float()]))
        return nll.detach()

    def _forward(self, inputs: tuple[Tensor, ...]) -> Tensor:
        if self.spec.precision == "float32":
            outputs: Tensor = self.model(*inputs)
            return outputs
        # casts must not be kept beyond a step that is captured
        with torch.autocast(self.examples.device.type, torch.bfloat16, cache_enabled=False):
            outputs = self.model(*inputs)
        return outputs.float()

    def _order(self) -> Tensor:
        """The indices of an epoch, (steps, B); they depend on the seed and the epoch alone."""
        device = self.examples.device
        generator = torch.Generator(device).manual_seed(self.spec.seed * _MOST_EPOCHS + len(self.history))
        order = torch.randperm(len(self.examples), generator=generator, device=device)
        return order[: self.steps_per_epoch * self.spec.batch_size].view(self.steps_per_epoch, -1)

    def _set_learning_rate(self) -> None:
        # lr · min(1, (1 − t/T) / decay), written where the captured graph reads it
        factor = min(1.0, (1.0 - self._steps_done / self.total_steps) / self.spec.decay)
        if factor != self._lr_factor:
            for rate, full in zip(self._rates, self._full_rates, strict=True):
                rate.fill_(factor * full)
            self._lr_factor = factor

    def _parameters(self, ranks: dict[str, list[int]]) -> int:
        if self.history and self.history[-1].ranks == ranks:
            return self.history[-1].parameters
        return accounting(self.model).total.final_parameters

    def _rank_determination(self) -> RankDetermination | NoRanks:
        if not any(tensor.has_prior for tensor in tensors_of(self.model).values()):
            return NoRanks(self._sums.device)
        return RankDetermination(
            self.model,
            self.optimizer,
            num_data=len(self.examples),
            total_steps=self.total_steps,
            kl_weight=self.spec.kl_weight,
            warmup_steps=max(1, round(self.spec.warmup * self.total_steps)),
            check_every=self.steps_per_epoch,
            snapshots=False,
        )

    # Checkpoints ----------------------------------------------------------------------------------

    def _write_checkpoint(self) -> bool:
        """Keep the state as it is between two steps, if there is a folder for it; whether it is kept.

        That of a model that broke within an epoch is not; the check at its end says so.
        """
        self._last_checkpoint = time.perf_counter()
        if self.folder is None or (self.position > 0 and not_finite(self.model.named_parameters())):
            return False
        write_checkpoint(self.folder, self.model, self._state(), len(self.history), self.position)
        return True

    def _checkpoint_is_due(self, seconds: float) -> bool:
        return time.perf_counter() - self._last_checkpoint >= seconds

    @property
    def _settings(self) -> dict[str, Any]:
        """What a checkpoint must have been made with, to be one of this training."""
        return {**self.spec.as_dict(), "stage": self.stage, "epochs": self.epochs, "num_data": len(self.examples)}

    def _state(self) -> dict[str, Any]:
        device = self._sums.device
        return {
            "settings": self._settings,
            "optimizer": self.optimizer.state_dict(),
            "ranks": self.ranks.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            "history": [asdict(epoch) for epoch in self.history],
            "steps": self._steps_done,
            "sums": self._sums.clone(),
            "seconds": self._seconds_so_far() if self.position else 0.0,
            "warned": self._warned(),
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate.copy_(group["lr"])  # the tensor that _set_learning_rate writes to
        self._lr_factor = float("nan")  # unknown, so it is set before the next step
        self.ranks.load_state_dict(state["ranks"])
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self._steps_done = self._steps_restored = state["steps"]
        self._sums.copy_(state["sums"])
        self._seconds = state["seconds"]
        self._warned_before = state["warned"]
        torch.set_rng_state(state["rng"].cpu())
        if state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self._sums.device)


def _adam(model: nn.Module, spec: Spec, device: torch.device) -> Adam:
    """Adam, or AdamW if there is decay, with its learning rates on the device, where a captured graph can read them."""
    groups = param_groups(model, weight_decay=spec.weight_decay)
    for group in groups:
        factor = spec.log_std_lr if group["name"] == "log_std" else 1.0
        group["lr"] = torch.tensor(spec.lr * factor, device=device)
    make = AdamW if spec.weight_decay else Adam
    return make(groups, fused=True, capturable=device.type == "cuda")
