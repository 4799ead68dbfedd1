"""A job from its data to its result: the one training loop of the experiments, with what a user's run needs around it.

While it trains, ``epochs.jsonl`` gets a line per epoch. It holds what the checkpoint does not: λ, and scores on
the validation part.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import torch

from rankfold.architecture import Architecture
from rankfold.checkpoint import save
from rankfold.counts import accounting
from rankfold.experiments.checkpoints import last_checkpoint
from rankfold.experiments.progress import Epoch, Listener, Moment, StopAsked
from rankfold.experiments.provenance import peak_memory, provenance, start_measuring_memory
from rankfold.experiments.results import write_record
from rankfold.experiments.run import about_model, timing
from rankfold.experiments.task import Data, Examples
from rankfold.health import NumericalFault
from rankfold.jobs.dense_twin import dense_accuracy
from rankfold.jobs.job import CHECKPOINT_FOLDER, MODEL_FOLDER, Job, write_failure, write_preparation
from rankfold.jobs.networks import build
from rankfold.jobs.objective import Objective
from rankfold.jobs.preparation import Encoded, Learned, Rows
from rankfold.jobs.scores import evaluate
from rankfold.jobs.targets import Classes
from rankfold.rank_determination import RankDetermination
from rankfold.reporting.events import write_events
from rankfold.reporting.run import RUN_FILE, Run
from rankfold.tensorized_weights import current_ranks, current_variances
from rankfold.whole_files import not_written, write_whole

EPOCHS_FILE, EVENTS_FOLDER = "epochs.jsonl", "events"

Record = dict[str, Any]


@final
@dataclass(frozen=True)
class Watcher:
    """Who follows a training.

    Args:
        epoch: called with the record of every epoch.
        moment: called twice a second within one, and within one of the dense network.
        stop: whether to stop, asked after either; training ends with a :class:`StopAsked` then.
        dense: called with every epoch of the dense network, where one is trained to compare with.
    """

    epoch: Callable[[Record], None] = lambda record: None
    moment: Callable[[Moment], None] = lambda moment: None
    stop: Callable[[], bool] = lambda: False
    dense: Callable[[Epoch], None] = lambda epoch: None

    def listener(self, note: Callable[[Epoch], None], epochs: int) -> Listener:
        """Has every epoch noted, and stops where that is asked for; after the last epoch there is nothing to stop."""

        def epoch_ended(epoch: Epoch) -> None:
            note(epoch)
            if epoch.epoch < epochs:
                self._stop_if_asked()

        def within_epoch(moment: Moment) -> None:
            self.moment(moment)
            self._stop_if_asked()

        return Listener(epoch_ended, within_epoch)

    def _stop_if_asked(self) -> None:
        if self.stop():
            raise StopAsked


@final
class JobRun:
    """A job, its data and its model, ready to train in ``folder``; from its checkpoint, if there is one.

    Attributes:
        model: tensorized, on the device.
        history: the record of every epoch so far.
        before, starting_ranks: accounting and ranks before training.
    """

    def __init__(self, job: Job, learned: Learned, folder: Path, device: torch.device) -> None:
        self.job = job
        self.preparation = learned.preparation
        self.folder = folder
        self.device = device
        self.objective = Objective.of(learned.preparation)
        self.data = on_device(learned, device)
        self.network = learned.preparation.network(job.model)
        start_measuring_memory(device)
        self.model = build(self.network, job.spec).to(device)
        self.before = accounting(self.model).total
        self.starting_ranks = current_ranks(self.model)
        place = folder / CHECKPOINT_FOLDER
        self._training = self.objective.training(self.model, self.data.train, job.spec, CHECKPOINT_FOLDER, place)
        extras = _read_extras(folder / EPOCHS_FILE)
        self.history = [self._record(epoch, extras.get(epoch.epoch, {})) for epoch in self._training.history]

    @property
    def resume_command(self) -> str:
        return self.job.resume_command(self.folder)

    @property
    def checkpoint(self) -> tuple[int, int] | None:
        """The epochs, and the steps of the next one, after which going on would start; none without a checkpoint."""
        return last_checkpoint(self.folder / CHECKPOINT_FOLDER)

    @property
    def steps_of_epoch(self) -> int:
        """Steps that are done of the epoch that follows the last one of the history."""
        return self._training.position

    def train(self, watcher: Watcher) -> Record:
        """Train to the end, evaluate, and leave the result in the folder; it is also returned."""
        self._begin()
        with warnings.catch_warnings(record=True, action="always") as caught:
            self._run(watcher)
        self.objective.settle(self.model, self.data.train, self.job.spec.seed)
        result = self._result(sorted({str(warning.message) for warning in caught}))
        if self.job.dense:
            result |= self._compared(watcher, result["warnings"])
        self._leave(result)
        result["warnings"] += self._leave_events(result)
        return result

    def _run(self, watcher: Watcher) -> None:
        try:
            self._training.run(watcher.listener(lambda epoch: self._note(epoch, watcher), self.job.spec.epochs))
        except NumericalFault as error:
            write_failure(self.folder, self.num_steps, error)
            raise

    def _compared(self, watcher: Watcher, warned: list[str]) -> Record:
        """The accuracy of the dense network; where its training fails, a warning, for the factors are as good."""
        spec = self.job.spec
        listener = watcher.listener(watcher.dense, spec.epochs)
        try:
            return {"dense_accuracy": dense_accuracy(self.network, spec, self.objective, self.data, listener)}
        except NumericalFault as error:
            return {"dense_accuracy": None, "warnings": [*warned, f"{error}, so there is nothing to compare with"]}

    @property
    def num_steps(self) -> int:
        """Steps that were taken, those before a checkpoint too."""
        ranks = self._training.ranks
        assert isinstance(ranks, RankDetermination)  # the factors of a job have a prior
        return ranks.num_steps

    def _begin(self) -> None:
        """Make the folder say what it is of; lines of epochs that have no checkpoint are forgotten."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.job.write(self.folder)
        write_preparation(self.preparation, self.folder)
        write_whole(self.folder / EPOCHS_FILE, "".join(map(_line, self.history)))

    def _note(self, epoch: Epoch, watcher: Watcher) -> None:
        scores = self.objective.quick_scores(self.model, self.data.evaluation)
        if not all(map(math.isfinite, (epoch.nll, *scores.values()))):
            raise NumericalFault(f"the NLL became NaN or infinite by step {self.num_steps}")
        record = self._record(epoch, {**scores, "variances": current_variances(self.model)})
        self.history.append(record)
        with (self.folder / EPOCHS_FILE).open("a", encoding="utf-8") as file:
            file.write(_line(record))
        watcher.epoch(record)

    def _record(self, epoch: Epoch, extras: Mapping[str, Any]) -> Record:
        """An epoch as it stands in the result; a quantity has no accuracy, and its NLL is that in its own unit."""
        record = {**asdict(epoch), "nll": epoch.nll + self.objective.nats_of_unit}
        if not isinstance(self.objective.target, Classes):
            record["accuracy"] = None
        return {**record, **{key: value for key, value in extras.items() if key not in record}}

    # The result -----------------------------------------------------------------------------------

    def _result(self, caught: list[str]) -> Record:
        spec, start = self.job.spec, time.perf_counter()
        metrics = evaluate(self.model, self.objective, self.data, spec.seed)
        seconds = time.perf_counter() - start
        return {
            "table": "train",
            "row": self.folder.resolve().name,
            "seed": spec.seed,
            "spec": spec.as_dict(),
            "model": self.job.model,
            "network": dict(self.network.options),
            **about_model(self.model, spec),
            "layers": accounting(self.model).as_dict()["layers"],
            "metrics": metrics,
            "data": self._about_data(),
            "timing": {**timing(spec, self._training.history, len(self.data.train)), "evaluation_seconds": seconds},
            "peak_memory": peak_memory(self.device),
            "warnings": caught,
            **provenance(self.device),
            "history": self.history,
        }

    def _about_data(self) -> Record:
        return {
            "path": str(self.job.data),
            "kind": self.preparation.kind,
            "num_train": len(self.data.train),
            "num_evaluation": len(self.data.evaluation),
            "num_unfamiliar": 0,
            **self.preparation.about_target(),
            "columns": self.preparation.columns(self.job.options),
            "fingerprint": self.job.fingerprint,
            **asdict(self.job.options),
        }

    def _leave(self, result: Record) -> None:
        """The model first: a folder with a result is whole."""
        folder = self.folder / MODEL_FOLDER
        save(self.model, folder)
        Architecture.of(self.network.make, self.data.train.inputs, self.network.options).write(folder)
        write_record(self.folder / RUN_FILE, result)
        shutil.rmtree(self.folder / CHECKPOINT_FOLDER, ignore_errors=True)
        (self.folder / EPOCHS_FILE).unlink(missing_ok=True)

    def _leave_events(self, result: Record) -> list[str]:
        """For TensorBoard, which nothing else needs; what went wrong."""
        folder = self.folder / EVENTS_FOLDER
        if find_spec("tensorboardX") is not None:
            try:
                write_events(folder, Run(self.folder / RUN_FILE, result))
            except OSError as error:
                return [f"There are no events for TensorBoard: {not_written(folder, error)}."]
        return []


def on_device(learned: Learned, device: torch.device) -> Data:
    """The examples for training and those for validation."""
    train, validation = (_part(learned.examples, rows, device) for rows in (learned.train, learned.validation))
    return Data(train, validation)


def _part(encoded: Encoded, rows: Rows, device: torch.device) -> Examples:
    assert encoded.labels is not None
    index = torch.from_numpy(rows)
    return Examples(tuple(x[index].to(device) for x in encoded.inputs), encoded.labels[index].to(device))


# Lines of epochs --------------------------------------------------------------------------------------


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _read_extras(file: Path) -> dict[int, Record]:
    """The records of a file by their epoch; a line that was cut short is left out."""
    found: dict[int, Record] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                found[record["epoch"]] = record
            except (ValueError, KeyError, TypeError):
                continue
    return found
