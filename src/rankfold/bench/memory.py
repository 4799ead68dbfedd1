"""Memory: of fetching rows of a large table, and of training a whole DLRM with 4.2 billion dense parameters.

Measured as in :mod:`rankfold.bench.measure`: on CUDA by the allocator's count, on the CPU from the profiler's record
of every allocation. What does not fit is modelled, and says so.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from rankfold.bayesian_tensor import tensors_of
from rankfold.bench.cases import FETCHED, embedding_case, with_formats
from rankfold.bench.contender import BAYESIAN, DENSE, DENSE_WITH_SGD, FIXED, Case
from rankfold.bench.layers import Ready, prepare
from rankfold.bench.measure import peak_memory
from rankfold.bench.networks import FORMAT_NAMES
from rankfold.config import Inference
from rankfold.experiments.dlrm import FOLDINGS, network
from rankfold.experiments.task import Folding
from rankfold.models.dlrm import DLRM
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.surgery import tensorize_
from rankfold.surgery.materialize import materialized

DLRM_BATCH = 2_048
_STEPS = 2  # Adam's moments come with the first
_BYTES = 4
# Adam keeps a parameter, its gradient and two moments.
_ADAM_COPIES = 4
_NEVER = 10**9


@dataclass(frozen=True)
class Row:
    """One contender.

    Attributes:
        peak_bytes: the most that was held at once; for a layer beyond its parameters and the output's gradient,
            for a network everything.
        least_bytes: of a layer, output and gradients of the parameters; of a network, what the optimizer keeps.
        how: ``allocator``, ``profiler`` or ``modelled``.
    """

    case: str
    library: str
    format: str
    parameters: int | None = None
    peak_bytes: int | None = None
    least_bytes: int | None = None
    how: str | None = None
    note: str | None = None


def how_measured(device: torch.device) -> str:
    """Where the count of bytes comes from."""
    return "allocator" if device.type == "cuda" else "profiler"


# Rows of a table ----------------------------------------------------------------------------------------


def embedding_memory_cases(formats: Sequence[str], dense_table: bool) -> list[Case]:
    """Few and many rows, skewed."""
    return [with_formats(embedding_case(rows, dense_table), formats) for rows in FETCHED]


def run_embedding(case: Case, device: torch.device) -> Iterator[Row]:
    """Peak memory of forward + backward of every contender."""
    torch.manual_seed(0)
    x = case.make_input(device)
    for contender in case.contenders:
        names = case.name, contender.library, contender.format
        found = contender.skipped or prepare(contender, x, device)
        yield Row(*names, note=found) if isinstance(found, str) else _embedding_row(names, found, device)


def _embedding_row(names: tuple[str, str, str], ready: Ready, device: torch.device) -> Row:
    with torch.no_grad():
        output_bytes = ready.layer(ready.x).nbytes
    count = sum(p.numel() for p in ready.layer.parameters())
    # a sparse gradient has as many rows as the output
    gradients = output_bytes if isinstance(ready.layer, nn.Embedding) else _BYTES * count
    peak = peak_memory(ready.training(), device)
    return Row(*names, count, peak, output_bytes + gradients, how_measured(device))


# A whole network ----------------------------------------------------------------------------------------


def run_dlrm(
    formats: Sequence[str],
    device: torch.device,
    dense: bool,
    *,
    make: Callable[[], nn.Module] = network,
    foldings: Callable[[str], Folding] = lambda format: FOLDINGS[FORMAT_NAMES[format]],
    batch: int = DLRM_BATCH,
) -> Iterator[Row]:
    """Peak memory of making and training DLRM; the dense one is trained only if ``dense`` allows it.

    Args:
        make: the dense network, on the meta device.
        foldings: how a format folds the large tables.
    """
    case = f"DLRM, training at batch {batch:,}, parameters and optimizer included"
    on_meta = make()
    count = sum(p.numel() for p in on_meta.parameters())
    kept = _ADAM_COPIES * _BYTES * count
    yield Row(case, f"{DENSE}, with Adam", "dense", count, kept, kept, "modelled", "the arrays alone, no activations")
    if dense:
        row = _network_row(case, partial(_dense, make, device), device, batch)
        yield replace(row, library=DENSE_WITH_SGD, least_bytes=_BYTES * count)  # SGD keeps the parameters alone
    modes: tuple[tuple[Inference, str], ...] = (("fixed", FIXED), ("bayes", BAYESIAN))
    for format in formats:
        for inference, library in modes:
            build = partial(_tensorized, make, foldings(format), format, inference, device)
            yield replace(_network_row(case, build, device, batch), library=library, format=format)


def _network_row(case: str, build: Callable[[], nn.Module], device: torch.device, batch: int) -> Row:
    counts: list[int] = []

    def train() -> None:
        model = build().train()
        counts.append(sum(p.numel() for p in model.parameters()))
        _train(model, device, batch)

    gc.collect()  # what is freed during the call must not hide what it needs
    peak = peak_memory(train, device)
    return Row(case, DENSE, "dense", counts[0], peak, _ADAM_COPIES * _BYTES * counts[0], how_measured(device))


def _train(model: nn.Module, device: torch.device, batch: int) -> None:
    tensors = tensors_of(model)
    optimizer: Optimizer = Adam(param_groups(model), fused=True) if tensors else SGD(model.parameters(), lr=0.1)
    ranks = None
    if any(tensor.has_prior for tensor in tensors.values()):
        ranks = RankDetermination(
            model, optimizer, num_data=_NEVER, warmup_steps=_NEVER, check_every=_NEVER, snapshots=False
        )
    numbers, categories, clicks = _examples(model, device, batch)
    for _ in range(_STEPS):
        loss = F.binary_cross_entropy_with_logits(model(numbers, categories), clicks)
        if ranks is not None:
            loss = loss + ranks.kl()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if ranks is not None:
            ranks.step()


def _examples(model: nn.Module, device: torch.device, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    assert isinstance(model, DLRM)
    columns = [torch.randint(int(table.num_embeddings), (batch,), device=device) for table in model.tables]  # type: ignore[arg-type]
    inputs = next(iter(model.bottom.parameters())).shape[1]
    clicks = torch.randint(2, (batch,), device=device).float()
    return torch.randn(batch, inputs, device=device), torch.stack(columns, 1), clicks


def _dense(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """With sparse gradients: dense ones of all tables would take as much again."""
    model = materialized(make(), device)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = True
    return model


def _tensorized(
    make: Callable[[], nn.Module], folding: Folding, format: str, inference: Inference, device: torch.device
) -> nn.Module:
    return tensorize_(make(), None, overrides=folding.configs(FORMAT_NAMES[format], inference)).to(device)
