"""What the demonstration shows on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rankfold.counts import Counts
from rankfold.demo import DemoRun
from rankfold.schedule import WARMUP

BAR_WIDTH = 28  # with all that stands beside it, a line fits a terminal of 80 columns
ALIVE, GONE, ACCENT = "cyan", "grey30", "bold magenta"


def screen(run: DemoRun) -> RenderableType:
    """The whole display after an epoch."""
    settings, now = run.settings, run.history[-1]
    title = f"[bold]rankfold[/] · {settings.format.upper()} · {settings.prior} prior · KL weight {settings.kl_weight:g}"
    done = progress(now.epoch, settings.epochs, WARMUP, now.seconds / now.epoch)
    score = "test accuracy", f"{now.accuracy:.1%}"
    objective = terms(asdict(now), run.before, len(run.data.train_labels), "image", score)
    parts = (done, Text(), objective, Text(), rank_bars(now.ranks, run.starting_ranks))
    return Panel(Group(*parts), title=title, box=box.ROUNDED, padding=(1, 2), width=84)


def progress_lines(run: DemoRun) -> str:
    """Two lines of at most 80 characters, for output that is no terminal."""
    now = run.history[-1]
    kl = now.kl_nats / len(run.data.train_labels)
    ranks = "  ".join(f"{name} {'·'.join(map(str, ranks))}" for name, ranks in now.ranks.items())
    return (
        f"epoch {now.epoch:4d}/{run.settings.epochs}  NLL {now.nll:.3f}  KL {kl:.3f} nats per image  "
        f"β {now.beta:.2f}  accuracy {now.accuracy:.1%}\n  {now.parameters:6,} parameters  {ranks}"
    )


def result_table(figures: dict[str, Any]) -> RenderableType:
    """Dense, before and after, side by side. Nothing is trained to the end at the starting ranks: no accuracy."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    table.add_column("network")
    for heading in ("parameters", "smaller", "bytes", "test accuracy"):
        table.add_column(heading, justify="right")
    rows = {"dense": "dense", "factors, starting ranks": "before", "factors, ranks found": "after"}
    for label, key in rows.items():
        entry, style = figures[key], "bold green" if key == "after" else ""
        ratio = figures["dense"]["parameters"] / entry["parameters"]
        shown = "" if key == "before" else f"{entry['accuracy']:.1%}"
        table.add_row(
            label, f"{entry['parameters']:,}", f"{ratio:.1f}×", f"{entry['bytes']:,}", shown, style=style or None
        )
    return Group(table, *_footnotes(figures))


def _footnotes(figures: dict[str, Any]) -> list[Padding]:
    notes = []
    right, wrong = figures["spread_where_right"], figures["spread_where_wrong"]
    if right is not None and wrong is not None:
        notes.append(f"probabilities vary by ±{right:.2f} where the network is right, ±{wrong:.2f} where it is wrong")
    notes.append("one seed, 360 test images, settings chosen on them: no contest with dense")
    notes.append(f"{figures['epochs_done']} epochs in {figures['seconds']:.0f} s")
    return [Padding(Text(note, style="dim"), (0, 0, 0, 2)) for note in notes]


def progress(epoch: int, epochs: int, warmup: float, seconds: float) -> Text:
    """How far training is; it takes so many ``seconds`` per epoch."""
    share, left = epoch / epochs, seconds * (epochs - epoch)
    phase = "warm-up" if share < warmup else "cutting ranks" if share < 1.0 else "done"
    ending = f"  {phase}, {left:.0f} s left"
    return Text.assemble(("epoch ", "dim"), f"{epoch}/{epochs}  ", *_bar(share, ACCENT), ending)


def terms(now: Mapping[str, Any], before: Counts, num_data: int, example: str, score: tuple[str, str]) -> Table:
    """The objective after an epoch, per ``example``, beside the name and the value of a score; and all parameters."""
    grid = Table.grid(padding=(0, 2), expand=False)
    grid.add_row("[dim]NLL[/]", f"{now['nll']:.3f} nats per {example}", f"[dim]{score[0]}[/]", score[1])
    grid.add_row("[dim]KL[/]", f"{now['kl_nats'] / num_data:.3f} nats per {example}", "[dim]β[/]", f"{now['beta']:.2f}")
    smaller = before.dense_parameters / now["parameters"]
    grid.add_row(
        "[dim]parameters[/]",
        f"{now['parameters']:,} of {before.final_parameters:,}",
        "[dim]dense[/]",
        f"{before.dense_parameters:,}  [{ACCENT}]{smaller:.0f}× smaller[/]",
    )
    return grid


def rank_bars(current: Mapping[str, Sequence[int]], starting: Mapping[str, Sequence[int]]) -> Table:
    """A bar for every rank of every layer."""
    grid = Table.grid(padding=(0, 2))
    for name, ranks in current.items():
        for n, (rank, start) in enumerate(zip(ranks, starting[name], strict=True), start=1):
            label = name if n == 1 else ""
            grid.add_row(label, f"[dim]rank {n}[/]", Text.assemble(*_bar(rank / start, ALIVE)), f"{rank} of {start}")
    return grid


def _bar(share: float, style: str) -> list[tuple[str, str]]:
    """The pieces of a bar that is full up to ``share``."""
    full = round(share * BAR_WIDTH)
    return [("━" * full, style), ("━" * (BAR_WIDTH - full), GONE)]
