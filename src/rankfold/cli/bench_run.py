"""What all benchmarks share: measuring job by job, printing every table when it is there, and keeping the figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from rankfold.bench.cases import FORMATS
from rankfold.bench.ceilings import Ceilings, measure_ceilings
from rankfold.bench.measure import share_of_cores
from rankfold.bench.tensorly_peer import installed_version
from rankfold.cli.bench_table import record_tables
from rankfold.cli.device import chosen_device
from rankfold.cli.stopping import exit_code, nothing_written_yet
from rankfold.cli.writing import check_folder, writing
from rankfold.experiments.provenance import available_cores, device_name, provenance
from rankfold.whole_files import write_whole

FILE_WIDTH = 220  # more than the widest table needs
DEFAULT_FOLDER = Path("runs") / "bench"
CORES = available_cores()
LEAST_SHARE = 0.9  # of the time of the cores; below it a warning says so

Job = tuple[str, Callable[[], Iterable[Any]]]


@dataclass
class Session:
    """One run of one benchmark; figures are kept after every job, so that a run cut short keeps what it measured.

    Until all are there they are beside ``file``, which may have those of an earlier run. ``replaced`` is when that was
    written, ``waiting`` what has not been measured yet.
    """

    name: str
    device: torch.device
    repeat: int | None
    file: Path | None
    replaced: datetime | None = None
    as_json: bool = False
    ceilings: Ceilings | None = None
    rows: list[Any] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    console: Console = field(init=False)

    def __post_init__(self) -> None:
        self.console = _console(self.as_json)

    @classmethod
    def start(
        cls,
        name: str,
        device: str,
        out: Path | None,
        *,
        as_json: bool = False,
        repeat: int | None = None,
        threads: int | None = None,
    ) -> Session:
        """Check the options. As JSON, figures are printed, and kept only where ``out`` says so."""
        chosen = chosen_device(device)
        if threads is not None:
            check_threads(threads)
            torch.set_num_threads(threads)
        if chosen.index is not None:  # streams and graphs belong to the current device
            torch.cuda.set_device(chosen)
        file = out if as_json else out or DEFAULT_FOLDER / f"{name}-{_slug(chosen)}.json"
        if file is not None:
            check_folder(file.parent)
            _check_replaceable(file)
        return cls(name, chosen, repeat, file, _when_written(file), as_json)

    def find_ceilings(self) -> Ceilings:
        """Measure what the device can do at most."""
        with nothing_written_yet(), self.console.status("a large copy and a large matrix product"):
            self.ceilings = measure_ceilings(self.device)
        self.console.print(Text(f"{device_name(self.device)} reaches {self.ceilings.rates}", "dim"))
        return self.ceilings

    def run(self, jobs: Sequence[Job], closing: Callable[[], RenderableType | None] = lambda: None) -> None:
        """Measure, print and keep, job by job, and then what all of it comes to; as JSON, it is printed at the end."""
        self.waiting = [title for title, _ in jobs]
        try:
            if self.repeat is not None and self.device.type == "cpu":
                _warn_of_company(share_of_cores())
            for title, job in jobs:
                with self.console.status(title):
                    found = list(job())
                self.rows += found
                self.waiting.remove(title)
                self.console.print(record_tables(self._record(found), self.console))
                self._keep()
        except KeyboardInterrupt:
            self._keep_and_say_so(len(jobs))
            raise typer.Exit(exit_code([])) from None
        if self.as_json:
            typer.echo(self._text())
        if (last := closing()) is not None:
            self.console.print(last)
        self.console.print(Text(f"All figures are in {self.file}{self._instead}"), soft_wrap=True)

    def _keep(self) -> None:
        if self.file is None:
            return
        target = self._target(self.file)
        with writing(target):
            write_whole(target, self._text() + "\n")
            if target == self.file:
                _beside(self.file).unlink(missing_ok=True)

    def _target(self, file: Path) -> Path:
        """Where figures go: beside the file until all are there."""
        return _beside(file) if self.waiting else file

    def _keep_and_say_so(self, wanted: int) -> None:
        """After Ctrl-C, which may have come before the last figures were kept. As JSON, what there is is printed."""
        done = wanted - len(self.waiting)
        if not done:
            typer.echo("Stopped before there were any figures.", err=True)
            return
        self._keep()
        if self.as_json:
            typer.echo(self._text())
        kept = f"; the figures of {done} of {wanted} cases are in {self._target(self.file)}" if self.file else ""
        typer.echo(f"Stopped{kept}.", err=True)

    @property
    def _instead(self) -> str:
        return "" if self.replaced is None else f", which replaced that of {self.replaced:%Y-%m-%d %H:%M}"

    def _text(self) -> str:
        return json.dumps(self._record(self.rows), indent=2, ensure_ascii=False)

    def _record(self, rows: Sequence[Any]) -> dict[str, Any]:
        origin = provenance(self.device)
        return {
            "bench": self.name,
            **origin,
            "versions": {**origin["versions"], "tensorly-torch": installed_version()},
            "repeat": self.repeat,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "not_measured": self.waiting,
            "rows": [asdict(row) for row in rows],
        }


def chosen_formats(text: str | None) -> tuple[str, ...]:
    """``"ttm,CP"`` as format names; all where nothing is said."""
    if text is None:
        return FORMATS
    known = {name.lower(): name for name in FORMATS}
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise typer.BadParameter(
            f"{text!r} names no format; use {', '.join(FORMATS)}, or leave it out for all", param_hint="--formats"
        )
    for word in words:
        if word.lower() not in known:
            raise typer.BadParameter(f"{word!r} is no format; use {', '.join(FORMATS)}", param_hint="--formats")
    return tuple(known[word.lower()] for word in words)


def chosen_numbers(text: str, option: str) -> tuple[int, ...]:
    """``"1,128"`` as positive integers."""
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise typer.BadParameter(f"expected positive integers such as 1,2, got {text!r}", param_hint=option)
    return tuple(int(word) for word in words)


def check_threads(count: int) -> None:
    """Refuse more threads than cores: they wait for each other, and the times say nothing."""
    if not 1 <= count <= CORES:
        raise typer.BadParameter(
            f"expected 1 to {CORES}, the cores of this machine, got {count}; name one of these, or leave it out",
            param_hint="--threads",
        )


def _warn_of_company(share: float) -> None:
    if share < LEAST_SHARE:
        typer.echo(
            f"warning: other programs want the cores too, and torch gets {share:.0%} of the time of its threads; "
            "times will be too long. Stop those, or give fewer --threads.",
            err=True,
        )


def _check_replaceable(file: Path) -> None:
    """Refuse to write over what is no file of figures."""
    if not file.is_file():
        return
    try:
        known = "bench" in json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        known = False
    if not known:
        raise typer.BadParameter(f"{file} is there and holds no figures; name another file", param_hint="--out")


def _beside(file: Path) -> Path:
    """Where figures are as long as there are more to come."""
    return file.with_name(f"{file.name}.part")


def _console(quiet: bool) -> Console:
    """Where to print; a file or a pipe has room for every line, whatever the width of the terminal."""
    console = Console(quiet=quiet)
    return console if console.is_terminal else Console(width=max(console.width, FILE_WIDTH), quiet=quiet)


def _when_written(file: Path | None) -> datetime | None:
    return None if file is None or not file.exists() else datetime.fromtimestamp(file.stat().st_mtime)


def _slug(device: torch.device) -> str:
    """``cpu``, or the model of the GPU: ``h200``."""
    return device_name(device).split()[-1].lower() if device.type == "cuda" else device.type
