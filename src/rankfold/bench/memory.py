"""Memory: of fetching rows of a large table, and of training a whole DLRM with 4.2 billion dense parameters.

On CUDA by the allocator's count. On the CPU, rows from the profiler's record of every allocation, and a whole network
by the resident set of a Python process that does nothing else. What does not fit is modelled, and says so.
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
from rankfold.bench.fresh_process import in_fresh_process
from rankfold.bench.layers import Ready, prepare
from rankfold.bench.measure import peak_memory
from rankfold.bench.networks import FORMAT_NAMES
from rankfold.config import TTM, Inference
from rankfold.experiments.dlrm import FOLDINGS, network
from rankfold.experiments.memory_check import adam_bytes, count_parameters
from rankfold.experiments.task import Folding
from rankfold.models.dlrm import DLRM, tables_from
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.surgery import tensorize_
from rankfold.surgery.materialize import materialized

DLRM_BATCH = 2_048
MIN_ROWS = 10_000
WITH_SNAPSHOTS = f"{BAYESIAN}, with snapshots"
# Of the tutorial on DLRM, where every table of so many rows is tensorized.
_BY_SIZE = TTM(max_rank=8, init_std=0.05)
_STEPS = 2  # Adam's moments come with the first
_BYTES = 4
_NEVER = 10**9


@dataclass(frozen=True)
class Row:
    """One contender.

    Attributes:
        peak_bytes: the most that was held at once; for a layer beyond its parameters and the output's gradient,
            for a network everything.
        least_bytes: of a layer, output and gradients of the parameters; of a network, what the optimizer keeps.
        how: ``allocator``, ``profiler``, ``resident set`` or ``modelled``.
    """

    case: str
    library: str
    format: str
    parameters: int | None = None
    peak_bytes: int | None = None
    least_bytes: int | None = None
    how: str | None = None
    note: str | None = None


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
    how = "allocator" if device.type == "cuda" else "profiler"
    return Row(*names, count, peak, output_bytes + gradients, how)


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
        make: the dense network, on the meta device; a function of a module, for a new process must find it.
        foldings: how a format folds the large tables.
    """
    case = f"DLRM, training at batch {batch:,}, parameters and optimizer included"
    count = count_parameters(make())
    kept = adam_bytes(count)
    yield Row(case, f"{DENSE}, with Adam", "dense", count, kept, kept, "modelled", "the arrays alone, no activations")
    if dense:
        row = _network_row((case, DENSE_WITH_SGD, "dense"), _Training(partial(_dense, make, device), device, batch))
        yield replace(row, least_bytes=_BYTES * count)  # SGD keeps the parameters alone
    modes: tuple[tuple[Inference, str], ...] = (("fixed", FIXED), ("bayes", BAYESIAN))
    for format in formats:
        for inference, library in modes:
            build = partial(_tensorized, make, foldings(format), format, inference, device)
            yield _network_row((case, library, format), _Training(build, device, batch))
    if "TTM" in formats:
        build = partial(_tensorized, make, foldings("TTM"), "TTM", "bayes", device)
        yield _network_row((case, WITH_SNAPSHOTS, "TTM"), _Training(build, device, batch, snapshots=True))
        yield from _every_large_table(make, device, batch)


def _every_large_table(make: Callable[[], nn.Module], device: torch.device, batch: int) -> Iterator[Row]:
    case = f"DLRM, every table of at least {MIN_ROWS:,} rows in TTM of rank {_BY_SIZE.max_rank}, batch {batch:,}"
    training = _Training(partial(_tensorized_by_size, make, device), device, batch)
    yield _network_row((case, BAYESIAN, "TTM"), training)
    yield _network_row((case, WITH_SNAPSHOTS, "TTM"), replace(training, snapshots=True))


@dataclass(frozen=True)
class _Training:
    """To make a network and train it for some steps; it can be sent to another process."""

    build: Callable[[], nn.Module]
    device: torch.device
    batch: int
    snapshots: bool = False

    def __call__(self) -> int:
        """How many parameters are trained."""
        model = self.build().train()
        _train(model, self.device, self.batch, self.snapshots)
        return count_parameters(model)


def _network_row(names: tuple[str, str, str], training: _Training) -> Row:
    if training.device.type == "cuda":
        count, peak, how = *_on_cuda(training), "allocator"
    else:
        done = in_fresh_process(training)
        count, peak, how = done.value, done.peak_bytes, "resident set"
    return Row(*names, count, peak, adam_bytes(count), how)


def _on_cuda(training: _Training) -> tuple[int, int]:
    """Parameters and peak."""
    counts: list[int] = []
    gc.collect()  # what is freed during the call must not hide what it needs
    peak = peak_memory(lambda: counts.append(training()), training.device)
    return counts[0], peak


def _train(model: nn.Module, device: torch.device, batch: int, snapshots: bool) -> None:
    tensors = tensors_of(model)
    optimizer: Optimizer = Adam(param_groups(model), fused=True) if tensors else SGD(model.parameters(), lr=0.1)
    ranks = None
    if any(tensor.has_prior for tensor in tensors.values()):
        # a snapshot after every step: the second has Adam's moments in it
        check_every = 1 if snapshots else _NEVER
        ranks = RankDetermination(
            model, optimizer, num_data=_NEVER, warmup_steps=_NEVER, check_every=check_every, snapshots=snapshots
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


def _tensorized_by_size(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    return tensorize_(make(), _BY_SIZE, tables_from(MIN_ROWS)).to(device)
