"""What the benchmark shows on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rankfold.bench.contender import BAYESIAN, DENSE, FIXED, TENSORLY
from rankfold.bench.layers import Row, speedups
from rankfold.bench.measure import Timing

_HEADINGS = ("parameters", "forward, ms", "forward + backward, ms", "memory, MiB")
_NARROW_HEADINGS = ("parameters", "forward,\nms", "forward +\nbackward, ms", "memory,\nMiB")
_NO_LIMIT = 10_000  # columns
_STYLES = {DENSE: "dim", FIXED: "bold cyan", BAYESIAN: "cyan"}


def case_table(title: str, rows: Sequence[Row], console: Console) -> Group:
    """All contenders of one case, format by format, and why some were not timed.

    On a narrow console the quartiles are left out, and names are wrapped.
    """
    formats = list(dict.fromkeys(row.format for row in rows))
    ordered = sorted(rows, key=lambda row: formats.index(row.format))
    wide = _case_table(title, ordered, narrow=False)
    fits = console.measure(wide, options=console.options.update_width(_NO_LIMIT)).maximum <= console.width
    notes = [f"  {row.library}, {row.format}: {row.note}" for row in ordered if row.note]
    return Group(wide if fits else _case_table(title, ordered, narrow=True), *(Text(note, "dim") for note in notes))


def _case_table(title: str, rows: Sequence[Row], narrow: bool) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=not narrow)
    table.add_column("format", no_wrap=True)
    table.add_column("layer", no_wrap=not narrow)
    for heading in _NARROW_HEADINGS if narrow else _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.format, row.library, *_cells(row, quartiles=not narrow), style=_STYLES.get(row.library))
    return table


def summary_table(rows: Sequence[Row]) -> Table:
    """How rankfold at fixed rank compares with the best that tensorly-torch offers."""
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
    for (case, format), ratios in speedups(rows, over=TENSORLY).items():
        table.add_row(case, format, *(_ratio(ratio) for ratio in ratios))
    return table


def _cells(row: Row, quartiles: bool) -> tuple[str, ...]:
    if row.forward is None or row.forward_backward is None or row.extra_bytes is None:
        return ("–",) * len(_HEADINGS)
    return (
        f"{row.parameters:,}",
        _milliseconds(row.forward, quartiles),
        _milliseconds(row.forward_backward, quartiles),
        f"{row.extra_bytes / 2**20:,.1f}",
    )


def _milliseconds(timing: Timing, quartiles: bool) -> str:
    around = f" [{timing.lower_ms:,.2f} – {timing.upper_ms:,.2f}]" if quartiles else ""
    return f"{timing.median_ms:,.2f}{around}"


def _ratio(ratio: float) -> str:
    return f"[{'green' if ratio > 1.0 else 'red'}]{ratio:.2f}×[/]"
