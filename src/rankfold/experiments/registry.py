"""The task of every table."""

from __future__ import annotations

from rankfold.experiments import cifar10, cifar10_resnet18, dlrm, dlrm_planted, imdb, mnist, ngram, synthetic
from rankfold.experiments.task import Task

TASKS: dict[str, Task] = {
    "mnist": mnist.TASK,
    "synthetic": synthetic.TASK,
    "imdb": imdb.TASK,
    "ngram": ngram.TASK,
    "dlrm": dlrm.TASK,
    "dlrm-extra": dlrm.EXTRA_TASK,
    "dlrm-planted": dlrm_planted.TASK,
    "cifar10": cifar10.TASK,
    "cifar10-resnet18": cifar10_resnet18.TASK,
}


def task_named(name: str) -> Task:
    """The task of that name, or an error that lists them."""
    if name not in TASKS:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}; a table names it in its defaults.toml")
    return TASKS[name]
