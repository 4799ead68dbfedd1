"""What ``rankfold train``, ``plan`` and ``demo`` have in common: options, and what those of the first two ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rankfold.experiments.spec import FormatName, PriorName
from rankfold.jobs.fingerprint import fingerprint
from rankfold.jobs.job import Job, as_option, learn, make_spec
from rankfold.jobs.preparation import DataOptions, Learned, ModelName, TaskName

# Options that are settings of training, and those that say something of the data, by their name there.
SPEC_OPTIONS = ("format", "prior", "kl_weight", "max_rank", "epochs", "batch_size", "lr", "seed")
DATA_OPTIONS = {
    "target": "target",
    "task": "task",
    "categorical": "categorical",
    "ignore": "ignored",
    "image_size": "image_size",
    "validation_share": "validation_share",
}

MOST_SEED = 2**32 - 1

Data = Annotated[
    Path,
    typer.Argument(readable=False, help="A folder of images, a CSV or Parquet table, a text file, or a Criteo file."),
]
Model = Annotated[
    ModelName | None, typer.Option(help="The network; cnn for images, mlp for tables, and so on, if left out.")
]
Target = Annotated[str | None, typer.Option(help="Table: the column to predict.")]
Task = Annotated[TaskName | None, typer.Option(help="Table: guessed from the target's cells if left out.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Table: a column whose numbers are names, such as postcodes; repeatable.")
]
Ignore = Annotated[list[str] | None, typer.Option(help="Table: a column to leave out; repeatable.")]
ImageSize = Annotated[
    int | None,
    typer.Option(
        min=8, max=4096, help="Images: pixels of a side. If left out, 64, or as they are if all have one smaller size."
    ),
]
Format = Annotated[
    FormatName, typer.Option(help="How weights are factored: cp has one rank per layer, the others several.")
]
Prior = Annotated[PriorName, typer.Option(help="The prior that pulls ranks nobody needs to zero.")]
KlWeight = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Trades fit for size: larger means smaller models. 1, or √(N / 10,000) for fewer examples than that; "
        "less with fewer epochs than the default.",
    ),
]
MaxRank = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Rank to start from: 50 for cp, 8 for tucker, 20 for tt and ttm; less for few clicks. If that makes no "
        "layer smaller, half of it, and so on.",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, help="Passes over the data; enough for 3,000 steps; 1 for 384,000 clicks to train on."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(min=1, help="Examples per step; 128, or fewer where an epoch would have under 8 steps."),
]
LearningRate = Annotated[
    float | None, typer.Option(help="Adam's learning rate; 0.002, but 0.005 for text and 0.001 for dlrm.")
]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="The same seed gives the same run.")]
ValidationShare = Annotated[float, typer.Option(help="Share of the examples that is held back and never trained on.")]

Dense = Annotated[
    bool,
    typer.Option(
        "--dense",
        help="Also train the dense network, for the same epochs, to compare with; takes as much time again.",
    ),
]


def asked_for(given: Mapping[str, Any], data: Path) -> tuple[Job, Learned]:
    """What the options of a command ask for, and the data they ask it for."""
    try:
        options = DataOptions(**{field: plain(given[name]) for name, field in DATA_OPTIONS.items()})
    except ValueError as error:
        raise ValueError(as_option(error)) from error
    model, learned = learn(data, given["model"], options)
    spec = make_spec(learned.preparation, model, len(learned.train), {name: given[name] for name in SPEC_OPTIONS})
    return Job(data, model, spec, options, fingerprint(learned)), learned


def plain(value: Any) -> Any:
    """An option that may be repeated, as a tuple."""
    return tuple(value) if isinstance(value, list) else value
