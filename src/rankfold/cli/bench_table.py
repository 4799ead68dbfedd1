"""What the benchmark shows on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rankfold.bench.contender import BAYESIAN, DENSE, FIXED, TENSORLY
from rankfold.bench.layers import Row, speedups
from rankfold.bench.sheets import sheets
from rankfold.grids import Grid

_NARROW_HEADING = 9  # characters
_NO_LIMIT = 10_000  # columns
_STYLES = {DENSE: "dim", FIXED: "bold cyan", BAYESIAN: "cyan"}


def record_tables(record: Mapping[str, Any], console: Console) -> Group:
    """The tables of a record, and why some were not measured.

    On a narrow console the quartiles are left out and names are wrapped; if that is not enough, the last columns
    are left out, and named.
    """
    shown: list[Table | Text] = []
    for wide, narrow in zip(sheets(record), sheets(record, quartiles=False), strict=True):
        table = _table(wide, narrow=False)
        widest = console.measure(table, options=console.options.update_width(_NO_LIMIT)).maximum
        shown += [table] if widest <= console.width else _narrowed(narrow, console, quartiles=wide.rows != narrow.rows)
        shown += [Text(f"  {note}", "dim") for note in wide.notes]
    return Group(*shown)


def _narrowed(grid: Grid, console: Console, quartiles: bool) -> list[Table | Text]:
    """As many columns as there is room for, and which others there are."""
    for count in range(len(grid.headings), grid.labels, -1):
        kept = replace(grid, headings=grid.headings[:count], rows=tuple(row[:count] for row in grid.rows))
        table = _table(kept, narrow=True)
        if console.measure(table, options=console.options.update_width(_NO_LIMIT)).minimum <= console.width:
            break
    left_out = "; ".join([*(["quartiles"] if quartiles else []), *grid.headings[count:]])
    note = Text(f"  in a wider terminal and in the file: {left_out}", "dim")
    return [table, note] if left_out else [table]


def _table(grid: Grid, narrow: bool) -> Table:
    table = Table(title=grid.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=not narrow)
    for number, heading in enumerate(grid.headings):
        name = textwrap.fill(heading, _NARROW_HEADING, break_long_words=False) if narrow else heading
        words = [word for row in grid.rows for word in row[number].split()]
        wrapped = narrow and any(" " in row[number] for row in grid.rows)
        table.add_column(
            name,
            justify="left" if number < grid.labels else "right",
            no_wrap=not wrapped,
            min_width=max(map(len, words), default=0),
        )
    for cells in grid.rows:
        table.add_row(*cells, style=_STYLES.get(cells[1]))
    return table


def summary_table(rows: Sequence[Row]) -> Table | None:
    """How rankfold at fixed rank compares with the best that tensorly-torch offers, where it offers something."""
    ratios = speedups(rows, over=TENSORLY)
    if not ratios:
        return None
    table = Table(
        title="fixed-rank rankfold against the best of tensorly-torch, times faster",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("layer")
    table.add_column("format", justify="right", no_wrap=True)
    for heading in ("forward", "forward + backward"):
        table.add_column(heading, justify="right")
    for (case, format), both in ratios.items():
        table.add_row(case, format, *(_ratio(ratio) for ratio in both))
    return table


def _ratio(ratio: float) -> str:
    return f"[{'green' if ratio > 1.0 else 'red'}]{ratio:.2f}×[/]"
