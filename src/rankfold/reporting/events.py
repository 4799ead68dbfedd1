"""A run's history as TensorBoard event files. Needs tensorboardX: pip install 'rankfold[tensorboard]'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankfold.reporting.run import Epoch, Run

_ENDING = ".rankfold"  # of our event files
# The heading under which TensorBoard shows a quantity.
_FOLDERS = {
    **dict.fromkeys(("nll", "evaluation_nll", "kl_nats", "beta"), "objective"),
    **dict.fromkeys(("accuracy", "evaluation_accuracy", "evaluation_rmse"), "quality"),
    "parameters": "size",
}


def scalars(epoch: Epoch) -> Iterator[tuple[str, float]]:
    """Everything known after an epoch, by the name it has in TensorBoard."""
    yield from ((f"{_FOLDERS[key]}/{key}", value) for key, value in epoch.numbers.items())
    for layer, ranks in epoch.ranks.items():
        yield from ((f"ranks/{layer}/{n}", float(rank)) for n, rank in enumerate(ranks, start=1))


def final_scalars(run: Run) -> Iterator[tuple[str, float]]:
    """The scores at the end of training."""
    for prediction, scores in run.scores.items():
        yield from ((f"evaluation/{prediction}/{name}", value) for name, value in scores.items())


def write_events(folder: Path, run: Run) -> None:
    """Write one event file into ``folder``: a point per epoch, histograms of λ, and the scores at the end.

    Event files that this function wrote there before are removed: TensorBoard would draw every point twice.
    """
    from tensorboardX import SummaryWriter

    for older in folder.glob(f"events.out.tfevents.*{_ENDING}"):
        older.unlink()
    writer = SummaryWriter(str(folder), filename_suffix=_ENDING)
    try:
        for epoch in run.history:
            for name, value in scalars(epoch):
                writer.add_scalar(name, value, epoch.position)
            for layer, groups in epoch.variances.items():
                for n, values in enumerate(groups, start=1):
                    writer.add_histogram(f"lambda/{layer}/{n}", list(values), epoch.position)
        for name, value in final_scalars(run):
            writer.add_scalar(name, value, len(run.history))
    finally:
        writer.close()
