"""The idx format of MNIST: one array in a file, with or without gzip around it.

==========  ======================================================
bytes       meaning
==========  ======================================================
0 and 1     zero
2           type of the entries, one of ``DTYPES``
3           number of dimensions
then        size of each dimension: 4 bytes, big-endian
then        the entries, last dimension fastest, big-endian
==========  ======================================================
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankfold.data.errors import DamagedData
from rankfold.whole_files import write_whole

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CODES = {np.dtype(name).newbyteorder("="): code for code, name in DTYPES.items()}
_GZIP = b"\x1f\x8b"
_REMEDY = "replace it by a fresh copy (`rankfold data get` makes one)"


def read_idx(path: str | os.PathLike[str]) -> NDArray[Any]:
    """The array in an idx file. Whether it is gzipped is seen from its content, not from its name.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels.gz"
    >>> write_idx(file, np.array([5, 0, 4], dtype=np.uint8))
    >>> read_idx(file)
    array([5, 0, 4], dtype=uint8)
    """
    return decode(read_content(path), path)


def write_idx(path: str | os.PathLike[str], array: NDArray[Any]) -> None:
    """Write an array to an idx file, gzipped if its name ends in ``.gz``: the whole file or nothing."""
    path = Path(path)
    content = encode(array)
    # no time stamp: the same array gives the same file
    write_whole(path, gzip.compress(content, 6, mtime=0) if path.suffix == ".gz" else content)


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The idx bytes of a file, with the gzip around them taken off."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DamagedData(f"{path} cannot be read ({error.strerror}); make it a readable file") from error
    if not raw.startswith(_GZIP):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise DamagedData(
            f"{path} is a gzip file of {len(raw):,} bytes that is cut short or altered ({error}); {_REMEDY}"
        ) from error


def decode(content: bytes, path: str | os.PathLike[str]) -> NDArray[Any]:
    """The array that idx bytes hold; ``path`` says in errors where they came from."""
    dtype, dims = _magic_number(content, path)
    start = 4 + 4 * dims
    if len(content) < start:
        raise DamagedData(
            f"{path} holds {len(content):,} bytes, but the header of {dims} dimensions alone takes {start}; {_REMEDY}"
        )
    shape = struct.unpack(f">{dims}I", content[4:start])
    expected = start + dtype.itemsize * math.prod(shape)
    if len(content) != expected:
        what = "cut short" if len(content) < expected else "followed by something else"
        raise DamagedData(
            f"{path} holds {len(content):,} bytes, but its header promises {dtype.name} entries of shape "
            f"{shape}, {expected:,} bytes in all: the array is {what}; {_REMEDY}"
        )
    return np.ndarray(shape, dtype, content, start).astype(dtype.newbyteorder("="))


def encode(array: NDArray[Any]) -> bytes:
    """The idx bytes of an array."""
    code = _CODES.get(array.dtype.newbyteorder("="))
    if code is None:
        raise TypeError(
            f"an idx file holds {', '.join(dtype.name for dtype in _CODES)}, got {array.dtype}; "
            f"convert the array first, such as array.astype(np.uint8)"
        )
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(DTYPES[code]).tobytes()


def _magic_number(content: bytes, path: str | os.PathLike[str]) -> tuple[np.dtype[Any], int]:
    """Type of the entries and number of dimensions."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in DTYPES:
        found = f"starts with the bytes {content[:4].hex(' ')}" if content else "is empty"
        raise DamagedData(
            f"{path} {found}, so it is no idx file: expected 00 00, then one of "
            f"{', '.join(f'{code:02x}' for code in DTYPES)} (08 means uint8), then the number of dimensions; {_REMEDY}"
        )
    return np.dtype(DTYPES[content[2]]), content[3]
