"""Each layer's modes and counts, from whatever source knows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from rankfold.counts import accounting
from rankfold.formats import BY_NAME, TensorFormat
from rankfold.manifest import StoredTensor
from rankfold.reporting.run import Run
from rankfold.reporting.saved import SavedModel
from rankfold.shapes import Folding


@final
@dataclass(frozen=True)
class Layer:
    """A tensorized layer at the start and at the end. Counts are those of the posterior mean, bias included."""

    name: str
    ranks_before: Sequence[int]
    ranks: Sequence[int]
    format: str | None = None
    in_dims: Sequence[int] = ()
    out_dims: Sequence[int] = ()
    dense: int | None = None
    before: int | None = None
    after: int | None = None
    shared_with: str | None = None

    @property
    def compression(self) -> float | None:
        return self.dense / self.after if self.dense and self.after else None

    @property
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        """At the end; nothing where the modes are not known."""
        if self.format is None or not self.in_dims:
            return ()
        return _folded(self.format, self.in_dims, self.out_dims, self.ranks).factor_shapes


def sums_of(run: Run, layers: Sequence[Layer]) -> list[Layer]:
    """What stays dense, if anything does, and all that the run counts; nothing where a layer's count is not known."""
    dense, before, after = 0, 0, 0
    for layer in layers:
        if layer.dense is None or layer.before is None or layer.after is None:
            return []
        dense, before, after = dense + layer.dense, before + layer.before, after + layer.after
    other = run.final_parameters - after
    if other < 0 or other != run.dense_parameters - dense:
        return []  # the layers are not those of the network that was counted
    stay = Layer("stay dense", (), (), dense=other, before=other, after=other)
    total = Layer("total", (), (), dense=dense + other, before=before + other, after=after + other)
    return [stay, total] if other else [total]


def layers_of(run: Run, saved: SavedModel | None) -> list[Layer]:
    """All tensorized layers, with modes and counts where the record, the saved model or the task tells them."""
    found = _from_record(run) or _from_saved(run, saved) or _from_task(run)
    names = run.ranks_after.keys()
    return [found.get(name) or Layer(name, run.ranks_before[name], run.ranks_after[name]) for name in names]


def _from_record(run: Run) -> dict[str, Layer]:
    """The accounting that a run may have kept; its counts are those at the end."""
    return {entry["name"]: _layer_of_account(entry) for entry in run.record.get("layers") or ()}


def _layer_of_account(entry: Mapping[str, Any]) -> Layer:
    counts, shared_with = entry["counts"], entry.get("shared_with")
    ranks, in_dims, out_dims = (entry[key] for key in ("ranks", "in_dims", "out_dims"))
    after, lost = counts["final_parameters"], 0
    if shared_with is None:  # else the factors are counted where they belong
        first, last = (_folded(entry["format"], in_dims, out_dims, entry[key]) for key in ("ranks_before", "ranks"))
        lost = first.num_entries - last.num_entries
    return Layer(
        entry["name"],
        entry["ranks_before"],
        ranks,
        entry["format"],
        in_dims,
        out_dims,
        counts["dense_parameters"],
        after + lost,
        after,
        shared_with,
    )


def _from_saved(run: Run, saved: SavedModel | None) -> dict[str, Layer]:
    """From the checkpoint beside the run, if it is at the ranks that the run reports."""
    if saved is None or {name: list(t.ranks) for name, t in saved.tensors.items()} != run.ranks_after:
        return {}
    return {name: _layer_of_tensor(name, t, saved.bias_sizes.get(name, 0)) for name, t in saved.tensors.items()}


def _layer_of_tensor(name: str, tensor: StoredTensor, bias: int) -> Layer:
    before, after = (
        bias + _folded(tensor.format, tensor.in_dims, tensor.out_dims, ranks).num_entries
        for ranks in (tensor.max_ranks, tensor.ranks)
    )
    dense = bias + tensor.in_size * tensor.out_size
    return Layer(
        name, tensor.max_ranks, tensor.ranks, tensor.format, tensor.in_dims, tensor.out_dims, dense, before, after
    )


def _from_task(run: Run) -> dict[str, Layer]:
    """From the network of the table, if at these ranks it has the parameters that the run reports."""
    try:
        account = _account(run)
        if account is None or account["total"]["final_parameters"] != run.final_parameters:
            return {}
        entries = [{**entry, "ranks_before": run.ranks_before[entry["name"]]} for entry in account["layers"]]
        return {entry["name"]: _layer_of_account(entry) for entry in entries}
    except (TypeError, ValueError, KeyError):
        return {}  # the table was another one when the run was made


def _account(run: Run) -> dict[str, Any] | None:
    """The table's network at the ranks of the end, counted without numbers; ``None`` for a table that is not known."""
    from rankfold.experiments.registry import TASKS
    from rankfold.experiments.spec import Spec
    from rankfold.surgery import tensorize_

    if run.table not in TASKS or not run.ranks_after:
        return None
    task = TASKS[run.table]
    configs = task.tensor_configs(Spec(**run.spec), "fixed", run.ranks_after)
    return accounting(tensorize_(task.network_on_meta(), None, overrides=configs)).as_dict()


def _folded(format: str, in_dims: Sequence[int], out_dims: Sequence[int], ranks: Sequence[int]) -> TensorFormat:
    """The format at these ranks, which knows how many factors there are and how large."""
    inputs, outputs = (Folding(math.prod(dims), tuple(dims)) for dims in (in_dims, out_dims))
    return BY_NAME[format](inputs, outputs, tuple(ranks))
