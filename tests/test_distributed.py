"""Wrapping DDP again after pruning."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rankfold as rf


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_training_goes_on_after_pruning_and_wrapping_again(process_group: None) -> None:
    model = rf.Linear(12, 5, config=rf.CP(4))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(rf.param_groups(ddp))
    ranks = rf.RankDetermination(ddp, optimizer, num_data=100, total_steps=100)
    for step in range(6):
        (ddp(torch.randn(3, 12)).square().mean() + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
        if step == 2:
            model.tensor.variance.copy_(torch.tensor([1.0, 1.0, 1e-9, 1.0]))
            assert ranks.prune(rf.VarianceRule(1e-6)) is not None
            ddp = rf.rewrap(ddp)
    assert model.tensor.format.ranks == (3,)
    assert ddp.module is model
