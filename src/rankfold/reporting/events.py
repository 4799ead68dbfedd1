"""A run's history as TensorBoard event files. Needs tensorboardX: pip install 'rankfold[tensorboard]'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rankfold.reporting.run import DEMO_FILE, RUN_FILE, Epoch, Run

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


def folders_of(files: Sequence[Path]) -> list[Path]:
    """A folder for each of several runs: the shortest ends of their paths that tell them apart.

    >>> [str(folder) for folder in folders_of([Path("/a/mine/run.json"), Path("/a/results/cp-seed0.json")])]
    ['mine', 'cp-seed0']
    >>> [str(folder) for folder in folders_of([Path("/a/first/mine/run.json"), Path("/a/second/mine/run.json")])]
    ['first/mine', 'second/mine']
    """
    paths = [file.resolve() for file in files]
    for places in (
        [_place(path) for path in paths],
        paths,
    ):  # x/run.json and x.json are told apart by their whole names
        names = [place.parts[1:] for place in places]  # without the root
        for length in range(1, max(map(len, names)) + 1):
            ends = [Path(*name[-length:]) for name in names]
            if len(set(ends)) == len(ends):
                return ends
    raise ValueError(f"the same run is named twice: {', '.join(map(str, files))}")


def _place(file: Path) -> Path:
    """What a run is known by: its folder, or the name of its result file."""
    return file.parent if file.name in (RUN_FILE, DEMO_FILE) else file.with_suffix("")
