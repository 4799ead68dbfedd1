"""CIFAR-10: the authors' binary archive, or lossless WebP mosaics; both are checked to hold the same bytes.

The archive ``cifar-10-binary.tar.gz`` has six files of 10,000 records of 3,073 bytes: the label, then
32×32 bytes of red, of green and of blue, row by row. A mosaic shows such a file as one picture: 100×100
tiles in the order of the records, row by row, without the labels, which are in ``labels.npz``.
"""

from __future__ import annotations

import math
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.errors import DamagedData, DataError, MissingData
from rankfold.data.location import TRY_ANYWAY, VARIABLE, data_root
from rankfold.data.mnist import Images, checksum

NAME = "cifar10"
NUM_CLASSES = 10
CHANNELS, SIDE = 3, 32
ARCHIVE = "cifar-10-binary.tar.gz"
LABELS = "labels.npz"

Bytes = NDArray[np.uint8]
_RECORD = 1 + CHANNELS * SIDE * SIDE
_ARCHIVE_FOLDER = "cifar-10-batches-bin"
_REMEDY = (
    f"Put {ARCHIVE} from https://www.cs.toronto.edu/~kriz/cifar.html into a folder called {NAME}, and name the "
    f"folder above it with --data or in the environment variable {VARIABLE}"
)


@dataclass(frozen=True)
class Batch:
    """One of the six files: its name in the archive without ``.bin``, and the md5 of its bytes there.

    ``part`` and ``number`` say which of the labels beside the mosaics are its own.
    """

    name: str
    md5: str
    part: Literal["train", "test"]
    number: int


NUM_RECORDS = 10_000  # of each batch
BATCHES = (
    Batch("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25", "train", 0),
    Batch("data_batch_2", "5ea93a67294ea407fff1d09f752e9692", "train", 1),
    Batch("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421", "train", 2),
    Batch("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb", "train", 3),
    Batch("data_batch_5", "53f37980c15c3d472c316c40844f3f0d", "train", 4),
    Batch("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d", "test", 0),
)


def load_cifar10(folder: str | os.PathLike[str] | None = None, *, verify: bool = True) -> Images:
    """CIFAR-10 from a folder, from ``RANKFOLD_DATA`` or from ``./data``.

    Images are (N, 3, 32, 32), uint8: 50,000 to train on and 10,000 to test with; labels (N,), int64.

    Args:
        verify: compare with the published data. Without it batches may have any number of images.
    """
    place = find_cifar10(folder)
    records = [read_batch(batch, place, verify=verify) for batch in BATCHES]
    train, test = np.concatenate(records[:-1]), records[-1]
    return Images(*_split(train), *_split(test))


def find_cifar10(folder: str | os.PathLike[str] | None = None) -> Path:
    """The folder it lies in: the subfolder ``cifar10`` of the data root, or the root itself."""
    root = data_root(folder)
    for place in (root / NAME, root):
        if any((place / name).is_file() for name in (ARCHIVE, *map(_mosaic, BATCHES))):
            return place
    raise MissingData(
        f"{NAME} is not here; neither {(root / NAME).absolute()} nor {root.absolute()} holds {ARCHIVE} or mosaics "
        f"such as {_mosaic(BATCHES[0])}. {_REMEDY}"
    )


def files_of(place: Path) -> list[Path]:
    """The files of the data set in ``place`` that will be read."""
    archive = place / ARCHIVE
    names = [*map(_mosaic, BATCHES), LABELS]
    return [archive] if archive.is_file() else [place / name for name in names if (place / name).is_file()]


def read_batch(batch: Batch, place: Path, *, verify: bool = True) -> Bytes:
    """The records of a batch as in the archive, (N, 3073), after all checks."""
    read: Callable[[Batch, Path], Bytes] = _from_archive if (place / ARCHIVE).is_file() else _from_mosaic
    records = read(batch, place)
    if records.size and (label := int(records[:, 0].max())) >= NUM_CLASSES:
        raise DamagedData(
            f"{batch.name} in {place} holds the label {label}, expected 0 to {NUM_CLASSES - 1}. {_REMEDY}"
        )
    if verify and (found := checksum(records.tobytes())) != batch.md5:
        raise DamagedData(
            f"{batch.name} in {place} is not the published one: as {batch.name}.bin its md5 is {found} "
            f"({len(records):,} images), expected {batch.md5} ({NUM_RECORDS:,} images). {_REMEDY}; or {TRY_ANYWAY}"
        )
    return records


