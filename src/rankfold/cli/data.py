"""``rankfold data``: look after the data sets of the experiments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankfold.data.errors import DamagedData, DataError, MissingData
from rankfold.data.location import data_root, find_file
from rankfold.data.mnist import DATA_SETS, DataFile, DataSet, read_file
from rankfold.data.openml import download

DataSetName = Literal["mnist", "fashion-mnist"]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder with the data sets, each in a subfolder of its name. "
        "If left out: the environment variable RANKFOLD_DATA, else ./data.",
    ),
]
_STYLES = {"found": "green", "missing": "yellow", "damaged": "bold red"}

data = typer.Typer(help="Check or download the data sets of the experiments.", no_args_is_help=True)


@dataclass(frozen=True)
class Finding:
    """What there is of a data set on disk."""

    place: Path | None = None
    num_bytes: int = 0
    checked: int = 0
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
    checksum of the published one, be it gzipped or not. Ends with exit code 1 if a file is damaged or one
    of several is absent. A data set that is not there at all is no error.
    """
    console = Console()
    with console.status("reading"):
        findings = {name: _examine(data_set, folder) for name, data_set in DATA_SETS.items()}
    console.print(_table(findings))
    for name, finding in findings.items():
        for note in finding.problems or (f"{name} is in {finding.place}",):
            console.print(f"[{_STYLES[finding.state]}]●[/] {escape(note)}", highlight=False, soft_wrap=True)
    if any(finding.state == "damaged" for finding in findings.values()):
        raise typer.Exit(1)


@data.command()
def get(
    name: Annotated[DataSetName, typer.Argument(help="mnist: 60,000 + 10,000 images; fashion-mnist: 10,000.")],
    folder: Folder = None,
) -> None:
    """Download a data set from OpenML and write it as the original idx.gz files.

    It goes into a subfolder of its name. Nothing is written unless its checksums are right, so what was
    there stays whatever happens. If the data are there already, nothing is fetched.

    It comes as a text of 70,000 lines, so give it a few minutes.
    """
    console = Console()
    data_set = DATA_SETS[name]
    finding = _examine(data_set, folder)
    if finding.state == "found":
        console.print(f"{name} is already in [bold]{finding.place}[/], whole.", soft_wrap=True)
        return
    try:
        with console.status(f"fetching {name} from OpenML into {data_root(folder) / name}"):
            place = download(data_set, folder)
    except DataError as error:
        raise _stop(str(error)) from error
    except OSError as error:
        raise _stop(f"cannot write to {data_root(folder) / name} ({error}); name another folder with --data") from error
    console.print(f"{name} is now in [bold]{place}[/], checksums right.", soft_wrap=True)


def _stop(message: str) -> typer.Exit:
    Console(stderr=True).print(f"[bold red]error[/]: {escape(message)}", highlight=False, soft_wrap=True)
    return typer.Exit(1)


def _examine(data_set: DataSet, folder: Path | None) -> Finding:
    try:
        place = data_set.find(folder)
        problems = tuple(filter(None, (_problem(file, data_set, place) for file in data_set.files)))
    except MissingData as error:
        return Finding(problems=(str(error),))
    paths = filter(None, (find_file(place, file.name) for file in data_set.files))
    num_bytes = sum(path.stat().st_size for path in paths)
    return Finding(place, num_bytes, len(data_set.files) - len(problems), problems)


def _problem(file: DataFile, data_set: DataSet, place: Path) -> str | None:
    try:
        read_file(file, data_set, place)
    except DamagedData as error:
        return str(error)
    return None


def _table(findings: dict[str, Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    table.add_column("data set", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("images", "size", "checksums right"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, finding in findings.items():
        state = f"[{_STYLES[finding.state]}]{finding.state}[/]"
        table.add_row(name, state, *_figures(DATA_SETS[name], finding))
    return table


def _figures(data_set: DataSet, finding: Finding) -> tuple[str, ...]:
    images = " + ".join(f"{part.images.shape[0]:,}" for part in data_set.parts)
    if finding.place is None:
        return images, "", ""
    return images, f"{finding.num_bytes / 1e6:.1f} MB", f"{finding.checked} of {len(data_set.files)}"
