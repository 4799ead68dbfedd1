"""DLRM on made-up clicks at full size, where the best AUC and the true ranks are known."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankfold.data.criteo_synthetic import Clicks, PlantedClicks
from rankfold.experiments import clicks
from rankfold.experiments.dlrm import FOLDINGS as REAL_FOLDINGS
from rankfold.experiments.dlrm import MODES, network, table_name
from rankfold.experiments.spec import Split
from rankfold.experiments.task import Data, Examples, Planted, Task

NUM_TRAIN, NUM_EVALUATION = 64_000_000, 300_000
TRUE_RANK = 4
# The indices of every mode mean something by themselves, as the planted factors have mean 1.
FOLDINGS = {name: replace(folding, init_std=0.1, equal_rows=True) for name, folding in REAL_FOLDINGS.items()}
_SEED = 0
# Numbers of the chunks that each part starts with; they never meet.
_FIRST_CHUNKS = {"train": 1, "validation": 1_000_000, "test": 2_000_000}


@lru_cache(maxsize=1)
def planted_clicks() -> PlantedClicks:
    """The planted model, the same for all formats and all seeds of a run."""
    return PlantedClicks(_SEED, MODES, rank=TRUE_RANK)


def load(split: Split, device: torch.device, folder: Path | None = None, verify: bool = True) -> Data:
    """Made-up rows, made on the device: no files are read, and 64 million rows take 10.6 GB there."""
    train = planted_clicks().rows(NUM_TRAIN, _FIRST_CHUNKS["train"], device=device)
    evaluation = planted_clicks().rows(NUM_EVALUATION, _FIRST_CHUNKS[split], device=device)
    share = int(train.labels.sum()) / NUM_TRAIN
    planted = Planted(
        ranks={table_name(n): [TRUE_RANK] for n in MODES},
        accuracy=float(((evaluation.probabilities > 0.5) == evaluation.labels).double().mean()),
        label_shares=[1.0 - share, share],
    )
    return Data(_examples(train), _examples(evaluation), planted=planted)


def _examples(rows: Clicks) -> Examples:
    return Examples((rows.numbers, rows.categories), rows.labels)


def evaluate(model: nn.Module, data: Data, seed: int) -> dict[str, Any]:
    """Scores of the model, and beside them those of the planted model, which none can beat but by luck."""
    best = planted_clicks().probabilities(*data.evaluation.inputs)
    return {
        **clicks.evaluate(model, data, seed),
        "planted": clicks.click_scores(best.cpu(), data.evaluation.labels.cpu()),
    }


TASK = Task(
    network,
    FOLDINGS,
    load,
    loss=clicks.click_loss,
    evaluate=evaluate,
    counted="layers",
    too_large=True,
    needs="Every run makes 64 million rows first, which take 10.6 GB, and the one epoch takes minutes on a fast GPU, "
    "hours on a CPU. The dense network takes 78 GB.",
)
