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
from rankfold.jobs.running import JobRun, Record

_LINES = 20  # of epochs, where there is no terminal


@final
@dataclass(frozen=True)
class Output:
    """How much of a run is shown, and where: in a live display, if there is one."""

    run: JobRun
    quiet: bool
    as_json: bool
    console: Console = field(default_factory=Console)
    live: Live | None = None
    _silence: Silence = field(default_factory=Silence)

    @saying()
    def show(self, epoch: Record) -> None:
        """The epoch that has just ended."""
        self._show_epoch("epoch", epoch, progress_line(self.run))

    @saying()
    def show_dense(self, epoch: Epoch) -> None:
        """The epoch of the dense network that has just ended."""
        line = dense_line(self.run, epoch)
        self._show_epoch("dense epoch", asdict(epoch), line, line)

    def _show_epoch(self, event: str, epoch: Record, line: str, *below_screen: str) -> None:
        every = max(1, self.run.job.spec.epochs // _LINES)
        if self.quiet:
            return
        if self.as_json:
            typer.echo(json.dumps({"event": event, **epoch}, ensure_ascii=False))
        elif self.live is not None:
            self.live.update(above_cursor(screen(self.run), *below_screen), refresh=True)
        elif epoch["epoch"] % every == 0 or epoch["epoch"] == 1:
            self._say(line)

    @saying()
    def show_moment(self, moment: Moment) -> None:
        """How far the epoch under way is."""
        line = moment_line(moment, self.run.job.spec.epochs)
        if moment.stage == STAGE:
            line = f"dense, to compare with: {line}"
        if self.live is not None:
            parts = [screen(self.run)] if self.run.history else []
            self.live.update(above_cursor(*parts, Text(line, style="dim")), refresh=True)
        elif not (self.quiet or self.as_json) and self._silence.is_long():
            self._say(line)

    def _say(self, line: str) -> None:
        self._silence.broken()
        self.console.print(line, highlight=False, soft_wrap=True)
