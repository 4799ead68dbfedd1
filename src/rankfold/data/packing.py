"""Files packed by gzip or xz, seen from their content; other packings are only recognised."""

from __future__ import annotations

import gzip
import lzma
import zlib
from pathlib import Path
from typing import IO

from rankfold.data.errors import DamagedData

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_OTHERS = {b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf": "7-Zip"}
_ENDINGS = (".gz", ".xz")
# What unpacking raises of a file that is cut short or altered.
FAULTS = (EOFError, OSError, zlib.error, lzma.LZMAError)


def unpacked(raw: IO[bytes]) -> IO[bytes]:
    """The file as a stream of what is packed in it, or the file itself."""
    start = raw.read(len(_XZ))
    raw.seek(0)
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    return lzma.LZMAFile(raw) if start == _XZ else raw


def unpacked_content(content: bytes, path: Path) -> bytes:
    """The same for the whole content of a file."""
    try:
        if content.startswith(_GZIP):
            return gzip.decompress(content)
        return lzma.decompress(content) if content.startswith(_XZ) else content
    except FAULTS as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> DamagedData:
    """To raise where unpacking fails."""
    return DamagedData(f"{path} is cut short or altered ({error}); replace it by a fresh copy")


def other_packing(content: bytes) -> str | None:
    """What has packed a file that cannot be read packed, if that is recognised."""
    return next((name for start, name in _OTHERS.items() if content.startswith(start)), None)


def without_packing(path: Path) -> Path:
    """Its name once it is unpacked.

    >>> without_packing(Path("a.csv.GZ")).name, without_packing(Path("a.csv")).name
    ('a.csv', 'a.csv')
    """
    return path.with_suffix("") if path.suffix.lower() in _ENDINGS else path
