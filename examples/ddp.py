"""Handwritten digits in several processes.

torchrun --standalone --nproc-per-node 2 examples/ddp.py

The digits are those of scikit-learn: ``pip install '.[cli]'`` brings it.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import rankfold as rf

EPOCHS = 8


def train(rank: int) -> nn.Module:
    """Train one model in all processes."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    rf.tensorize_(model, rf.TTM(max_rank=10))
    ddp = DistributedDataParallel(model)
    torch.manual_seed(1 + rank)  # noise of its own: the processes average as many samples of the posterior
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    ranks = rf.RankDetermination(
        model,
        optimizer,
        num_data=len(data),  # of all processes together
        total_steps=EPOCHS * len(loader),  # of each
        kl_weight=0.5,
    )
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y) + ranks.kl()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if pruned := ranks.step():
                rf.rewrap(ddp)
                cut = ", ".join(f"{tensor.name} {tensor.ranks_after}" for tensor in pruned.tensors)
                print(f"process {rank}, step {ranks.num_steps}: {cut}\n", end="", flush=True)  # in one piece
    return model


def main() -> None:
    """Start from what torchrun has set."""
    if "RANK" not in os.environ:
        sys.exit("start it with: torchrun --standalone --nproc-per-node 2 examples/ddp.py")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # nccl on GPUs
    rank = dist.get_rank()
    model = train(rank)  # DDP is gone when it returns, and must be before the processes part
    if rank == 0:
        print(rf.report(model))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads let go of their last tensors, for which they need a Python that is not ending


if __name__ == "__main__":
    main()
