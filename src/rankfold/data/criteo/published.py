"""Whether files are the ones that were published."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from rankfold.data.errors import DamagedData

WHOLE, SAMPLE, EXTRA = "train.txt", "criteo-kaggle-w261-sample.tsv", "criteo-kaggle-extra.tsv"
# Rows of the whole Kaggle file and of the two samples; samples are checked by the sha256 of their packed files, too.
ROWS = {WHOLE: 45_840_617, SAMPLE: 137_139, EXTRA: 63_008}
_SHA256 = {
    f"{SAMPLE}.xz": "1940417309852d8b8b19d5c7763cd4ed373f52f28134c7c650d12cafa402be1a",
    f"{EXTRA}.xz": "cfc49ee189bfe82b4c9f38726e6be6a9ed1edebd977e66d9ee2df88859ffb1a8",
}
_ALONE = {WHOLE: "whole", SAMPLE: "sample-alone", EXTRA: "extra-alone"}
_BEGINNING = 2**20
_TRY_ANYWAY = "give --no-verify to use it as it is"


def edition(files: Sequence[Path], verify: bool = True) -> str | None:
    """What to call other data than both published samples: the whole file of the challenge, or files of one's own.

    One sample without the other numbers its categories differently. Files that are not to be verified are told apart by
    what they hold, whatever their names are.

    >>> edition([Path("criteo/train.txt.gz")])
    'whole'
    """
    if not verify:
        return f"{Path(unpacked_name(files[0])).stem}-{_fingerprint(files)}"
    check_names(files)
    return _ALONE[unpacked_name(files[0])] if len(files) == 1 else None


def _fingerprint(files: Sequence[Path]) -> str:
    """Eight digits of sizes and beginnings, which take no time to read, however long the files are."""
    seen = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            seen.update(f"{path.stat().st_size} ".encode() + file.read(_BEGINNING))
    return seen.hexdigest()[:8]


def check_names(files: Sequence[Path]) -> None:
    """Refuse files of other names than the published ones; that takes no time, however long they are."""
    for path in files:
        if unpacked_name(path) not in ROWS:
            raise DamagedData(f"{path} is none of the published files, {', '.join(ROWS)}; {_TRY_ANYWAY}")


def check_published(files: Sequence[Path], file_rows: Sequence[int]) -> None:
    """Refuse files of other names, other sizes or, where it is known, another checksum."""
    check_names(files)
    for path, rows in zip(files, file_rows, strict=True):
        expected = ROWS[unpacked_name(path)]
        if rows != expected:
            raise DamagedData(f"{path} has {rows:,} rows, expected {expected:,}; {_TRY_ANYWAY}")
        check_checksum(path)


def unpacked_name(path: Path) -> str:
    """The name of a file without that of its packing."""
    return path.name.removesuffix(".gz").removesuffix(".xz")


def has_checksum(path: Path) -> bool:
    """Whether the checksum of a file of this name is known."""
    return path.name in _SHA256


def check_checksum(path: Path) -> None:
    """Refuse a packed sample that is not the published one; of the whole file no checksum is known."""
    if has_checksum(path) and hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256[path.name]:
        raise DamagedData(f"{path} is not the published file, by its sha256; replace it, or {_TRY_ANYWAY}")
