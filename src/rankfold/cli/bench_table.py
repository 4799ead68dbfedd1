"""What the benchmark shows on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from rankfold.bench.contender import BAYESIAN, DENSE, FIXED, TENSORLY
from rankfold.bench.layers import Row, speedups
from rankfold.bench.measure import Timing

_STYLES = {DENSE: "dim", FIXED: "bold cyan", BAYESIAN: "cyan"}


def case_table(title: str, rows: Sequence[Row]) -> Table:
    """All contenders of one case, format by format."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("format")
    table.add_column("layer", no_wrap=True)
    for heading in ("parameters", "forward, ms", "forward + backward, ms", "memory, MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    formats = list(dict.fromkeys(row.format for row in rows))
    for row in sorted(rows, key=lambda row: formats.index(row.format)):
        table.add_row(row.format, row.library, *_cells(row), style=_STYLES.get(row.library))
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
    for heading in ("format", "forward", "forward + backward"):
        table.add_column(heading, justify="right")
    for (case, format), ratios in speedups(rows, over=TENSORLY).items():
        table.add_row(case, format, *(_ratio(ratio) for ratio in ratios))
    return table


def _cells(row: Row) -> tuple[str, ...]:
    if row.forward is None or row.forward_backward is None or row.extra_bytes is None:
        return ("", "", escape(row.note or ""), "")
    return (
        f"{row.parameters:,}",
        _milliseconds(row.forward),
        _milliseconds(row.forward_backward),
        f"{row.extra_bytes / 2**20:,.1f}",
    )


def _milliseconds(timing: Timing) -> str:
    return f"{timing.median_ms:,.2f} [{timing.lower_ms:,.2f} – {timing.upper_ms:,.2f}]"


def _ratio(ratio: float) -> str:
    return f"[{'green' if ratio > 1.0 else 'red'}]{ratio:.2f}×[/]"
