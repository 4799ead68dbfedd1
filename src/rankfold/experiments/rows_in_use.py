"""Training a dense table by the rows that its examples have.

A row that no example has gets no gradient, and Adam without decay leaves it as it was. So gradient and moments are
needed of the others alone: with ten million rows of which two million occur, a fifth of the memory and of the time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfold.experiments.task import Examples
from rankfold.layers.base import posterior_mean

Table = nn.Embedding | nn.EmbeddingBag
_BATCH = 1000


@final
class RowsInUse(nn.Module):
    """An ``nn.Embedding`` or ``nn.EmbeddingBag`` that has only the rows in ``used`` (N,), under their old numbers."""

    def __init__(self, table: Table, used: Tensor) -> None:
        super().__init__()
        count = int(used.sum())
        self.place: Tensor  # (N,), of every row among those in use
        self.register_buffer("place", torch.zeros(len(used), dtype=torch.int32, device=used.device))
        self.place[used] = torch.arange(count, dtype=torch.int32, device=used.device)
        self.rows = copy.copy(table)
        self.rows._parameters = {"weight": nn.Parameter(table.weight.detach()[used])}
        self.rows.num_embeddings = count
        if table.padding_idx is not None:
            self.rows.padding_idx = int(self.place[table.padding_idx])

    def forward(self, rows: Tensor, *others: Any) -> Tensor:
        found: Tensor = self.rows(self.place[rows], *others)
        return found


@contextmanager
def rows_in_use(model: nn.Module, examples: Examples) -> Iterator[None]:
    """Within, the tables of ``model`` are no larger than ``examples`` need; after that they are whole again, trained.

    >>> model = nn.Sequential(nn.Embedding(1000, 2), nn.Flatten(), nn.Linear(6, 1))
    >>> examples = Examples((torch.tensor([[5, 900, 5], [7, 5, 7]]),), torch.zeros(2, 1))
    >>> with rows_in_use(model, examples):
    ...     [parameter.shape[0] for parameter in model.parameters()]
    [3, 1, 1]
    """
    tables = {name: module for name, module in model.named_modules() if isinstance(module, Table)}
    used = _used(model, tables, examples)
    smaller = {name: RowsInUse(table, used[name]) for name, table in tables.items()}
    for name, module in smaller.items():
        model.set_submodule(name, module)
    try:
        yield
    finally:
        for name, table in tables.items():
            table.weight.data[used[name]] = smaller[name].rows.weight.detach()
            model.set_submodule(name, table)


@torch.no_grad()
def _used(model: nn.Module, tables: Mapping[str, Table], examples: Examples) -> dict[str, Tensor]:
    """Whether the examples have each row (N,), table by table; padding counts as used."""
    device = examples.device
    used = {name: torch.zeros(len(table.weight), dtype=torch.bool, device=device) for name, table in tables.items()}
    hooks = [table.register_forward_pre_hook(partial(_record, used[name])) for name, table in tables.items()]
    with posterior_mean(model):
        for index in torch.arange(len(examples), device=device).split(_BATCH):
            model(*examples.batch(index))
    for hook in hooks:
        hook.remove()
    return used


def _record(used: Tensor, table: Table, args: tuple[Tensor, ...]) -> None:
    used[args[0].flatten()] = True
    if table.padding_idx is not None:
        used[table.padding_idx] = True
