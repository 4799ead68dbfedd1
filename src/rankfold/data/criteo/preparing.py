"""One-off work: text files become arrays.

The first pass counts rows and values, the second writes. The folder gets its name only when all of it is
written, so whatever goes wrong, a folder of that name is whole. Its name depends on the files and on all
settings: other files or settings get another folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from rankfold.data.criteo.arrays import ARRAYS, Criteo, write_about
from rankfold.data.criteo.encoding import Hash, Lookup, Tables, TokenCounts, encode
from rankfold.data.criteo.files import Block, blocks
from rankfold.data.criteo.lines import NUM_CATEGORIES, Rows, read_block
from rankfold.data.criteo.malformed import MOST_MALFORMED, Tally
from rankfold.data.criteo.published import EXTRA, SAMPLE, WHOLE, unpacked_name
from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.location import VARIABLE, data_root, origin
from rankfold.shapes import is_integer
from rankfold.whole_files import publish, writing
from rankfold.wrapping import warn

# Raise when the arrays would come out differently.
_VERSION = 1
_SOURCE = "https://www.kaggle.com/c/criteo-display-ad-challenge"
_ENDINGS = ("", ".gz", ".xz")
_REMEDY = "Mend the file; in Python, prepare(..., max_malformed=...) allows more"


@final
@dataclass(frozen=True)
class Progress:
    """How far it is: the pass, the share of all files read in it, rows in it so far, and its seconds."""

    stage: str
    share: float
    rows: int
    seconds: float


Report = Callable[[Progress], None]


def prepare(
    files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
    *,
    tables: Tables | None = None,
    max_malformed: int = MOST_MALFORMED,
    progress: Report = lambda progress: None,
) -> Criteo:
    """The data set in text ``files``; what was prepared before, with the same settings, is only opened.

    Args:
        files: one or several in the Criteo Kaggle format, plain or packed by gzip or xz; rows keep their order.
        cache: the folder for arrays; beside the first file if left out, or below ``~/.cache`` where that cannot be
            written to, with a warning that says so. They take 157 bytes a row.
        tables: how categories become rows of tables; a vocabulary of all values if left out.
        max_malformed: lines that may be left out because they are not of the format. More are an error.
        progress: called after every block.
    """
    if isinstance(files, str | os.PathLike):
        files = [files]
    if not files:
        raise ValueError("files must name at least one file, got none")
    paths = [Path(file).expanduser() for file in files]
    if not isinstance(tables, Tables | None):
        raise TypeError(f"tables must be Tables, such as Tables(hashing='large', sizes=KAGGLE_SIZES), got {tables!r}")
    if not is_integer(max_malformed) or max_malformed < 0:
        raise ValueError(f"max_malformed must be an integer, at least 0, got {max_malformed!r}")
    tables, beside = tables or Tables(), paths[0].parent
    name = f"criteo-{_fingerprint(paths, tables)}"
    folder = _cache_folder(beside, name) / name if cache is None else Path(cache).expanduser() / name
    if not folder.is_dir():
        with writing(folder):
            _prepare(paths, folder, tables, Tally(max_malformed, _REMEDY), progress)
        if cache is None and folder.parent != beside:
            warn(
                f"{beside} cannot be written to, so the arrays are in {folder}; the variable XDG_CACHE_HOME, or in "
                f"Python prepare(..., cache=...), names another place"
            )
    data = Criteo.open(folder)
    if data.malformed > max_malformed:
        raise DamagedData(f"{data.malformed} malformed lines, but max_malformed is {max_malformed}: {data.examples[0]}")
    _check_not_empty(len(data), paths, data.examples)  # folders of older versions may be
    return data


def find_files(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of the data set: rows in time order first, extra rows for training, if there are any, after them.

    ``folder`` may be the file itself, a folder with ``train.txt`` or the published sample in it, or the root of all
    data sets. The files may be packed, with ``.gz`` or ``.xz`` after their names. The sample has its extra rows beside
    it, whether it is named itself or its folder: frequencies of both number the categories.
    """
    root = data_root(folder)
    if folder is not None and not root.exists():
        raise MissingData(f"{root} does not exist; name {WHOLE}, plain, .gz or .xz, or the folder that it is in")
    if root.is_file():
        return _with_extra(root)
    for place in (root / "criteo", root):
        for name in (WHOLE, SAMPLE):
            if (main := _find(place, name)) is not None:
                return _with_extra(main)
    raise MissingData(
        f"criteo is not here; looked for {WHOLE} and {SAMPLE}, plain, .gz or .xz, in {root.absolute() / 'criteo'} "
        f"and {root.absolute()}. The data root is {origin(folder)}. Get {WHOLE} of the Criteo Display Advertising "
        f"Challenge, {_SOURCE}, and name it or its folder with --data or in the environment variable {VARIABLE}"
    )


