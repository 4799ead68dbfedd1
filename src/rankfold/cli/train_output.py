"""How much ``rankfold train`` says while it trains: on a terminal, as lines, as JSON or nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import final

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rankfold.cli.moments import Silence, moment_line
from rankfold.cli.saying import saying
from rankfold.cli.stopping import above_cursor
from rankfold.cli.train_screen import dense_line, progress_line, screen
from rankfold.experiments.progress import Epoch, Moment
from rankfold.jobs.dense_twin import STAGE
from rankfold.jobs.running import JobRun

_LINES = 20  # of epochs, where there is no terminal


@final
@dataclass(frozen=True)
class Output:
    """How much is shown, and how."""

    quiet: bool
    as_json: bool
    _silence: Silence = field(default_factory=Silence)

    @saying()
    def show(self, run: JobRun, console: Console, live: Live | None) -> None:
        """The epoch that has just ended."""
        now = run.history[-1]
        every = max(1, run.job.spec.epochs // _LINES)
        if self.quiet:
            return
        if self.as_json:
            typer.echo(json.dumps({"event": "epoch", **now}, ensure_ascii=False))
        elif live is not None:
            live.update(above_cursor(screen(run)), refresh=True)
        elif now["epoch"] % every == 0 or now["epoch"] == 1:
            self._silence.broken()
            console.print(progress_line(run), highlight=False, soft_wrap=True)

    @saying()
    def show_moment(self, run: JobRun, moment: Moment, console: Console, live: Live | None) -> None:
        """How far the epoch under way is."""
        line = moment_line(moment, run.job.spec.epochs)
        if moment.stage == STAGE:
            line = f"dense, to compare with: {line}"
        if live is not None:
            parts = [screen(run)] if run.history else []
            live.update(above_cursor(*parts, Text(line, style="dim")), refresh=True)
        elif not (self.quiet or self.as_json) and self._silence.is_long():
            self._silence.broken()
            console.print(line, highlight=False, soft_wrap=True)

    @saying()
    def show_dense(self, run: JobRun, epoch: Epoch, console: Console, live: Live | None) -> None:
        """The epoch of the dense network that has just ended."""
        every = max(1, run.job.spec.epochs // _LINES)
        if self.quiet:
            return
        if self.as_json:
            typer.echo(json.dumps({"event": "dense epoch", **asdict(epoch)}, ensure_ascii=False))
        elif live is not None:
            live.update(above_cursor(screen(run), dense_line(run, epoch)), refresh=True)
        elif epoch.epoch % every == 0 or epoch.epoch == 1:
            self._silence.broken()
            console.print(dense_line(run, epoch), highlight=False, soft_wrap=True)
