"""Fig. 6: how much a gradient varies from draw to draw, with λ at its best value and with λ drawn.

A one-layer classifier of 8×8 digits learns with more ranks than it needs; none is cut, so that those that die can be
watched. Now and then training pauses and the gradient of the whole objective is drawn many times: for a
new batch and new factors each time, and with λ

- at its closed form, as the method has it (a delta as posterior of λ);
- drawn from a log-normal q(λ) around it. Given the factors, and with a log-uniform prior on √λ as a density in √λ, the
  exact posterior of 1/λ is a gamma distribution of relative variance 2/D; the log-normal has the same.

The gradient of the KL by a mean is μ/λ, so drawing λ adds a variance of (β μ/N)² Var[1/λ], which grows without
bound as λ falls. It does fall without bound for point factors (MAP). For Gaussian factors it stops at the size of
their noise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import CP, Inference
from rankfold.data.digits import load_digits
from rankfold.layers import Linear
from rankfold.parameters import param_groups
from rankfold.rank_determination import RankDetermination
from rankfold.schedule import Pruning

MAX_RANK = 10
BATCH_SIZE = 64


@dataclass(frozen=True)
class Settings:
    """How long to train, and how often and how well to look."""

    steps: int = 6_000
    looks: int = 30
    draws: int = 200
    lr: float = 5e-3
    seed: int = 0


def measure(inference: Inference, settings: Settings | None = None) -> dict[str, Any]:
    """Gradient variances of the means of one factor over training, rank by rank."""
    settings = settings or Settings()
    torch.manual_seed(settings.seed)
    data = load_digits()
    images, labels = data.train_images.flatten(1), data.train_labels
    layer = Linear(64, 10, config=CP(MAX_RANK, in_dims=(8, 8), out_dims=(10,), inference=inference))
    optimizer = torch.optim.Adam(param_groups(layer, lr=settings.lr))
    ranks = RankDetermination(
        layer, optimizer, len(labels), settings.steps, pruning=Pruning(at=(), simplify_at=()), snapshots=False
    )
    looks = []
    for step in range(1, settings.steps + 1):
        batch = torch.randint(len(labels), (BATCH_SIZE,))
        _objective(layer, ranks, images[batch], labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
        if step % (settings.steps // settings.looks) == 0:
            looks.append({"step": step, **_look(layer, ranks, images, labels, settings.draws)})
            optimizer.zero_grad()
    return {"settings": {**asdict(settings), "max_rank": MAX_RANK, "batch_size": BATCH_SIZE}, "looks": looks}


def relative_std(tensor: BayesianTensor) -> Tensor:
    """Of 1/λ under its exact posterior given the factors: ``√(2/D)``, (R,)."""
    return (2.0 / tensor.count).sqrt()


def drawn_variance(tensor: BayesianTensor, noise: Tensor) -> Tensor:
    """λ from a log-normal with E[1/λ] at the inverse of the closed form, for standard normal ``noise`` (R,)."""
    # 1/λ = exp(s z − s²/2) / λ*, whose relative variance is exp(s²) − 1 = 2/D
    log_variance = relative_std(tensor).square().log1p()
    return tensor.variance * torch.exp(0.5 * log_variance - log_variance.sqrt() * noise)


def _look(layer: Linear, ranks: RankDetermination, images: Tensor, labels: Tensor, draws: int) -> dict[str, Any]:
    """λ and the variances of the gradient by the first factor's means, averaged over each column."""
    tensor = layer.tensor
    best = tensor.variance.clone()
    gradients: dict[str, list[Tensor]] = {"delta": [], "drawn": []}
    for _ in range(draws):
        batch = torch.randint(len(labels), (BATCH_SIZE,))
        for how, drawn in gradients.items():
            tensor.variance.copy_(best if how == "delta" else drawn_variance(tensor, torch.randn_like(best)))
            (mean,) = torch.autograd.grad(
                _objective(layer, ranks, images[batch], labels[batch]), [tensor.factors.mean[0]]
            )
            drawn.append(mean)
            tensor.variance.copy_(best)
    spread = {how: torch.stack(found).var(0).mean(0) for how, found in gradients.items()}
    # (β μ/N)² Var[1/λ]
    slope = ranks.beta * tensor.factors.mean[0].detach() / ranks.num_data
    added = slope.square() * (relative_std(tensor) / best).square()
    return {
        "variance": best.tolist(),
        "gradient_variance": {how: values.tolist() for how, values in spread.items()},
        "added_by_formula": added.mean(0).tolist(),
    }


def _objective(layer: nn.Module, ranks: RankDetermination, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(layer(images), labels) + ranks.kl()


def weakest_rank(measured: dict[str, Any]) -> int:
    """The rank whose λ has fallen lowest in the end."""
    last = measured["looks"][-1]["variance"]
    return min(range(len(last)), key=last.__getitem__)
