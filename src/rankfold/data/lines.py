"""A text file of labelled lines: the label, a tab, the text. To predict, the label and the tab may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.packing import other_packing, unpacked_content


@final
@dataclass(frozen=True)
class Lines:
    """Texts and their labels.

    Attributes:
        path: of the file.
        numbers: of the lines, from 1; empty lines are left out.
        texts: one for each number.
        labels: one for each number; ``None`` if no line has a tab.
    """

    path: Path
    numbers: tuple[int, ...]
    texts: tuple[str, ...]
    labels: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.numbers)


def read_lines(path: Path) -> Lines:
    """The lines of a UTF-8 file: all of them with a label, or none."""
    rows = [(n, line) for n, line in enumerate(_read(path).split("\n"), start=1) if line.strip()]
    if not rows:
        raise MissingData(f"{path} has no lines; each must be a label, a tab and a text")
    split = [(n, *line.rstrip("\r").partition("\t")) for n, line in rows]
    if not any(tab for _, _, tab, _ in split):
        return Lines(path, tuple(n for n, *_ in split), tuple(text for _, text, _, _ in split), None)
    for n, label, tab, text in split:
        if not tab:
            raise DamagedData(f"{path}, line {n} has no tab: expected a label, a tab and a text, got {_shown(label)}")
        if not label.strip() or not text.strip():
            raise DamagedData(f"{path}, line {n} has no {'text' if label.strip() else 'label'}; add it, or remove it")
    return Lines(
        path,
        tuple(n for n, *_ in split),
        tuple(text for _, _, _, text in split),
        tuple(label.strip() for _, label, _, _ in split),
    )


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MissingData(f"{path} cannot be read ({error.strerror}); name a file that exists") from error
    return decoded(content, path)


def decoded(content: bytes, path: Path) -> str:
    """The text of a file, plain or packed by gzip or xz; where it is none, the error says in which line."""
    content = unpacked_content(content, path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        packing = other_packing(content)
        if packing is not None:
            raise DamagedData(f"{path} is packed by {packing}; unpack it first, or pack it by gzip or xz") from error
        line = content.count(b"\n", 0, error.start) + 1
        raise DamagedData(f"{path}, line {line} is not UTF-8 ({error.reason}); save the file as UTF-8") from error


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
