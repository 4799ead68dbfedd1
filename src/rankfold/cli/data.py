"""``rankfold data``: look after the data sets of the experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankfold.data import cifar10, imdb
from rankfold.data.criteo import find_files
from rankfold.data.criteo.published import check_checksum, has_checksum
from rankfold.data.errors import DamagedData, DataError, MissingData
from rankfold.data.location import data_root, find_file
from rankfold.data.mnist import DATA_SETS, DataSet, read_file
from rankfold.data.openml import download

DataSetName = Literal["mnist", "fashion-mnist", "cifar10", "imdb", "criteo"]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder with the data sets, each in a subfolder of its name. "
        "If left out: the environment variable RANKFOLD_DATA, else ./data.",
    ),
]
_Part = TypeVar("_Part")
_CRITEO_ROWS = "45,840,617, or a sample"
_STYLES = {"found": "green", "missing": "yellow", "damaged": "bold red"}

data = typer.Typer(help="Check or download the data sets of the experiments.", no_args_is_help=True)


@dataclass(frozen=True)
class Finding:
    """What there is of a data set on disk, and of how many examples and files it consists."""

    examples: str
    num_files: int
    place: Path | None = None
    num_bytes: int = 0
    problems: tuple[str, ...] = ()

    @property
    def state(self) -> Literal["found", "missing", "damaged"]:
        if self.place is None:
            return "missing"
        return "damaged" if self.problems else "found"


@data.command()
def check(folder: Folder = None) -> None:
    """Say which data sets are there, and whether they are whole.

    Every file is read to its end: sizes must agree with its header, and its content must have the
    checksum of the published one, however it is packed. Ends with exit code 1 if a file is damaged or one
    of several is absent. A data set that is not there at all is no error.
    """
    console = Console()
    with console.status("reading"):
        findings = {name: _examine(data_set, folder) for name, data_set in DATA_SETS.items()}
        findings |= {name: examine(folder) for name, examine in OTHERS.items()}
    console.print(_table(findings))
    for name, finding in findings.items():
        for note in finding.problems or (f"{name} is in {finding.place}",):
            line = f"[{_STYLES[finding.state]}]●[/] {escape(note)}"
            console.print(line, highlight=False, soft_wrap=not console.is_terminal)
    if any(finding.state == "damaged" for finding in findings.values()):
        raise typer.Exit(1)


@data.command()
def get(
    name: Annotated[
        DataSetName,
        typer.Argument(
            help="mnist: 60,000 + 10,000 images; fashion-mnist: 10,000. The others are not on OpenML in their "
            "original form; for them it says where they are."
        ),
    ],
    folder: Folder = None,
) -> None:
    """Download a data set from OpenML and write it as the original idx.gz files.

    It goes into a subfolder of its name. Nothing is written unless its checksums are right, so what was
    there stays whatever happens. If the data are there already, nothing is fetched.

    It comes as a text of 70,000 lines, so give it a few minutes.
    """
    console = Console()
    finding = OTHERS[name](folder) if name in OTHERS else _examine(DATA_SETS[name], folder)
    if finding.state == "found":
        console.print(f"{name} is already in [bold]{finding.place}[/], whole.", soft_wrap=True)
        return
    if name in OTHERS:
        raise _stop("\n".join(finding.problems))
    try:
        with console.status(f"fetching {name} from OpenML into {data_root(folder) / name}"):
            place = download(DATA_SETS[name], folder)
    except DataError as error:
        raise _stop(str(error)) from error
    except OSError as error:
        raise _stop(f"{error} (--data names the folder)") from error
    console.print(f"{name} is now in [bold]{place}[/], checksums right.", soft_wrap=True)


def _stop(message: str) -> typer.Exit:
    console = Console(stderr=True)
    console.print(f"[bold red]error[/]: {escape(message)}", highlight=False, soft_wrap=not console.is_terminal)
    return typer.Exit(1)


def _examine(data_set: DataSet, folder: Path | None) -> Finding:
    examples = " + ".join(f"{part.images.shape[0]:,}" for part in data_set.parts)
    return _finding(
        Finding(examples, len(data_set.files)),
        lambda: data_set.find(folder),
        lambda place: _problems(lambda file: read_file(file, data_set, place), data_set.files),
        lambda place: (path for file in data_set.files if (path := find_file(place, file.name)) is not None),
    )


def _examine_cifar10(folder: Path | None) -> Finding:
    return _finding(
        Finding("50,000 + 10,000", len(cifar10.BATCHES)),
        lambda: cifar10.find_cifar10(folder),
        lambda place: _problems(lambda batch: cifar10.read_batch(batch, place), cifar10.BATCHES),
        cifar10.files_of,
    )


def _examine_imdb(folder: Path | None) -> Finding:
    return _finding(
        Finding("25,000 + 25,000", len(imdb.HALVES)),
        lambda: imdb.find_imdb(folder),
        lambda place: _problems(lambda half: imdb.read_half(place, half), imdb.HALVES),
        lambda place: filter(None, (imdb.source(place, half) for half in imdb.HALVES)),
    )


def _examine_criteo(folder: Path | None) -> Finding:
    """The whole file, or a sample with the extra rows that may lie beside it."""
    try:
        files = find_files(folder)
    except MissingData as error:
        return Finding(_CRITEO_ROWS, 1, problems=(str(error),))
    return _finding(
        Finding(_CRITEO_ROWS, sum(map(has_checksum, files))),
        lambda: files[0].parent,
        lambda place: _problems(check_checksum, files),
        lambda place: files,
    )


def _finding(
    absent: Finding,
    find: Callable[[], Path],
    problems: Callable[[Path], tuple[str, ...]],
    paths: Callable[[Path], Iterable[Path]],
) -> Finding:
    """What there is of a data set: where it lies, what is wrong with it, and the bytes of its files and folders."""
    try:
        place = find()
        found = problems(place)
    except MissingData as error:
        return replace(absent, problems=(str(error),))
    files = (file for path in paths(place) for file in (path, *path.rglob("*")) if file.is_file())
    return replace(absent, place=place, num_bytes=sum(file.stat().st_size for file in files), problems=found)


# Data sets with readers of their own.
OTHERS: dict[str, Callable[[Path | None], Finding]] = {
    cifar10.NAME: _examine_cifar10,
    imdb.NAME: _examine_imdb,
    "criteo": _examine_criteo,
}


def _problems(read: Callable[[_Part], object], parts: Iterable[_Part]) -> tuple[str, ...]:
    """What is wrong with the parts of a data set that cannot be read."""
    problems = []
    for part in parts:
        try:
            read(part)
        except DamagedData as error:
            problems.append(str(error))
    return tuple(problems)


def _table(findings: dict[str, Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    table.add_column("data set", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("examples", "size", "checksums right"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, finding in findings.items():
        state = f"[{_STYLES[finding.state]}]{finding.state}[/]"
        table.add_row(name, state, *_figures(finding))
    return table


def _figures(finding: Finding) -> tuple[str, ...]:
    if finding.place is None:
        return finding.examples, "", ""
    checked = finding.num_files - len(finding.problems)
    return finding.examples, f"{finding.num_bytes / 1e6:.1f} MB", f"{checked} of {finding.num_files}"
