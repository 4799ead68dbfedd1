"""Rank determination as a Lightning callback."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch.optim import Optimizer

from rankfold.distributed import rewrap
from rankfold.integrations.settings import Settings, readings, size_of
from rankfold.rank_determination import RankDetermination
from rankfold.schedule import Pruning


def _lightning() -> Any:
    """The package that the program uses: ``lightning``, or ``pytorch_lightning``."""
    names = ["lightning.pytorch", "pytorch_lightning"]
    names.sort(key=lambda name: name not in sys.modules)  # stable: what is loaded already comes first
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.split(".")[0]):
                raise
    raise ModuleNotFoundError(
        "rankfold.integrations.lightning needs lightning or pytorch_lightning; install it with: "
        "pip install 'rankfold[lightning]'",
        name="lightning",
    )


_package = _lightning()
# Callbacks that average a copy of the model which they make themselves; older releases have only the first.
_AVERAGING = tuple(
    getattr(_package.callbacks, name)
    for name in ("StochasticWeightAveraging", "WeightAveraging")
    if hasattr(_package.callbacks, name)
)


class RankDeterminationCallback(_package.Callback):  # type: ignore[misc, name-defined]  # chosen at run time
    """Finds the ranks of a tensorized ``LightningModule`` while it trains.

    ``training_step`` returns the mean NLL alone; the callback adds the gradient of the KL, once for every
    optimizer step and before clipping, updates λ, prunes on schedule, lets DDP follow, and logs. ``num_data``
    and the number of steps come from the trainer where it knows them. Its state is part of Lightning's
    checkpoints.

    ::

        class Digits(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = rankfold.tensorize_(make_network(), rankfold.TTM(max_rank=10))

            def training_step(self, batch, batch_idx):
                x, y = batch  # (B, 64), (B,)
                return F.cross_entropy(self.net(x), y)  # the mean NLL alone, a scalar

            def configure_optimizers(self):
                return torch.optim.Adam(rankfold.param_groups(self, lr=1e-2))

        callback = RankDeterminationCallback(kl_weight=1.0)
        lightning.Trainer(max_epochs=20, callbacks=[callback]).fit(Digits(), loader)
        print(callback.ranks.history)  # what was cut, and when

    Args:
        num_data: N, the terms that the mean NLL averages over one epoch; the examples of the training set if
            left out. For a language model give the number of tokens.
        total_steps: the number of optimizer steps; the trainer's own estimate if left out.
        options: any other option of :class:`~rankfold.RankDetermination`, such as ``kl_weight`` or ``pruning``.

    Attributes:
        ranks: the rank determination, once training has begun.
    """

    def __init__(self, num_data: int | None = None, total_steps: int | None = None, **options: Any) -> None:
        super().__init__()
        self.ranks: RankDetermination | None = None
        self._settings = Settings(num_data, total_steps, options)
        self._saved: dict[str, Any] | None = None
        self._steps_before = 0  # those that the trainer had taken when ranks began to be found

    # When training begins -------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._saved = None  # a state that a test or a validation has read; Lightning restores that of a fit after this

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization:
            raise RuntimeError(
                "with manual optimization call the two half steps yourself: ranks.kl_backward() before "
                "optimizer.step(), ranks.step() after it; RankDeterminationCallback serves automatic optimization"
            )
        data = size_of(getattr(trainer.train_dataloader, "dataset", None))
        # the trainer counts the steps of earlier calls of fit() and of checkpoints without this callback, too
        self._steps_before = trainer.global_step - (0 if self._saved is None else self._saved["num_steps"])
        total_steps = trainer.estimated_stepping_batches - self._steps_before
        self.ranks = self._settings.make(pl_module, trainer.optimizers, data, total_steps)
        _refuse_averaging(trainer, self.ranks.schedule.pruning)
        if self._saved is not None:
            self.ranks.load_state_dict(self._saved)
            self._saved = None

    # The two half steps ---------------------------------------------------------------------------

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Optimizer) -> None:
        # Lightning has accumulated and unscaled the gradients by now, and has not clipped them yet
        self._running().kl_backward(_scaler_still_at_work(trainer, optimizer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        ranks = self._running()
        if trainer.global_step - self._steps_before == ranks.num_steps:
            return  # gradients are still being accumulated
        if ranks.step() is not None and isinstance(trainer.strategy.model, torch.nn.Module):
            rewrap(trainer.strategy.model)
        if trainer.global_step % trainer.log_every_n_steps == 0:
            self._log(trainer, pl_module, outputs)

    def _log(self, trainer: Any, pl_module: Any, outputs: Any) -> None:
        values = readings(self._running())
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, torch.Tensor):  # Lightning has divided it among the accumulated batches
            values["rankfold/nll"] = float(loss) * trainer.accumulate_grad_batches
        pl_module.log_dict(values, batch_size=1)

    # Checkpoints ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {} if self.ranks is None else self.ranks.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict or None

    def _running(self) -> RankDetermination:
        assert self.ranks is not None
        return self.ranks


def _refuse_averaging(trainer: Any, pruning: Pruning) -> None:
    """Refuse Lightning's own averages while factors will change: their copies cannot be changed along."""
    for callback in trainer.callbacks:
        if isinstance(callback, _AVERAGING) and (pruning.at or pruning.simplify_at):
            raise ValueError(
                f"{type(callback).__name__} averages a copy of the model that it makes itself, which cannot follow "
                f"when pruning changes factors; average a copy of your own, given as RankDeterminationCallback("
                f"copies=...), or give pruning=rankfold.Pruning(at=(), simplify_at=()) and call rankfold.prune_(model) "
                f"after training"
            )


def _scaler_still_at_work(trainer: Any, optimizer: Optimizer) -> torch.amp.GradScaler | None:
    """The scaler, if the optimizer will unscale gradients by itself, as fused ones do."""
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler if fused else None
