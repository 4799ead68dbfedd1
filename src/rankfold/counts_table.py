"""The account of a model as a table to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from torch import nn

from rankfold.counts import Accounting, Counts, LayerAccount, accounting

_HEADER = ("layer", "type", "format", "ranks", "dense", "training", "final", "ratio", "size")
_MAP_TITLE = "−log prior"
_LEFT_ALIGNED = 4  # the first columns are words, the others numbers


@final
class Report(str):
    """A text that shows itself as text in an interactive session too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def report(model: nn.Module) -> Report:
    """The account of ``model`` to print: ranks before → after, parameters, bytes, and what needs attention.

    >>> import rankfold as rf
    >>> print(report(rf.Linear(784, 512, config=rf.CP(max_rank=50))).splitlines()[-1])
    warning: λ was never updated: call ranks.step() after optimizer.step()
    """
    account = accounting(model)
    rows = [(*_HEADER, _kl_title(account), "λ"), *(_layer_row(layer) for layer in account.layers)]
    if account.other.dense_parameters:
        rows.append(("other layers", "", "dense", "", *_numbers(account.other), "", ""))
    rows.append(("total", "", "", "", *_numbers(account.total), *_total_kl(account), ""))
    lines = _aligned(rows)
    rule = "-" * max(len(line) for line in lines)
    return Report("\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *_remarks(account)]))


def _layer_row(layer: LayerAccount) -> tuple[str, ...]:
    modes = modes_text(layer.in_dims, layer.out_dims)
    mode = "" if layer.inference == "bayes" else f", {layer.inference}"
    shared = "" if layer.shared_with is None else f", shared with {layer.shared_with}"
    nats = "" if layer.kl_nats is None else f"{layer.kl_nats:,.1f}"
    variance = "" if layer.variance_range is None else "{:.1e} … {:.1e}".format(*layer.variance_range)
    name, format = layer.name or "(model)", f"{layer.format} {modes}{mode}{shared}"
    return (
        name,
        layer.type,
        format,
        ranks_text(layer.ranks_before, layer.ranks),
        *_numbers(layer.counts),
        nats,
        variance,
    )


def ranks_text(before: Sequence[int], after: Sequence[int]) -> str:
    """Ranks before and after: ``20→6 20→12 20``.

    >>> ranks_text((20, 20, 20), (6, 12, 20))
    '20→6 20→12 20'
    """
    return " ".join(arrow(str(a), str(b)) for a, b in zip(before, after, strict=True))


def modes_text(inputs: Sequence[int], outputs: Sequence[int]) -> str:
    """The modes of a matrix.

    >>> modes_text((4, 7, 28), (16, 32))
    '4·7·28 x 16·32'
    """
    return " x ".join("·".join(map(str, side)) for side in (inputs, outputs))


def arrow(before: str, after: str) -> str:
    """What was and what is, or one of them when they are the same."""
    return after if before == after else f"{before}→{after}"


def bytes_text(count: int) -> str:
    """A number of bytes in a readable unit.

    >>> bytes_text(1536), bytes_text(10)
    ('1.5 KiB', '10 B')
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024.0 or unit == "GiB":
            break
        size /= 1024.0
    return f"{count} B" if unit == "B" else f"{size:,.1f} {unit}"


def _numbers(counts: Counts) -> tuple[str, ...]:
    training = arrow(f"{counts.training_parameters_at_start:,}", f"{counts.training_parameters:,}")
    ratio = "" if counts.compression is None else f"{counts.compression:,.1f}x"
    return (
        f"{counts.dense_parameters:,}",
        training,
        f"{counts.final_parameters:,}",
        ratio,
        bytes_text(counts.final_bytes),
    )


def _has_map(account: Accounting) -> bool:
    return any(layer.inference == "map" for layer in account.layers)


def _kl_title(account: Accounting) -> str:
    only_map = _has_map(account) and all(layer.inference != "bayes" for layer in account.layers)
    return _MAP_TITLE if only_map else "KL (nats)"


def _total_kl(account: Accounting) -> tuple[str]:
    nats = [layer.kl_nats for layer in account.layers if layer.kl_nats is not None]
    return (f"{sum(nats):,.1f}",) if nats else ("",)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if n < _LEFT_ALIGNED else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _remarks(account: Accounting) -> list[str]:
    remarks = [f"warning: {warning}" for warning in account.warnings]
    if _has_map(account):
        which = "" if _kl_title(account) == _MAP_TITLE else f"of MAP layers KL stands for {_MAP_TITLE}; "
        remarks.insert(0, f"note: {which}{_MAP_TITLE} is a density's, known up to a constant, and can be negative")
    if account.num_buffers:
        remarks.insert(0, f"buffers, not counted above: {account.num_buffers:,} numbers")
    return remarks
