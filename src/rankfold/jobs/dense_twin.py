"""The dense twin of a job's network: trained on the same examples with the same settings, to compare with."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from rankfold.experiments.progress import Epoch, Listener
from rankfold.experiments.spec import Spec
from rankfold.experiments.task import Data
from rankfold.health import NumericalFault
from rankfold.jobs.objective import Objective
from rankfold.jobs.preparation import ModelName, Network, Preparation
from rankfold.jobs.targets import Quantity

STAGE = "dense"


def check_has_twin(preparation: Preparation, model: ModelName) -> None:
    """Refuse a comparison that cannot be made."""
    if isinstance(preparation.target, Quantity):
        raise ValueError(
            f"--dense compares accuracies, which a regression of {preparation.target.name!r} has not; leave it out"
        )
    if preparation.network(model).too_large:
        raise ValueError(f"--dense does not suit --model {model}, whose dense tables may not fit memory; leave it out")


def dense_accuracy(network: Network, spec: Spec, objective: Objective, data: Data, listener: Listener) -> float:
    """Train the dense network for the same epochs; its accuracy on the examples held back.

    A network whose NLL is no longer finite is a :class:`~rankfold.health.NumericalFault`.
    """
    torch.manual_seed(spec.seed)
    model = network.make(**network.options).to(data.train.device)

    def check(epoch: Epoch) -> None:
        if not math.isfinite(epoch.nll):
            raise NumericalFault(f"the NLL of the dense network became NaN or infinite in epoch {epoch.epoch}")
        listener.epoch(epoch)

    # without checkpoints: it is trained again after an interruption
    training = objective.training(model, data.train, spec.dense(), STAGE, None)
    training.run(replace(listener, epoch=check))
    return objective.quick_scores(model, data.evaluation)["evaluation_accuracy"]
