"""Tables of strings, as text or Markdown, and the places in documents where generated ones stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from rankfold.whole_files import write_whole

Style = Literal["text", "markdown"]


@final
@dataclass(frozen=True)
class Grid:
    """A table of strings, with notes below it. The first ``labels`` columns are aligned left."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 2
    notes: tuple[str, ...] = ()


def render(grids: Sequence[Grid], style: Style) -> str:
    """All tables, one after the other.

    >>> print(render([Grid("", ("row", "size"), (("dense", "407,050"), ("cp", "8,622")), labels=1)], "text"))
    row       size
    -----  -------
    dense  407,050
    cp       8,622
    """
    return "\n\n".join(_render(grid, style) for grid in grids)


def write_between_markers(file: Path, name: str, text: str) -> bool:
    """Put ``text`` between the markers of a Markdown file; whether that changed anything."""
    before = file.read_text(encoding="utf-8")
    after = with_section(before, name, text, str(file))
    if after != before:
        write_whole(file, after)
    return after != before


def with_section(document: str, name: str, text: str, where: str) -> str:
    """``document`` with ``text`` between the lines that mark its generated section ``name``."""
    begin, end = f"<!-- {name}: begin, generated -->", f"<!-- {name}: end -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"{where} has no section for the table; add these two lines where it belongs:\n{begin}\n{end}")
    head, rest = document.split(begin)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


def _render(grid: Grid, style: Style) -> str:
    # a rule of Markdown is at least three characters wide
    widths = [max(3, *map(len, column)) for column in zip(grid.headings, *grid.rows, strict=True)]
    headings, *rows = [_aligned(cells, widths, grid.labels) for cells in (grid.headings, *grid.rows)]
    if style == "markdown":
        rule = ["-" * w if n < grid.labels else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
        lines = [f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows)]
        title = f"**{grid.title}**"
        notes = "\n\n".join(grid.notes)  # lines next to each other would be one paragraph
    else:
        lines = ["  ".join(cells).rstrip() for cells in (headings, ["-" * w for w in widths], *rows)]
        title = grid.title
        notes = "\n".join(grid.notes)
    parts = (title if grid.title else "", "\n".join(lines), notes)
    return "\n\n".join(part for part in parts if part)


def _aligned(cells: Sequence[str], widths: Sequence[int], labels: int) -> list[str]:
    """Labels to the left, numbers to the right."""
    return [c.ljust(w) if n < labels else c.rjust(w) for n, (c, w) in enumerate(zip(cells, widths, strict=True))]
