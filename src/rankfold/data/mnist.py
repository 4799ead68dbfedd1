"""MNIST, and the test part of Fashion-MNIST: idx files in a folder, checked before they are used."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.idx import decode, read_content
from rankfold.data.location import TRY_ANYWAY, find_file, find_folder, remedies

NUM_CLASSES = 10
SIDE = 28


@dataclass(frozen=True)
class DataFile:
    """One array of a data set: its file's name without ``.gz``, its shape, and the md5 of its idx bytes.

    The checksum is that of the content, not of the gzip file around it: packed again or not packed at
    all, the data are the same.
    """

    name: str
    shape: tuple[int, ...]
    md5: str


@dataclass(frozen=True)
class Part:
    """Images and their labels. ``start`` is their first row where the whole set is one table."""

    images: DataFile
    labels: DataFile
    start: int

    @property
    def rows(self) -> slice:
        """Their rows in that table."""
        return slice(self.start, self.start + self.images.shape[0])


@dataclass(frozen=True)
class DataSet:
    """A data set by the name of its folder, with what is needed of it and where it comes from."""

    name: str
    openml: str
    parts: tuple[Part, ...]

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All its files, images before labels."""
        return tuple(file for part in self.parts for file in (part.images, part.labels))

    def find(self, folder: str | os.PathLike[str] | None = None) -> Path:
        """The folder it lies in."""
        return find_folder(self.name, [file.name for file in self.files], folder)


# The checksums were taken from the original gzip files, whose own md5 are the published ones:
# f68b3c2dcbeaaa9fbdd348bbdeb94873, d53e105ee54ea40749a09fcbcd1e9432, 9fb629c4189551a2d022fa330f9573f3 and
# ec29112dd5afa0611ce80d1b7f02629c; of Fashion-MNIST bef4ecab320f06d8554ea6380940ec79 and
# bb300cfdad3c16e7a12a480ee83cd310.
MNIST = DataSet(
    "mnist",
    "mnist_784",
    (
        Part(
            DataFile("train-images-idx3-ubyte", (60_000, SIDE, SIDE), "6bbc9ace898e44ae57da46a324031adb"),
            DataFile("train-labels-idx1-ubyte", (60_000,), "a25bea736e30d166cdddb491f175f624"),
            start=0,
        ),
        Part(
            DataFile("t10k-images-idx3-ubyte", (10_000, SIDE, SIDE), "2646ac647ad5339dbf082846283269ea"),
            DataFile("t10k-labels-idx1-ubyte", (10_000,), "27ae3e4e09519cfbb04c329615203637"),
            start=60_000,
        ),
    ),
)
FASHION_MNIST = DataSet(
    "fashion-mnist",
    "Fashion-MNIST",
    (
        Part(
            DataFile("t10k-images-idx3-ubyte", (10_000, SIDE, SIDE), "8181f5470baa50b63fa0f6fddb340f0a"),
            DataFile("t10k-labels-idx1-ubyte", (10_000,), "15d484375f8d13e6eb1aabb0c3f46965"),
            start=60_000,
        ),
    ),
)
DATA_SETS = {data_set.name: data_set for data_set in (MNIST, FASHION_MNIST)}


@dataclass(frozen=True)
class Images:
    """Images with their labels, split as published.

    Shapes of MNIST: ``train_x`` (60000, 28, 28) and ``test_x`` (10000, 28, 28), uint8; ``train_y``
    (60000,) and ``test_y`` (10000,), int64.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load_mnist(folder: str | os.PathLike[str] | None = None, *, verify: bool = True) -> Images:
    """MNIST from a folder, from ``RANKFOLD_DATA`` or from ``./data``.

    Args:
        verify: compare sizes and checksums with the published files. Without it any images of 28×28
            pixels with labels 0 to 9 will do.
    """
    place = MNIST.find(folder)
    train, test = (read_part(part, MNIST, place, verify=verify) for part in MNIST.parts)
    return Images(*train, *test)


def load_fashion_mnist_test(
    folder: str | os.PathLike[str] | None = None, *, verify: bool = True
) -> tuple[Tensor, Tensor]:
    """The test part of Fashion-MNIST: images (10000, 28, 28), uint8, and labels (10000,), int64.

    For the folder and ``verify`` see :func:`load_mnist`.
    """
    (test,) = FASHION_MNIST.parts
    return read_part(test, FASHION_MNIST, FASHION_MNIST.find(folder), verify=verify)


def read_part(part: Part, data_set: DataSet, place: Path, *, verify: bool = True) -> tuple[Tensor, Tensor]:
    """Images (N, 28, 28), uint8, and labels (N,), int64."""
    images = read_file(part.images, data_set, place, verify=verify)
    labels = read_file(part.labels, data_set, place, verify=verify)
    if len(images) != len(labels):
        raise DamagedData(
            f"{place} has {len(images):,} images in {part.images.name} but {len(labels):,} labels in "
            f"{part.labels.name}; take both files from the same source"
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def read_file(file: DataFile, data_set: DataSet, place: Path, *, verify: bool = True) -> NDArray[np.uint8]:
    """One array of a data set, after all checks that need no other file."""
    path = find_file(place, file.name)
    if path is None:
        raise DamagedData(
            f"{data_set.name} in {place} is incomplete: neither {file.name}.gz nor {file.name} is there. "
            f"{remedies(data_set.name)}"
        )
    content = read_content(path)
    array = decode(content, path)
    _check_entries(array, file, path)
    if verify:
        _check_identity(content, array, file, data_set, path)
    return array


def checksum(content: bytes) -> str:
    """md5 in hexadecimal: against damage, not against malice."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _check_entries(array: NDArray[Any], file: DataFile, path: Path) -> None:
    """Images of the right size, or labels of the right range."""
    if array.dtype != np.uint8 or array.shape[1:] != file.shape[1:] or array.ndim != len(file.shape):
        wanted = ", ".join(["N", *map(str, file.shape[1:])])
        raise DamagedData(
            f"{path} holds {array.dtype} entries of shape {array.shape}, expected uint8 of shape ({wanted}); "
            f"is it the right file? Its place takes {file.name}"
        )
    if array.ndim == 1 and array.size and array.max() >= NUM_CLASSES:
        raise DamagedData(
            f"{path} holds the label {array.max()}, expected 0 to {NUM_CLASSES - 1}; "
            f"is it the right file? Its place takes {file.name}"
        )


def _check_identity(content: bytes, array: NDArray[Any], file: DataFile, data_set: DataSet, path: Path) -> None:
    """The very data that were published."""
    found = checksum(content)
    if found == file.md5:
        return
    for other in DATA_SETS.values():
        if any(found == known.md5 for known in other.files):
            raise MissingData(
                f"{path} belongs to {other.name}, but {data_set.name} was asked for; keep each in a folder of "
                f"its own, called {other.name} and {data_set.name}. {remedies(data_set.name)}"
            )
    raise DamagedData(
        f"{path} is not the published file: the md5 of its idx content is {found} (shape {array.shape}), expected "
        f"{file.md5} (shape {file.shape}). Replace it with `rankfold data get {data_set.name}`, or {TRY_ANYWAY}"
    )
