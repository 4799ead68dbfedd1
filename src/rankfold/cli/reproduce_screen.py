"""What ``rankfold reproduce`` shows: the runs under way, and a line for each that has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rankfold.experiments.planning import Schedule
from rankfold.experiments.results import Run
from rankfold.experiments.runner import Event
from rankfold.experiments.training import Epoch

_LINES_PER_RUN = 5  # of progress, where there is no terminal


class Board:
    """The state of all runs, drawn on the terminal as it changes.

    Attributes:
        stop_requests: not empty once the user has asked to stop.
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.new = len(plan.waiting)
        self.latest: dict[str, Epoch | None] = {}
        self.start = time.perf_counter()
        self.stop_requests: list[int] = []
        self._epochs_done = 0.0
        self._ended = 0

    def note(self, event: Event, *, live: bool = False) -> str | None:
        """Take in an event; the line to print for it, if any. A live board shows epochs itself."""
        name = event.run.name
        if event.ends:
            self._finish(event.run)
            return _failure_line(name, event.failure) if event.failure else _result_line(name, event.result or {})
        is_first = self.latest.get(name) is None
        self.latest[name] = event.epoch
        if event.epoch is None:
            return None
        self._epochs_done += 1
        if is_first and event.epoch.epoch > 1:
            return f"{name}  going on at epoch {event.epoch.epoch}"
        every = max(1, total_epochs(event.run) // _LINES_PER_RUN)
        return None if live or event.epoch.epoch % every else _epoch_line(event.run, event.epoch)

    def _finish(self, run: Run) -> None:
        """Epochs that a shared dense training or a checkpoint has saved count as done from now on."""
        self.latest.pop(run.name, None)
        self._ended += 1

    @property
    def seconds_left(self) -> float | None:
        """By the rate of epochs so far, which counts all runs side by side."""
        if not self._epochs_done:
            return None
        left = sum(total_epochs(run) for run in self.plan.waiting)
        left += sum(total_epochs(run) - _position(run, self.latest.get(run.name)) for run in self.plan.running)
        return left * (time.perf_counter() - self.start) / self._epochs_done

    def __rich__(self) -> RenderableType:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for heading in ("run", "stage", "epoch", "", "NLL", "KL", "β", "accuracy", "parameters", "ranks"):
            is_number = heading in ("epoch", "NLL", "KL", "β", "accuracy", "parameters")
            table.add_column(heading, justify="right" if is_number else "left", no_wrap=heading != "ranks")
        for run in self.plan.running:
            table.add_row(*_cells(run, self.latest.get(run.name)))
        left = self.seconds_left
        gone, runs = _clock(time.perf_counter() - self.start), "run" if self.new == 1 else "runs"
        status = f"{self._ended} of {self.new} {runs} done, {gone} gone"
        status += f", about {_clock(left)} left" if left is not None else ""
        stopping = "; stopping after this epoch, Ctrl-C again stops at once" if self.stop_requests else ""
        return Group(table, Text(status + stopping, style="dim"))


def total_epochs(run: Run) -> int:
    """Of all stages."""
    return run.spec.epochs + (run.spec.fine_tune_epochs if run.spec.compresses else 0)


def final_lines(plan: Schedule, board: Board, folder: Path) -> Iterator[str]:
    """The summary at the end."""
    for name, why in plan.failures.items():
        yield _failure_line(name, why)
    old = len(plan.finished) + len(plan.failures) - board.new
    seconds = time.perf_counter() - board.start
    one = len(plan.finished) == 1
    counts = "1 run has a result" if one else f"{len(plan.finished)} runs have results"
    counts += f", {len(plan.failures)} failed" if plan.failures else ""
    if board.new == 0 and not plan.failures:
        yield f"Nothing to do: {'' if one else 'all '}{counts} in {folder}."
    else:
        known = f" ({old} from before)" if old > 0 and not plan.failures else ""
        yield f"{counts}{known}, in {folder}; {_clock(seconds)}."


def _position(run: Run, epoch: Epoch | None) -> int:
    """How many epochs of all stages are behind a run."""
    if epoch is None:
        return 0
    return epoch.epoch + (run.spec.epochs if epoch.stage == "fine-tune" else 0)


def _cells(run: Run, epoch: Epoch | None) -> tuple[RenderableType, ...]:
    if epoch is None:
        return (run.name, "[dim]starting[/]")
    total = run.spec.fine_tune_epochs if epoch.stage == "fine-tune" else run.spec.epochs
    return (
        run.name,
        "evaluation" if _position(run, epoch) == total_epochs(run) else epoch.stage,
        f"{epoch.epoch}/{total}",
        ProgressBar(total=total, completed=epoch.epoch, width=16),
        f"{epoch.nll:.4f}",
        f"{epoch.kl_nats:,.0f}",
        f"{epoch.beta:.2f}",
        f"{epoch.accuracy:.2%}",
        f"{epoch.parameters:,}",
        _ranks(epoch.ranks),
    )


def _epoch_line(run: Run, epoch: Epoch) -> str:
    return (
        f"{run.name}  {epoch.stage} {epoch.epoch:3d}  NLL {epoch.nll:.4f}  KL {epoch.kl_nats:,.0f}  "
        f"β {epoch.beta:.2f}  training accuracy {epoch.accuracy:.2%}  parameters {epoch.parameters:,}  "
        f"ranks {_ranks(epoch.ranks)}"
    )


def _result_line(name: str, result: dict[str, Any]) -> str:
    scores = result["metrics"]["posterior_mean"]
    return (
        f"[green]✓[/] [bold]{name}[/]  accuracy {scores['accuracy']:.2%}  NLL {scores['nll_nats']:.4f}  "
        f"parameters {result['parameters']['final']:,}  ranks {_ranks(result['ranks']['after'])}  "
        f"{_clock(result['timing']['training_seconds'])}"
    )


def _failure_line(name: str, why: str) -> str:
    return f"[red]✗[/] [bold]{name}[/]  {escape(why)}"


def _ranks(ranks: dict[str, list[int]]) -> str:
    return "  ".join("·".join(map(str, values)) for values in ranks.values()) or "–"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
