"""The five lines in plain PyTorch: handwritten digits, gradients accumulated and clipped, a falling learning rate.

The digits are those of scikit-learn: ``pip install '.[cli]'`` brings it.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import rankfold as rf

EPOCHS, BATCH, ACCUMULATE = 10, 32, 2


def main() -> None:
    """Train, and print what is left."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    train, test = torch.randperm(len(x)).split([1437, 360])

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    rf.tensorize_(model, rf.TTM(max_rank=10))
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    steps = EPOCHS * (len(train) // (BATCH * ACCUMULATE))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    ranks = rf.RankDetermination(model, optimizer, num_data=len(train), total_steps=steps, kl_weight=0.5)

    while ranks.num_steps < steps:
        batches = train[torch.randperm(len(train))].split(BATCH)
        for together in zip(*[iter(batches)] * ACCUMULATE, strict=False):
            for batch in together:
                (F.cross_entropy(model(x[batch]), y[batch]) / ACCUMULATE).backward()
            ranks.kl_backward()  # the KL counts once, however many batches there are
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if pruned := ranks.step():
                print(pruned)

    accuracy = (model.eval()(x[test]).argmax(1) == y[test]).float().mean()
    print(rf.report(model))
    print(f"accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