def _split(records: Bytes) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32), uint8, and labels (N,), int64."""
    images = records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)
    return torch.from_numpy(images.copy()), torch.from_numpy(records[:, 0].astype(np.int64))


# The archive ------------------------------------------------------------------------------------------


def _from_archive(batch: Batch, place: Path) -> Bytes:
    path, member = place / ARCHIVE, f"{_ARCHIVE_FOLDER}/{batch.name}.bin"
    try:
        with tarfile.open(path, "r:gz") as archive:
            # asked for by its name, it would be looked for up to the archive's end
            found = next((entry for entry in archive if entry.name == member and entry.isfile()), None)
            file = None if found is None else archive.extractfile(found)
            content = None if file is None else file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DamagedData(f"{path} cannot be unpacked ({error}); it may be cut short. {_REMEDY}") from error
    if content is None:
        raise DamagedData(f"{path} has no {member}; is it the binary version of CIFAR-10? {_REMEDY}")
    if not content or len(content) % _RECORD:
        raise DamagedData(
            f"{member} in {path} has {len(content):,} bytes, expected a multiple of {_RECORD:,}, which is one image "
            f"with its label; is it the binary version of CIFAR-10? {_REMEDY}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, _RECORD)


# The mosaics ------------------------------------------------------------------------------------------


def _mosaic(batch: Batch) -> str:
    return f"{batch.name}.webp"


def _from_mosaic(batch: Batch, place: Path) -> Bytes:
    for name in (_mosaic(batch), LABELS):
        if not (place / name).is_file():
            raise DamagedData(f"{NAME} in {place} is incomplete: there is neither {name} nor {ARCHIVE}. {_REMEDY}")
    pixels = _tiles(_picture(place / _mosaic(batch)))
    first = batch.number * len(pixels)
    labels = _labels(place / LABELS, batch.part)[first : first + len(pixels)]
    if len(labels) != len(pixels):
        raise DamagedData(
            f"{place} has {len(pixels):,} images in {_mosaic(batch)} but {len(labels):,} labels for them in {LABELS}; "
            f"take all files from the same source"
        )
    return np.concatenate([labels[:, None], pixels], axis=1)


def _picture(path: Path) -> Bytes:
    """The mosaic as (height, width, 3)."""
    image = _pillow()
    try:
        with image.open(path) as opened:
            picture: Bytes = np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise DamagedData(f"{path} is no whole picture ({error}). {_REMEDY}") from error
    if picture.shape[0] % SIDE or picture.shape[1] % SIDE:
        raise DamagedData(
            f"{path} has {picture.shape[1]}×{picture.shape[0]} pixels, expected tiles of {SIDE}×{SIDE}. {_REMEDY}"
        )
    return picture


def _tiles(picture: Bytes) -> Bytes:
    """The tiles row by row, (N, 3072): red, green and blue one after the other, as in the archive."""
    rows, columns = picture.shape[0] // SIDE, picture.shape[1] // SIDE
    tiles = picture.reshape(rows, SIDE, columns, SIDE, CHANNELS).transpose(0, 2, 4, 1, 3)
    return tiles.reshape(rows * columns, math.prod(tiles.shape[2:]))


def _labels(path: Path, key: str) -> Bytes:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            labels = arrays[key]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedData(f"{path} has no array {key!r} of labels that can be read ({error}). {_REMEDY}") from error
    if labels.dtype != np.uint8 or labels.ndim != 1:
        raise DamagedData(
            f"{path} holds {labels.dtype} entries of shape {labels.shape} as {key!r}, expected uint8 of shape (N)"
        )
    return np.asarray(labels, dtype=np.uint8)


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise DataError(
            "WebP mosaics are read with Pillow; install it with pip install 'rankfold[experiments]'"
        ) from error
    return Image
