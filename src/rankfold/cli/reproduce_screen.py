"""What ``rankfold reproduce`` shows: the runs under way, and a line for each that has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rankfold.cli.moments import Silence, moment_line
from rankfold.cli.stopping import at_once
from rankfold.experiments.planning import Schedule
from rankfold.experiments.progress import Epoch, Moment
from rankfold.experiments.results import Run
from rankfold.experiments.runner import Event

_LINES_PER_RUN = 5  # of progress, where there is no terminal
_COLUMNS = ("run", "stage", "epoch", "bar", "NLL", "KL, nats", "β", "accuracy", "parameters", "ranks")
_WORDS = ("run", "stage", "bar", "ranks")  # they begin at the left; numbers end at the right
_DISPENSABLE = ("bar", "stage", "accuracy")  # in the order in which they give way on a narrow terminal
_NO_LIMIT = 10_000  # columns
# What is not lost, after the word "Stopped".
KEPT_AT_ONCE = " at once; results, and checkpoints that were written before, are kept."
_Line = tuple[Run, Epoch | None, Moment | None]


class Board:
    """The state of all runs, drawn on the terminal as it changes.

    Attributes:
        stop_requests: not empty once the user has asked to stop.
        told: the runs whose end has had its line.
        lost: the runs that were stopped where there is no checkpoint.
    """

    def __init__(self, plan: Schedule) -> None:
        self.plan = plan
        self.new = len(plan.waiting)
        self.latest: dict[str, Epoch | None] = {}
        self.moments: dict[str, Moment] = {}  # of the runs that are within an epoch
        self.start = time.perf_counter()
        self.stop_requests: list[int] = []
        self.told: set[str] = set()
        self.lost: list[str] = []
        self._epochs_done = 0.0
        self._silence = Silence()

    def note(self, event: Event, *, live: bool = False) -> str | None:
        """Take in an event; the line to print for it, if any. A live board shows epochs itself."""
        line = self._take_in(event)
        if live and not event.ends:
            return None
        if line is not None:
            self._silence.broken()
        return line

    def _take_in(self, event: Event) -> str | None:
        name = event.run.name
        if event.moment is not None:
            self.moments[name] = event.moment
            return _moment_line(event.run, event.moment) if self._silence.is_long() else None
        moment = self.moments.pop(name, None)
        if event.is_kept is not None:
            self.lost += [] if event.is_kept else [name]
            return None
        if event.ends:
            self._finish(event.run)
            return _failure_line(name, event.failure) if event.failure else _result_line(name, event.result or {})
        is_first = self.latest.get(name) is None
        self.latest[name] = event.epoch
        if event.epoch is None:
            return None
        self._epochs_done += 1.0 if moment is None else 1.0 - moment.share_before
        if is_first and event.epoch.epoch > 1:
            return f"{name}  going on at epoch {event.epoch.epoch}"
        every = max(1, total_epochs(event.run) // _LINES_PER_RUN)
        return None if event.epoch.epoch % every else _epoch_line(event.run, event.epoch)

    def _finish(self, run: Run) -> None:
        """Epochs that a shared dense training or a checkpoint has saved count as done from now on."""
        self.latest.pop(run.name, None)
        self.told.add(run.name)

    @property
    def seconds_left(self) -> float | None:
        """By the rate of epochs so far, which counts all runs side by side."""
        lines = self._lines
        done = self._epochs_done + sum(moment.share - moment.share_before for _, _, moment in lines if moment)
        if not done:
            return None
        left = float(sum(total_epochs(run) for run in self.plan.waiting))
        left += sum(total_epochs(run) - _position(run, epoch, moment) for run, epoch, moment in lines)
        return left * (time.perf_counter() - self.start) / done

    @property
    def _lines(self) -> list[_Line]:
        """The runs under way, with what is known of each."""
        return [(run, self.latest.get(run.name), self.moments.get(run.name)) for run in self.plan.running]

    @property
    def kept(self) -> str:
        """What is not lost once all runs have stopped, after the word "Stopped"."""
        without = f", but there is none of {', '.join(self.lost)}: too large for one" if self.lost else ""
        return f"; results and checkpoints are kept{without}."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The runs in a table, with as many columns as there is room for, and how far all of it is."""
        if lines := self._lines:
            yield _fitting(lines, console, options)
        left = self.seconds_left
        gone, runs = _clock(time.perf_counter() - self.start), "run" if self.new == 1 else "runs"
        status = f"{len(self.told)} of {self.new} {runs} done, {gone} gone"
        status += f", about {_clock(left)} left" if left is not None else ""
        stopping = (
            f"; stopping when checkpoints are written, {at_once(self.stop_requests[0])}" if self.stop_requests else ""
        )
        yield Text(status + stopping, style="dim")


def total_epochs(run: Run) -> int:
    """Of all stages."""
    return run.spec.epochs + (run.spec.fine_tune_epochs if run.spec.compresses else 0)


def final_lines(plan: Schedule, board: Board, folder: Path, show: str) -> Iterator[str]:
    """Failures of runs that were never started, how many have results, and the command to ``show`` them."""
    for name, why in plan.failures.items():
        if name not in board.told:
            yield _failure_line(name, why)
    old = len(plan.finished) + len(plan.failures) - board.new
    seconds = time.perf_counter() - board.start
    one = len(plan.finished) == 1
    counts = "1 run has a result" if one else f"{len(plan.finished)} runs have results"
    counts += f", {len(plan.failures)} failed" if plan.failures else ""
    if board.new == 0 and not plan.failures:
        yield (
            f"Nothing to do: {'' if one else 'all '}{counts} in {folder}. "
            f"To run one again move its file away, or name another folder with --results."
        )
    else:
        known = f" ({old} from before)" if old > 0 and not plan.failures else ""
        yield f"{counts}{known}, in {folder}; {_clock(seconds)}."
    if plan.finished:
        yield f"{'It is' if one else 'They are'} shown by `{escape(show)}`."


