"""Handwritten digits in several processes, by FSDP2: what stays dense is sharded, the factors are whole.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py

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
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import rankfold as rf
from rankfold.distributed import average_gradients, replicate_, tensorized_parameters

EPOCHS = 8


def train(rank: int) -> list[str]:
    """Train one model in all processes; what was found, layer by layer."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    rf.tensorize_(model, rf.TTM(max_rank=10), "0")  # the last layer stays dense
    replicate_(model)  # the factors of the first process, everywhere
    fully_shard(model, ignored_params=tensorized_parameters(model))
    torch.manual_seed(1 + rank)  # noise of its own in every process
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    ranks = rf.RankDetermination(model, optimizer, num_data=len(data), total_steps=EPOCHS * len(loader), kl_weight=0.5)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y) + ranks.kl()
            loss.backward()
            average_gradients(model)  # of the factors; FSDP2 sees to the others
            optimizer.step()
            optimizer.zero_grad()
            ranks.step()  # shapes may change: nothing is to be wrapped again
    return [f"{name}: ranks {tensor.format.ranks}" for name, tensor in ranks.tensors.items()]


def main() -> None:
    """Start from what torchrun has set."""
    if "RANK" not in os.environ:
        sys.exit("start it with: torchrun --standalone --nproc-per-node 2 examples/fsdp2.py")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # nccl on GPUs
    rank = dist.get_rank()
    found = train(rank)  # what is sharded is gone when it returns, and must be before the processes part
    print(f"process {rank}, {', '.join(found)}\n", end="", flush=True)  # in one piece
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads let go of their last tensors, for which they need a Python that is not ending


if __name__ == "__main__":
    main()