def _with_extra(main: Path) -> list[Path]:
    extra = _find(main.parent, EXTRA) if unpacked_name(main) == SAMPLE else None
    return [main] if extra is None else [main, extra]


def _find(place: Path, name: str) -> Path | None:
    return next((path for end in _ENDINGS if (path := place / f"{name}{end}").is_file()), None)


# Two passes -------------------------------------------------------------------------------------------


def _prepare(paths: Sequence[Path], folder: Path, tables: Tables, tally: Tally, report: Report) -> None:
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed; in containers numbers come again
    partial.mkdir(parents=True)
    try:
        encoders = _encoders(paths, tables, Tally(tally.limit, _REMEDY), report)
        file_rows = _write_arrays(paths, partial, encoders, tally, report)
        _check_not_empty(sum(file_rows), paths, tally.examples)
        about = {
            "files": [str(path) for path in paths],
            "file_rows": file_rows,
            "sizes": [encoder.size for encoder in encoders],
            "tables": asdict(tables),
            "malformed": tally.count,
            "examples": tally.examples,
        }
        write_about(partial, about)
        publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if tally.count:
        lines = "1 malformed line was" if tally.count == 1 else f"{tally.count} malformed lines were"
        warn(f"{lines} left out, the first: {tally.examples[0]}")


def _check_not_empty(rows: int, paths: Sequence[Path], malformed: Sequence[str]) -> None:
    if rows == 0:
        names = ", ".join(map(str, paths))
        if malformed:
            raise DamagedData(f"{names} has no line in the Criteo format: {malformed[0]}")
        raise DamagedData(f"{names} has no rows; expected lines in the Criteo format")


def _encoders(paths: Sequence[Path], tables: Tables, tally: Tally, report: Report) -> list[Lookup | Hash]:
    """Pass 1: count the values of every category."""
    counts = [TokenCounts() for _ in range(NUM_CATEGORIES)]
    if tables.hashing != "always":
        for rows, _ in _read(paths, "counting", tally, report):
            for n, column in enumerate(counts):
                column.add(rows.tokens[:, n])
    return [tables.encoder(n, column) for n, column in enumerate(counts)]


def _write_arrays(
    paths: Sequence[Path], folder: Path, encoders: Sequence[Lookup | Hash], tally: Tally, report: Report
) -> list[int]:
    """Pass 2: write the arrays; how many rows each file has."""
    file_rows = [0] * len(paths)
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in ARRAYS}
        for rows, number in _read(paths, "writing", tally, report):
            files["labels"].write(rows.labels.tobytes())
            files["numbers"].write(rows.numbers().tobytes())
            files["categories"].write(np.ascontiguousarray(encode(encoders, rows.tokens)).tobytes())
            file_rows[number] += len(rows)
    return file_rows


def _read(paths: Sequence[Path], stage: str, tally: Tally, report: Report) -> Iterator[tuple[Rows, int]]:
    """The rows of all files, block by block, each with the number of its file."""
    sizes, start, num_rows = [path.stat().st_size for path in paths], time.perf_counter(), 0
    for number, path in enumerate(paths):
        for block in _readable(path):
            rows, _, malformed = read_block(block.text)
            for line, why in malformed:
                tally.note(path, block.first_line + line, why)
            num_rows += len(rows)
            done = sum(sizes[:number]) + block.share * sizes[number]
            report(Progress(stage, done / max(1, sum(sizes)), num_rows, time.perf_counter() - start))
            yield rows, number


def _readable(path: Path) -> Iterator[Block]:
    """The blocks of a file, or an error that says that it cannot be read."""
    try:
        yield from blocks(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> MissingData:
    hint = "find_files(folder) finds those in a folder" if path.is_dir() else "name a file that exists"
    return MissingData(f"{path} cannot be read ({error.strerror}); {hint}")


# Where the arrays go ----------------------------------------------------------------------------------


def _fingerprint(paths: Sequence[Path], tables: Tables) -> str:
    files = []
    for path in paths:
        try:
            files.append([path.name, path.stat().st_size, path.stat().st_mtime_ns])
        except OSError as error:
            raise _unreadable(path, error) from error
    settings: list[Any] = [_VERSION, files, asdict(tables)]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:12]


def _cache_folder(beside: Path, name: str) -> Path:
    if (beside / name).is_dir() or os.access(beside, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rankfold"
