"""Text files of any size in blocks of whole lines, plain or packed by gzip or xz."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, final

from rankfold.data.errors import DamagedData
from rankfold.data.packing import FAULTS, damaged, unpacked

_BLOCK_BYTES = 1 << 18  # small enough that what is computed from a block stays in a processor's cache
_LONGEST_LINE = 1 << 24


@final
@dataclass(frozen=True)
class Block:
    """Whole lines, each with its newline; the number of the first one, from 1; the share of the file read so far."""

    text: bytes
    first_line: int
    share: float


def blocks(path: Path, block_bytes: int = _BLOCK_BYTES) -> Iterator[Block]:
    """The file block by block. How it is packed is seen from its content, not from its name."""
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw:
        stream, first_line, rest = unpacked(raw), 1, b""
        while True:
            text = _read(stream, block_bytes, path)
            whole, rest = _cut(rest + text, last=not text)
            if whole:
                yield Block(whole, first_line, min(1.0, raw.tell() / size))
                first_line += whole.count(b"\n")
            if not text:
                return
            if len(rest) > _LONGEST_LINE:
                raise DamagedData(
                    f"{path}: line {first_line} has no end within {_LONGEST_LINE:,} bytes, so this is no text file; "
                    f"expected lines of tab-separated fields"
                )


def _cut(text: bytes, *, last: bool) -> tuple[bytes, bytes]:
    """Whole lines and the rest. At the end of the file the rest is a line, too."""
    if last and text:
        return text if text.endswith(b"\n") else text + b"\n", b""
    end = text.rfind(b"\n") + 1
    return text[:end], text[end:]


def _read(stream: IO[bytes], size: int, path: Path) -> bytes:
    try:
        return stream.read(size)
    except FAULTS as error:
        raise damaged(path, error) from error