def _position(run: Run, epoch: Epoch | None, moment: Moment | None) -> float:
    """How many epochs of all stages are behind a run, with the share of the one under way."""
    if moment is not None:
        stage, behind = moment.stage, moment.epoch - 1 + moment.share
    elif epoch is not None:
        stage, behind = epoch.stage, float(epoch.epoch)
    else:
        return 0.0
    return behind + (run.spec.epochs if stage == "fine-tune" else 0)


# The runs under way -----------------------------------------------------------------------------------


def _fitting(lines: Sequence[_Line], console: Console, options: ConsoleOptions) -> RenderableType:
    """The fullest layout that the console has room for; no figure is ever cut off."""
    wide = options.update(width=_NO_LIMIT)
    for columns in _layouts(several=len(lines) > 1):
        table = _table(lines, columns)
        if console.measure(table, options=wide).maximum <= options.max_width:
            break
    return table if "ranks" in columns else Group(table, Padding(_ranks_below(lines), (0, 0, 0, 1)))


def _layouts(several: bool) -> list[tuple[str, ...]]:
    """Columns from most to fewest. Several runs have a line each as long as that can be; else ranks stand below."""
    with_ranks = [
        tuple(name for name in _COLUMNS if name not in _DISPENSABLE[:n]) for n in range(len(_DISPENSABLE) + 1)
    ]
    without = [tuple(name for name in columns if name != "ranks") for columns in with_ranks]
    return [*(with_ranks if several else with_ranks[:1]), *without]


def _table(lines: Sequence[_Line], columns: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in columns:
        justify: JustifyMethod = "left" if name in _WORDS else "right"
        table.add_column("" if name == "bar" else name, justify=justify, no_wrap=name != "run", overflow="fold")
    for run, epoch, moment in lines:
        cells = _cells(run, epoch, moment)
        table.add_row(*(cells.get(name, "") for name in columns))
    return table


def _ranks_below(lines: Sequence[_Line]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for run, epoch, _ in lines:
        if epoch is not None:
            grid.add_row("[dim]ranks[/]" if len(lines) == 1 else f"[dim]ranks of {run.name}[/]", _ranks(epoch.ranks))
    return grid


def _cells(run: Run, epoch: Epoch | None, moment: Moment | None) -> dict[str, RenderableType]:
    """By the name of their column."""
    if moment is not None:
        stage, done, share = moment.stage, moment.epoch - 1, moment.share
    elif epoch is not None:
        stage, done, share = epoch.stage, epoch.epoch, 0.0
    else:
        return {"run": run.name, "epoch": "[dim]starting[/]"}
    total, at_end = _epochs_of(run, stage), _position(run, epoch, moment) == total_epochs(run)
    cells: dict[str, RenderableType] = {
        "run": run.name,
        "stage": "evaluation" if at_end else stage,
        "epoch": f"{done}/{total}" + ("" if moment is None else f" + {share:.0%}"),
        "bar": ProgressBar(total=total, completed=done + share, width=16),
    }
    return cells if epoch is None else cells | _figures(epoch)


def _figures(epoch: Epoch) -> dict[str, RenderableType]:
    return {
        "NLL": f"{epoch.nll:.4f}",
        "KL, nats": f"{epoch.kl_nats:,.0f}",
        "β": f"{epoch.beta:.2f}",
        "accuracy": f"{epoch.accuracy:.2%}",
        "parameters": f"{epoch.parameters:,}",
        "ranks": _ranks(epoch.ranks),
    }


def _epochs_of(run: Run, stage: str) -> int:
    return run.spec.fine_tune_epochs if stage == "fine-tune" else run.spec.epochs


# Lines ------------------------------------------------------------------------------------------------


def _moment_line(run: Run, moment: Moment) -> str:
    return f"{run.name}  {moment.stage}  {moment_line(moment, _epochs_of(run, moment.stage))}"


def _epoch_line(run: Run, epoch: Epoch) -> str:
    return (
        f"{run.name}  {epoch.stage} {epoch.epoch:3d}  NLL {epoch.nll:.4f}  KL {epoch.kl_nats:,.0f} nats  "
        f"β {epoch.beta:.2f}  training accuracy {epoch.accuracy:.2%}  parameters {epoch.parameters:,}  "
        f"ranks {_ranks(epoch.ranks)}"
    )


def _result_line(name: str, result: dict[str, Any]) -> str:
    scores, parameters = result["metrics"]["posterior_mean"], result["parameters"]
    of = " of the tensorized layers" if parameters["of"] == "layers" else ""  # epochs count the whole network's
    return (
        f"[green]✓[/] [bold]{name}[/]  accuracy {scores['accuracy']:.2%}  NLL {scores['nll_nats']:.4f}  "
        f"parameters{of} {parameters['final']:,}  ranks {_ranks(result['ranks']['after'])}  "
        f"{_clock(result['timing']['training_seconds'])}"
    )


def _failure_line(name: str, why: str) -> str:
    return f"[red]✗[/] [bold]{name}[/]  {escape(why)}"


def _ranks(ranks: dict[str, list[int]]) -> str:
    return "  ".join("·".join(map(str, values)) for values in ranks.values()) or "–"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
