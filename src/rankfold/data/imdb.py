"""IMDB movie reviews (Maas et al. 2011): 25,000 to train on and 25,000 to test with, half of each positive.

Two layouts are read. ``imdb-train.jsonl`` and ``imdb-test.jsonl``, plain or packed with xz, have one review
a line: ``{"text": "...", "label": 1, "id": 0, "rating": 9}``, label 1 for positive. The original archive
has one file a review: ``aclImdb/train/pos/0_9.txt``, the number of the review and its rating in the name.

Reviews come sorted by label, then number: shuffle them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.location import TRY_ANYWAY, VARIABLE, data_root
from rankfold.data.packing import unpacked_content

NAME = "imdb"
Half = Literal["train", "test"]
HALVES: tuple[Half, ...] = ("train", "test")
REVIEWS_PER_HALF = 25_000
SOURCE = "https://ai.stanford.edu/~amaas/data/sentiment"
# sha256 of the unpacked jsonl files
CHECKSUMS: dict[Half, str] = {
    "train": "43579b5c9242f309aeff04439236d4f7e4266deabbac3973291078f7b46f5c2a",
    "test": "f26557863bf36bdac228d85491f8ae8412f9fcbab6468226f7a18a4b3f53dae7",
}
_SENTIMENTS = ("neg", "pos")  # a sentiment's place is its label
_REMEDY = "replace it by a fresh copy"


@dataclass(frozen=True)
class Reviews:
    """Texts as published, ``<br />`` included, and labels (N,), int64, 1 for positive."""

    texts: tuple[str, ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)


def load_imdb(folder: str | os.PathLike[str] | None = None, *, verify: bool = True) -> tuple[Reviews, Reviews]:
    """Training half and test half, from a folder, from ``RANKFOLD_DATA`` or from ``./data``.

    Args:
        verify: compare the jsonl files' checksums with the known ones, and the number of reviews in either
            layout. Without it any reviews with labels 0 and 1 will do.
    """
    place = find_imdb(folder)
    train, test = (read_half(place, half, verify=verify) for half in HALVES)
    return train, test


def find_imdb(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds the reviews in one of the two layouts, even if a part of them is missing."""
    root = data_root(folder)
    places = (root / NAME, root / NAME / "aclImdb", root / "aclImdb", root)
    found = next((place for place in places if any(source(place, half) for half in HALVES)), None)
    if found is None:
        raise MissingData(
            f"{NAME} is not here; looked in {', '.join(str(place.absolute()) for place in places)} for "
            f"imdb-train.jsonl.xz, imdb-train.jsonl and train/pos. {remedies()}"
        )
    return found


def source(place: Path, half: Half) -> Path | None:
    """The file or folder with one half of the reviews, or ``None``."""
    files = (place / f"imdb-{half}.jsonl.xz", place / f"imdb-{half}.jsonl")
    if any(file.is_file() for file in files):
        return next(file for file in files if file.is_file())
    return place / half if any((place / half / name).is_dir() for name in _SENTIMENTS) else None


def remedies() -> str:
    """How to get the reviews."""
    return (
        f"There is no download for it here: fetch aclImdb_v1.tar.gz from {SOURCE}, unpack it, and name the folder "
        f"that holds aclImdb with --data or in the environment variable {VARIABLE}"
    )


def read_half(place: Path, half: Half, *, verify: bool = True) -> Reviews:
    """One half of the reviews, after all checks."""
    path = source(place, half)
    if path is None:
        raise DamagedData(
            f"{NAME} in {place} is incomplete: neither imdb-{half}.jsonl.xz nor imdb-{half}.jsonl nor {half}/pos is "
            f"there. {remedies()}"
        )
    reviews = _read_folder(path) if path.is_dir() else _read_file(path, CHECKSUMS[half] if verify else None)
    counts = np.bincount(reviews.labels, minlength=2).tolist()
    if verify and counts != [REVIEWS_PER_HALF // 2] * 2:
        raise DamagedData(
            f"{path} holds {counts[0]:,} negative and {counts[1]:,} positive reviews, expected "
            f"{REVIEWS_PER_HALF // 2:,} of each. {remedies()}, or {TRY_ANYWAY}"
        )
    if len(reviews) == 0:
        raise DamagedData(f"{path} holds no reviews. {remedies()}")
    return reviews


# One file a half ----------------------------------------------------------------------------------------


def _read_file(path: Path, checksum: str | None) -> Reviews:
    content = unpacked_content(_read_bytes(path), path)
    found = hashlib.sha256(content).hexdigest()
    if checksum is not None and found != checksum:
        raise DamagedData(
            f"{path} is not the known file: the sha256 of its unpacked content is {found}, expected {checksum}; "
            f"{_REMEDY}, or {TRY_ANYWAY}"
        )
    rows = [_row(line, number, path) for number, line in enumerate(content.splitlines(), 1)]
    return Reviews(tuple(text for text, _ in rows), np.array([label for _, label in rows], dtype=np.int64))


def _row(line: bytes, number: int, path: Path) -> tuple[str, int]:
    """Text and label of one line."""
    where = f"{path}, line {number}"
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise DamagedData(f"{where} is no JSON ({error}): the file is cut short or altered; {_REMEDY}") from error
    text, label = (row.get("text"), row.get("label")) if isinstance(row, dict) else (None, None)
    if not isinstance(text, str) or type(label) is not int or label not in (0, 1):
        raise DamagedData(
            f'{where} starts with {line[:60]!r}, expected {{"text": "...", "label": 0 or 1}}; is it the right file?'
        )
    return text, label


# One file a review --------------------------------------------------------------------------------------


def _read_folder(path: Path) -> Reviews:
    texts, labels = [], []
    for label, sentiment in enumerate(_SENTIMENTS):
        for file in _numbered(path / sentiment):
            texts.append(_text(file))
            labels.append(label)
    return Reviews(tuple(texts), np.array(labels, dtype=np.int64))


def _numbered(folder: Path) -> Iterator[Path]:
    """The reviews of a folder in the order of their numbers: ``7_10.txt`` before ``12_8.txt``."""
    if not folder.is_dir():
        raise DamagedData(f"{folder} is not there, but its counterpart is: the data are incomplete. {remedies()}")
    numbers: dict[int, Path] = {}
    for file in folder.glob("*.txt"):
        number = file.name.partition("_")[0]
        if not number.isdecimal():
            raise DamagedData(f"{file} is no review: expected a name such as 0_9.txt, its number and rating; remove it")
        numbers[int(number)] = file
    return (numbers[number] for number in sorted(numbers))


def _text(file: Path) -> str:
    try:
        return _read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedData(f"{file} is no UTF-8 text ({error}); {_REMEDY}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedData(f"{path} cannot be read ({error.strerror}); make it a readable file") from error
