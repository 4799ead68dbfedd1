"""How each method is made of the same parts: a dense network, ``tensorize_`` and the one training loop."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import nn

from rankfold.checkpoint import load, save
from rankfold.config import Inference
from rankfold.counts import accounting
from rankfold.experiments.memory_check import check_memory_in_use
from rankfold.experiments.progress import Epoch, Listener
from rankfold.experiments.rows_in_use import rows_in_use
from rankfold.experiments.spec import Spec
from rankfold.experiments.task import Data, Task
from rankfold.experiments.training import Training
from rankfold.surgery import tensorize_
from rankfold.surgery.materialize import materialized
from rankfold.whole_files import publish

Ranks = Mapping[str, Sequence[int]]
_HISTORY_FILE = "history.json"


@final
@dataclass(frozen=True)
class Trained:
    """A trained model and every epoch it took, those of all stages."""

    model: nn.Module
    history: list[Epoch]


@final
@dataclass(frozen=True)
class Workshop:
    """Where a method trains.

    Args:
        task: what to train.
        data: on the device to train on.
        folder: of this run's checkpoints.
        shared: of dense models that several runs start from.
        listener: told of every stage.
    """

    task: Task
    data: Data
    folder: Path
    shared: Path
    listener: Listener = Listener()

    @property
    def device(self) -> torch.device:
        return self.data.train.device

    def train(self, model: nn.Module, spec: Spec, *, epochs: int, stage: str) -> list[Epoch]:
        """Train a model in place."""
        training = Training(
            model.to(self.device),
            self.data.train,
            spec,
            epochs=epochs,
            stage=stage,
            folder=None if self.task.too_large and stage == "dense" else self.folder / stage,
            loss=self.task.loss,
            augment=self.task.augment,
        )
        return training.run(self.listener)


def train(spec: Spec, workshop: Workshop, oracle: Ranks | None = None) -> Trained:
    """Run the method of ``spec``; ``oracle`` are the ranks that ``tc-or`` needs."""
    match spec.method:
        case "dense":
            return train_dense(spec, workshop)
        case "fr":
            return _train_tensorized(spec, workshop, "fixed")
        case "ard":
            return _train_tensorized(spec, workshop, spec.inference)
        case "tc-mr":
            return _train_then_compress(spec, workshop, None)
        case "tc-or":
            if oracle is None:
                raise ValueError(f"method 'tc-or' needs the ranks that {spec.oracle} found; run that row first")
            return _train_then_compress(spec, workshop, oracle)


def train_dense(spec: Spec, workshop: Workshop) -> Trained:
    """The dense network; the same spec is trained once and then taken from the shared folder."""
    torch.manual_seed(spec.seed)
    folder = workshop.shared / f"dense-seed{spec.seed}-{_fingerprint(spec.dense(), len(workshop.data.train))}"
    if workshop.task.too_large:
        return _train_too_large(spec, workshop, folder)
    model = workshop.task.network()
    if folder.is_dir():
        history = json.loads((folder / _HISTORY_FILE).read_text(encoding="utf-8"))
        return Trained(load(model, folder).to(workshop.device), [Epoch(**epoch) for epoch in history])
    trained = Trained(model, workshop.train(model, spec, epochs=spec.epochs, stage="dense"))
    _share(trained, folder)
    return trained


# The last dense model that was too large to save, on the CPU, by the folder it would be in. The rows that compress it
# follow one another in a process, and would each train it anew.
_kept: dict[Path, Trained] = {}


def _train_too_large(spec: Spec, workshop: Workshop, folder: Path) -> Trained:
    """The dense network, made on the device where it is trained; its memory may be that of the one that is kept."""
    if folder not in _kept:
        _kept.clear()
        model = materialized(workshop.task.network_on_meta(), workshop.device)
        _kept[folder] = Trained(model, _train_rows_in_use(model, spec, workshop))
        model.cpu()
    model = workshop.task.network_on_meta()
    model.load_state_dict(_kept[folder].model.state_dict(), assign=True)
    return Trained(model.to(workshop.device), _kept[folder].history)


def _train_rows_in_use(model: nn.Module, spec: Spec, workshop: Workshop) -> list[Epoch]:
    """Dense training of all rows that the examples have; with decay, of all there are."""
    whole = accounting(model).total.final_parameters
    listener = workshop.listener
    counted = replace(listener, epoch=lambda epoch: listener.epoch(replace(epoch, parameters=whole)))
    workshop = replace(workshop, listener=counted)
    with nullcontext() if spec.weight_decay else rows_in_use(model, workshop.data.train):
        check_memory_in_use(model, whole, workshop.device)
        history = workshop.train(model, spec, epochs=spec.epochs, stage="dense")
    return [replace(epoch, parameters=whole) for epoch in history]


def _train_tensorized(spec: Spec, workshop: Workshop, inference: Inference) -> Trained:
    """Factors from the first step: at a fixed rank, or with a prior that finds it."""
    torch.manual_seed(spec.seed)
    configs = workshop.task.tensor_configs(spec, inference)
    network = workshop.task.network_on_meta() if workshop.task.too_large else workshop.task.network()
    model = tensorize_(network, None, overrides=configs)
    return Trained(model, workshop.train(model, spec, epochs=spec.epochs, stage="train"))


def _train_then_compress(spec: Spec, workshop: Workshop, ranks: Ranks | None) -> Trained:
    """Dense training, decomposition at the given ranks, and fine-tuning of the factors."""
    dense = train_dense(spec.dense(), workshop)
    torch.manual_seed(spec.seed)
    configs = workshop.task.tensor_configs(spec, "fixed", ranks)
    # small networks are decomposed on the CPU, where every machine has the same digits; a large one where it is
    device = workshop.device if workshop.task.too_large else torch.device("cpu")
    model = copy.deepcopy(tensorize_(dense.model.to(device), None, overrides=configs, trained=True))
    tuned = workshop.train(model, spec, epochs=spec.fine_tune_epochs, stage="fine-tune")
    return Trained(model, [*dense.history, *tuned])


def _fingerprint(spec: Spec, num_data: int) -> str:
    """Differs between specs, and between data sets of different size."""
    return hashlib.sha256(json.dumps([spec.as_dict(), num_data], sort_keys=True).encode()).hexdigest()[:8]


def _share(trained: Trained, folder: Path) -> None:
    """Keep a dense model for other runs."""
    partial = folder.with_name(f"{folder.name}-partial-{os.getpid()}")
    save(trained.model, partial)
    text = json.dumps([asdict(epoch) for epoch in trained.history])
    (partial / _HISTORY_FILE).write_text(text, encoding="utf-8")
    publish(partial, folder)
