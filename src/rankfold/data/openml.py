"""MNIST and Fashion-MNIST from OpenML, written as the idx files that their authors published.

OpenML has each set as one table of 70,000 rows: the training images in their order, then the test images.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.data.errors import DownloadError
from rankfold.data.idx import encode, write_idx
from rankfold.data.location import VARIABLE, data_root
from rankfold.data.mnist import DataFile, DataSet, checksum
from rankfold.whole_files import check_writable

Arrays = dict[DataFile, NDArray[np.uint8]]


def download(data_set: DataSet, folder: str | os.PathLike[str] | None = None) -> Path:
    """Fetch a data set into the subfolder of its name in the data root, and say where it is.

    Nothing is written unless all of it is what was published.

    Args:
        data_set: ``MNIST`` or ``FASHION_MNIST``, of which the test part is fetched.
        folder: the data root; if left out, ``RANKFOLD_DATA`` or ``./data``.
    """
    place = data_root(folder) / data_set.name
    check_writable(place / data_set.files[0].name)  # before a long download
    arrays = _arrays(data_set, *_fetch_table(data_set))
    for file, array in arrays.items():
        _check_identity(file, array, data_set)
    for file, array in arrays.items():
        write_idx(place / f"{file.name}.gz", array)
    return place


def _fetch_table(data_set: DataSet) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pixels (N, 784) and labels (N,), as OpenML gives them."""
    from sklearn import datasets

    try:
        # without a cache scikit-learn would fetch the table twice: to check it, and to read it
        # each retry gives a warning; if none helps, the error below says it once
        with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings(action="ignore"):
            # this parser needs no pandas
            table = datasets.fetch_openml(
                data_set.openml, version=1, as_frame=False, parser="liac-arff", data_home=cache
            )
    except (OSError, HTTPException, ValueError) as error:
        raise DownloadError(
            f"{data_set.name} could not be fetched from OpenML ({error}). Is there a network? Without one, copy "
            f"{', '.join(f'{file.name}.gz' for file in data_set.files)} into a folder called {data_set.name} and "
            f"name the folder above it with --data or in the environment variable {VARIABLE}"
        ) from error
    return np.asarray(table.data), np.asarray(table.target)


def _arrays(data_set: DataSet, pixels: NDArray[Any], labels: NDArray[Any]) -> Arrays:
    """The table cut into the arrays of the files."""
    rows, width = max(part.rows.stop for part in data_set.parts), np.prod(data_set.parts[0].images.shape[1:])
    if pixels.shape != (rows, width) or labels.shape != (rows,):
        raise DownloadError(
            f"OpenML gave {data_set.name} as pixels {pixels.shape} and labels {labels.shape}, expected "
            f"({rows}, {width}) and ({rows},); nothing was written. Copy the original files instead"
        )
    arrays: Arrays = {}
    for part in data_set.parts:
        arrays[part.images] = pixels[part.rows].astype(np.uint8).reshape(part.images.shape)
        arrays[part.labels] = labels[part.rows].astype(np.uint8)  # they come as strings
    return arrays


def _check_identity(file: DataFile, array: NDArray[np.uint8], data_set: DataSet) -> None:
    found = checksum(encode(array))
    if found != file.md5:
        raise DownloadError(
            f"what OpenML gave for {file.name} of {data_set.name} is not the published data: the md5 of its idx "
            f"content is {found}, expected {file.md5}; nothing was written. Try again, or copy the original files"
        )
