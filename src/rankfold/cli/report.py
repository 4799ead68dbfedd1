"""``rankfold report``: a run as one HTML page."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rankfold.cli.reading import refusing
from rankfold.cli.writing import check_folder, writing
from rankfold.jobs.finished import check_finished_if_trained
from rankfold.reporting.checking import UnreadableRun
from rankfold.reporting.page import Report, make_report
from rankfold.reporting.reading import find_files, read_run
from rankfold.reporting.run import DEMO_FILE, RUN_FILE, Run
from rankfold.reporting.wording import count, times
from rankfold.whole_files import write_whole

Out = Annotated[Path | None, typer.Option(help="The page, ending in .html; beside the run if left out.")]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="A result file, the folder of a run such as runs/demo, or a folder of result files; "
            "the page is about the first, and compares it with the others.",
        ),
    ],
    out: Out = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Write the history as TensorBoard events into this folder too, of several runs each into a folder "
            "of its own, in place of ours from before.",
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers of the page as JSON.")] = False,
) -> None:
    """Write one HTML page about a run: size and accuracy against dense, training, layers, calibration, settings.

    The page is a single file without scripts that loads nothing: send it, print it, read it on a phone.

    `rankfold report results/mnist/ttm-ard-lu-seed0.json` writes `ttm-ard-lu-seed0.html` beside it,
    `rankfold report runs/demo` writes `runs/demo/report.html`,
    `rankfold report results/mnist` compares all runs of a table.

    Exit codes: 0 written, 2 the request is wrong.
    """
    with refusing():
        subject, others = _read(runs)
        target = _target(runs[0], out)
        made = make_report(subject, others)
    events: dict[str, str] = {}
    if tensorboard is not None:
        _write_events(tensorboard, [run for row in made.rows for run in row.runs])
        events = {"events": str(tensorboard)}
    with writing(target):
        write_whole(target, made.html)
    if as_json:
        typer.echo(json.dumps({"page": str(target), **events, **made.summary()}, indent=2, ensure_ascii=False))
    else:
        typer.echo(_sentence(made, target))
        if tensorboard is not None:
            typer.echo(f"TensorBoard's events are in {tensorboard}")
    if open_page:
        webbrowser.open(target.resolve().as_uri())


def _read(paths: list[Path]) -> tuple[Run | None, list[Run]]:
    """The run that the page is about, if the first path is one, and all others."""
    for path in paths:
        check_finished_if_trained(path)
    first, *rest = ([_read_file(file) for file in find_files(path)] for path in paths)
    others = [run for found in rest for run in found]
    return (first[0], others) if len(first) == 1 else (None, [*first, *others])


def _read_file(file: Path) -> Run:
    try:
        return read_run(file)
    except UnreadableRun as error:
        raise UnreadableRun(f"{error}; name a result file, or the folder of a run") from error


def _target(run: Path, out: Path | None) -> Path:
    """Where the page goes."""
    if out is not None:
        if out.suffix not in (".html", ".htm"):
            raise ValueError(f"the page must end in .html, got {out}")
        return out
    if run.is_dir():
        return run / "report.html"
    return run.with_name("report.html") if run.name in (RUN_FILE, DEMO_FILE) else run.with_suffix(".html")


def _write_events(folder: Path, runs: list[Run]) -> None:
    from rankfold.reporting.events import folders_of, write_events

    check_folder(folder, "--tensorboard")
    with writing(folder, "--tensorboard"):
        places = folders_of([run.file for run in runs]) if len(runs) > 1 else [Path()]
        for place, run in zip(places, runs, strict=True):
            write_events(folder / place, run)


def _sentence(made: Report, target: Path) -> str:
    """What the page says, in a line."""
    run = made.subject
    if run is None:
        return f"{len(made.rows)} rows compared; the page is {target}"
    size = f"{count(run.final_parameters)} parameters, {times(run.times_smaller)} smaller than dense"
    return f"{run.name}: {', '.join([size, *map(' '.join, run.main_scores)])}; the page is {target}"
