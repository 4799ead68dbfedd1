"""Ways to train that PyTorch users take for granted, each with pruning in the middle."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rankfold as rf

STEPS = 40


def make() -> tuple[nn.Module, torch.optim.Optimizer, rf.RankDetermination]:
    model = nn.Sequential(
        rf.Linear(12, 8, config=rf.CP(4)), nn.ReLU(), rf.Linear(8, 6, config=rf.TT(3)), nn.Linear(6, 3)
    )
    optimizer = torch.optim.AdamW(rf.param_groups(model, lr=4e-2, weight_decay=0.1))
    pruning = rf.Pruning(at=(0.6, 0.8), checks=8, patience=1, rule=rf.VarianceRule(1e-6))
    ranks = rf.RankDetermination(
        model, optimizer, num_data=10**6, total_steps=STEPS, warmup_steps=20, pruning=pruning, check_every=5
    )
    return model, optimizer, ranks


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        x = torch.randn(32, 12)
        yield x, (x[:, 0] > 0).long()


def starve(model: nn.Module, step: int) -> None:
    """A rank of the first layer dies just before ranks may be cut."""
    tensor = model[0].tensor
    if step in (23, 31) and tensor.format.ranks[0] > 2:
        tensor.variance[0] = 1e-9
        with torch.no_grad():
            for mean, log_std in zip(tensor.factors.mean, tensor.factors.log_std, strict=True):
                mean[:, 0] = 0.0
                log_std[:, 0] = -15.0


def assert_pruned_and_learning(model: nn.Module, ranks: rf.RankDetermination, losses: list[float]) -> None:
    assert [step for step, _ in ranks.history] == [24, 32]
    assert model[0].tensor.format.ranks == (2,)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    for p in model.parameters():
        assert all(v.shape == p.shape for v in ranks.optimizers[0].state[p].values() if v.dim() > 0)


@pytest.mark.parametrize("scaled", [False, True])
def test_autocast(scaled: bool) -> None:
    model, optimizer, ranks = make()
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**6)
    losses, data = [], batches()
    for step in range(STEPS):
        x, y = next(data)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
            loss = F.cross_entropy(output, y) + ranks.kl()
        assert loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        starve(model, step)
        ranks.step()
        losses.append(loss.item())
    assert_pruned_and_learning(model, ranks, losses)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    with contextlib.suppress(AttributeError):
        torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own, when it compiles
def test_compiled_model_in_one_graph() -> None:
    model, optimizer, ranks = make()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    losses, data = [], batches()
    for step in range(STEPS):
        x, y = next(data)
        loss = F.cross_entropy(compiled(x), y) + ranks.kl()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        starve(model, step)
        ranks.step()
        losses.append(loss.item())
    assert_pruned_and_learning(model, ranks, losses)


def test_accumulation_clipping_groups_and_a_schedule_of_the_learning_rate() -> None:
    model, optimizer, ranks = make()
    for group, factor in zip(optimizer.param_groups, (1.0, 2.0, 3.0), strict=True):
        group["lr"] *= factor
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.08, 0.16, 0.24], total_steps=STEPS)
    losses, data = [], batches()
    for step in range(STEPS):
        total = 0.0
        for x, y in (next(data) for _ in range(3)):
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            total += loss.item()
        ranks.kl_backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step() if step < STEPS - 1 else None
        optimizer.zero_grad()
        starve(model, step)
        ranks.step()
        losses.append(total)
    assert_pruned_and_learning(model, ranks, losses)
    lrs = [group["lr"] for group in optimizer.param_groups]
    assert lrs[1] == pytest.approx(2 * lrs[0])
    assert lrs[0] < 1e-3
