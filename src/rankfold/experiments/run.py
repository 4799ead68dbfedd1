"""One run from its spec to its result file."""

from __future__ import annotations

import functools
import operator
import shutil
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankfold.architecture import Architecture
from rankfold.bayesian_tensor import tensors_of
from rankfold.checkpoint import save
from rankfold.counts import accounting
from rankfold.experiments.evaluation import classification
from rankfold.experiments.methods import Ranks, Workshop, train
from rankfold.experiments.progress import Epoch, Listener
from rankfold.experiments.provenance import peak_memory, provenance, start_measuring_memory
from rankfold.experiments.registry import task_named
from rankfold.experiments.results import Places, Run, read_result, write_record
from rankfold.experiments.spec import Spec, Split
from rankfold.experiments.task import Data, Task
from rankfold.tensorized_weights import current_ranks, weight_name


@functools.lru_cache(maxsize=1)
def _load_once(task: str, split: Split, device: torch.device, folder: Path | None, verify: bool) -> Data:
    return task_named(task).load(split, device, folder, verify)


def load_data(run: Run, places: Places, device: torch.device) -> Data:
    """What a run shares with others of its split. Files with fewer rows than one of its batches are refused."""
    data = _load_once(run.task_name, run.spec.split, device, places.data, places.verify)
    _check_size(data, run.spec.batch_size)
    return data


def perform(run: Run, places: Places, device: torch.device, listener: Listener = Listener()) -> dict[str, Any]:
    """Train, evaluate and write the result, which is also returned; the model is left in the run's folder."""
    start_measuring_memory(device)
    oracle = oracle_ranks(run, places)
    task = task_named(run.task_name)
    data = task.prepare(load_data(run, places, device), run.spec)
    folder = run.folder(places)
    workshop = Workshop(task, data, folder, places.runs / run.table / "shared", listener)
    with warnings.catch_warnings(record=True, action="always") as caught:
        trained = train(run.spec, workshop, oracle)
    start = time.perf_counter()
    if task.settle is not None:
        task.settle(trained.model, data)
    metrics = (task.evaluate or classification)(trained.model, data, run.spec.seed)
    result = {
        "table": run.table,
        "row": run.row,
        "seed": run.spec.seed,
        "spec": run.spec.as_dict(),
        **about_model(trained.model, run.spec, counted_layers(task)),
        "metrics": metrics,
        "data": _about_data(data, places),
        "timing": {
            **timing(run.spec, trained.history, len(data.train)),
            "evaluation_seconds": time.perf_counter() - start,
        },
        "peak_memory": peak_memory(device),
        "warnings": sorted({str(warning.message) for warning in caught}),
        **provenance(device),
        "history": [asdict(epoch) for epoch in trained.history],
    }
    if not (task.too_large and run.spec.method == "dense"):
        save(trained.model, folder / "model")
        Architecture.of(task.network, data.train.inputs).write(folder / "model")
    write_record(run.file(places), result)
    for stage in {epoch.stage for epoch in trained.history}:
        shutil.rmtree(folder / stage, ignore_errors=True)
    return result


def _check_size(data: Data, batch_size: int) -> None:
    """Refuse files with fewer rows than one batch has, by their names."""
    if data.files and len(data.train) < batch_size:
        raise ValueError(
            f"{', '.join(map(str, data.files))}: there are {len(data.train)} rows to train on, fewer than one batch of "
            f"{batch_size}; name a file of more rows with --data"
        )


def oracle_ranks(run: Run, places: Places) -> Ranks | None:
    """The ranks that the oracle's run of the same seed found, from its result file."""
    if run.spec.oracle is None:
        return None
    file = places.results / run.table / f"{run.spec.oracle}-seed{run.spec.seed}.json"
    if not file.exists():
        raise FileNotFoundError(
            f"{run.name} needs the ranks that {run.spec.oracle} found with the same seed, but there is no {file}; "
            f"run that row first: rankfold reproduce {run.table} {run.spec.oracle}"
        )
    ranks: Ranks = read_result(file)["ranks"]["after"]
    return ranks


def about_model(model: nn.Module, spec: Spec, layers: Sequence[str] = ()) -> dict[str, Any]:
    """Ranks and parameter counts, before and after: of the named layers alone, or of the whole model."""
    parts = [model.get_submodule(name) for name in layers] or [model]
    total = functools.reduce(operator.add, (accounting(part).total for part in parts))
    before = {weight_name(name): list(t.max_ranks) for name, t in tensors_of(model).items()}
    return {
        "ranks": {"before": before, "after": current_ranks(model)},
        "parameters": {
            "of": "layers" if layers else "network",
            "dense": total.dense_parameters,
            # a method that trains a dense model first holds all of it
            "training": total.dense_parameters if spec.compresses else total.training_parameters_at_start,
            "final": total.final_parameters,
        },
    }


def counted_layers(task: Task) -> tuple[str, ...]:
    """The layers whose parameters the table counts; none means the whole network."""
    return () if task.counted == "network" else tuple(next(iter(task.foldings.values())).layers)


def _about_data(data: Data, places: Places) -> dict[str, Any]:
    return {
        "num_train": len(data.train),
        "num_evaluation": len(data.evaluation),
        "num_unfamiliar": 0 if data.unfamiliar is None else len(data.unfamiliar[0]),
        "verified": places.verify,
        "planted": None if data.planted is None else asdict(data.planted),
    }


def timing(spec: Spec, history: Sequence[Epoch], num_train: int) -> dict[str, float]:
    """Seconds of all epochs, a shared dense training included; of a step, the median over the epochs."""
    seconds = [epoch.seconds for epoch in history]
    steps = num_train // spec.batch_size
    last_stage = [epoch.seconds for epoch in history if epoch.stage == history[-1].stage]
    return {"training_seconds": sum(seconds), "seconds_per_step": statistics.median(last_stage) / steps}
