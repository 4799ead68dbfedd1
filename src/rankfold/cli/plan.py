"""``rankfold plan``: what ``rankfold train`` would do, without training."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from rankfold.cli import train_options as o
from rankfold.cli.reading import refusing
from rankfold.cli.train_screen import column_lines, data_line
from rankfold.jobs.job import Job
from rankfold.jobs.networks import planned
from rankfold.jobs.preparation import Learned, counted
from rankfold.surgery import Plan


def plan(
    context: typer.Context,
    data: o.Data,
    model: o.Model = None,
    target: o.Target = None,
    task: o.Task = None,
    categorical: o.Categorical = None,
    ignore: o.Ignore = None,
    image_size: o.ImageSize = None,
    format: o.Format = "ttm",
    prior: o.Prior = "log-uniform",
    kl_weight: o.KlWeight = None,
    max_rank: o.MaxRank = None,
    epochs: o.Epochs = None,
    batch_size: o.BatchSize = None,
    lr: o.LearningRate = None,
    seed: o.Seed = 0,
    validation_share: o.ValidationShare = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Say what `rankfold train` would do with the same options, without training.

    `rankfold plan houses.csv --target price --max-rank 8`

    The data are read and checked as for training: what they are, and what would be learned of them. No network is
    made, however large it is; nothing is written. In the table of its layers,

    - *format* is how a weight is folded, such as TTM 8·8 x 4·8, the modes of its inputs and those of its outputs;
      `dense` stays as it is
    - *ranks* are those to start from; training finds how many of them are needed
    - *padding* is what is added to a size that does not fold well; on a narrow terminal the column is missing if
      there is none, and so is the *type*
    - *dense*, *training* and *final* are numbers of parameters: of a plain layer, of the factors while they have a
      spread, and of the factors afterwards. *final* is the most that is left: every rank that is cut lowers it

    Below it stand the steps, the learning rate and the KL weight, as you gave them or as they follow from the data.

    Exit codes: 0 done, 2 the request or the data are wrong.
    """
    with refusing():
        job, learned = o.asked_for(context.params, data)
    found = planned(learned.preparation.network(job.model), job.spec)
    if as_json:
        typer.echo(json.dumps(_as_dict(job, learned, found), indent=2, ensure_ascii=False))
        return
    about = data_line(job, learned.preparation, len(learned.train), len(learned.validation))
    console = Console()
    for text in (f"{data}: {about}", *column_lines(job, learned.preparation), f"model {job.model}", ""):
        console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    console.print(found.table(console.width), markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(_settings(job, learned), markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _steps(job: Job, learned: Learned) -> int:
    """Of an epoch: whole batches only."""
    return len(learned.train) // job.spec.batch_size


def _settings(job: Job, learned: Learned) -> str:
    spec, steps = job.spec, _steps(job, learned)
    return (
        f"{counted(spec.epochs, 'epoch')} of {counted(steps, 'step')}, {spec.epochs * steps:,} in all; batches of "
        f"{spec.batch_size}; learning rate {spec.lr:g}; {spec.prior} prior; KL weight {spec.kl_weight:g}"
    )


def _as_dict(job: Job, learned: Learned, found: Plan) -> dict[str, Any]:
    preparation, steps = learned.preparation, _steps(job, learned)
    return {
        "data": {
            "path": str(job.data),
            "kind": preparation.kind,
            "num_train": len(learned.train),
            "num_evaluation": len(learned.validation),
            **preparation.about_target(),
            "columns": preparation.columns(job.options),
        },
        "model": job.model,
        "network": dict(preparation.network(job.model).options),
        "spec": job.spec.as_dict(),
        "steps_per_epoch": steps,
        "steps": job.spec.epochs * steps,
        "plan": found.as_dict(),
    }
