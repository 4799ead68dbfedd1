"""Rank determination as a callback of Hugging Face's ``Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from rankfold.distributed import is_distributed, rewrap
from rankfold.integrations.settings import Settings, readings, size_of
from rankfold.rank_determination import RankDetermination
from rankfold.wrapping import unwrapped, unwrapped_optimizer

try:
    from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "rankfold.integrations.transformers needs transformers and accelerate; install them with: "
        "pip install 'rankfold[transformers]'",
        name=error.name,
    ) from error

STATE_FILE = "rankfold_ranks.pt"
_IGNORED = -100  # labels that the losses of transformers leave out
_EXAMPLES_LOOKED_AT = 64


class RankDeterminationCallback(TrainerCallback):
    """Finds the ranks of a tensorized model while a ``Trainer`` trains it.

    The model's loss stays the mean NLL. At the start of every optimizer step the callback puts the gradient
    of the KL on the parameters, where those of the batches are added to it: it counts once, whatever is
    accumulated, scaled or clipped. At the end of the step it updates λ and prunes on schedule. What it logs
    joins the Trainer's own logs. Its state lies beside the Trainer's in every checkpoint.

    ::

        rankfold.tensorize_(model, rankfold.TTM(max_rank=16), "*.mlp.*")  # model(input_ids (B, L), labels (B, L))
        optimizer = torch.optim.AdamW(rankfold.param_groups(model, lr=2e-3, weight_decay=0.01))
        callback = RankDeterminationCallback(kl_weight=1.0)
        trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[callback])
        callback.attach(trainer)  # in several processes, and for TensorBoard and the like
        trainer.train()
        print(callback.ranks.history)  # what was cut, and when

    Args:
        num_data: N, the terms that the mean NLL averages over one epoch. Left out, it is the number of examples
            times the mean number of labels in one that the Trainer counts, found from some of them.
        total_steps: the number of optimizer steps; the Trainer's own if left out.
        options: any other option of :class:`~rankfold.RankDetermination`, such as ``kl_weight`` or ``pruning``.

    Attributes:
        ranks: the rank determination, once training has begun.
    """

    def __init__(self, num_data: int | None = None, total_steps: int | None = None, **options: Any) -> None:
        self.ranks: RankDetermination | None = None
        self._settings = Settings(num_data, total_steps, options)
        self._trainer: Trainer | None = None
        self._scaler: torch.amp.GradScaler | None = None

    def attach(self, trainer: Trainer) -> None:
        """Know the trainer, and come first of its callbacks, so that those that report see what is logged here.

        In several processes it is needed: pruning must tell DDP, which the Trainer shows to no callback.
        """
        if not isinstance(trainer, Trainer):
            raise TypeError(f"attach takes a transformers.Trainer, got {trainer!r}")
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        self._trainer = trainer

    # When training begins -------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        model: nn.Module = parts["model"]
        optimizer: Optimizer = parts["optimizer"]
        if self._trainer is None and is_distributed():
            raise RuntimeError("in several processes the callback must know its trainer: call callback.attach(trainer)")
        self._scaler = vars(optimizer).get("scaler")  # Accelerate's wrapper knows it
        num_data = self._settings.num_data or count_terms(parts["train_dataloader"], model)
        self.ranks = self._settings.make(model, [unwrapped_optimizer(optimizer)], num_data, state.max_steps)
        if state.global_step > 0:
            self._resume(_checkpoint(args, state), state.global_step)

    def _resume(self, folder: Path, step: int) -> None:
        file = folder / STATE_FILE
        if not file.exists():
            raise FileNotFoundError(
                f"training goes on from step {step}, but {file} is missing, which holds the state of the rank "
                f"determination; resume from a checkpoint in output_dir that was written with this callback"
            )
        assert self.ranks is not None
        self.ranks.load_state_dict(torch.load(file, map_location=self.ranks.beta.device, weights_only=True))

    # The two half steps ---------------------------------------------------------------------------

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        self._running().kl_backward(self._scaler)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        pruned = self._running().step()
        if pruned is not None and self._trainer is not None:
            rewrap(self._trainer.model_wrapped)

    # Logs and checkpoints -------------------------------------------------------------------------

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        logs: dict[str, float] = parts["logs"]
        if "loss" in logs:  # one of training, not of an evaluation or the summary
            added = readings(self._running())
            logs.update(added)
            state.log_history[-1].update(added)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        if args.should_save:
            torch.save(self._running().state_dict(), _checkpoint(args, state) / STATE_FILE)

    def _running(self) -> RankDetermination:
        if self.ranks is None:
            raise RuntimeError("the callback joined after training had begun; give it to Trainer(callbacks=[...])")
        return self.ranks


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


def count_terms(loader: DataLoader[Any], model: nn.Module) -> int | None:
    """How many terms the Trainer divides the NLL by in one epoch: labels that are not ignored, over all examples.

    They are counted over a few examples, evenly spread, and scaled up; what the collator draws at random
    does not disturb the random numbers of training. ``None`` if the size of the data is unknown, or no example can be
    looked at before its turn.
    """
    size = size_of(loader.dataset)
    if size is None or not size or isinstance(loader.dataset, IterableDataset):
        return None
    places = range(0, size, -(-size // _EXAMPLES_LOOKED_AT))
    with torch.random.fork_rng():
        batch = loader.collate_fn([loader.dataset[n] for n in places])
    labels = batch.get("labels")
    if isinstance(labels, Tensor) and first_label_is_skipped(unwrapped(model)):
        labels = labels[..., 1:]
    terms = int((labels != _IGNORED).sum()) if isinstance(labels, Tensor) else len(places)
    return max(1, round(size * terms / len(places)))


def first_label_is_skipped(model: nn.Module) -> bool:
    """Whether the Trainer leaves the first label of every example out of its count, as no output predicts it.

    It does so by the name of the loss, for causal models that are not encoder-decoders.
    """
    return (
        isinstance(model, PreTrainedModel)
        and LOSS_MAPPING.get(model.loss_type) is ForCausalLMLoss
        and not model.config.is_encoder_decoder
    )
