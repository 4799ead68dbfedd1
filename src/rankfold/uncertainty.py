"""How good probabilities are, and how well a model knows what it does not know.

Class probabilities are of shape (N, C), labels (N,). All measures are computed on the CPU in float64 and
returned as plain numbers: the tables are small, and the result is the same on every device.

ECE and AUROC come from torchmetrics: pip install 'rankfold[experiments]'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.batch_norm import Batch
from rankfold.layers.base import posterior_mean
from rankfold.predictive import draws, sampled, warn_of_batch_norm
from rankfold.shapes import is_integer, is_positive_integer

NUM_BINS = 15
_BELOW_ONE = 1.0 - 2.0**-24  # the largest float32 below 1


@dataclass(frozen=True)
class Scores:
    """The quality of class probabilities.

    Attributes:
        nll_nats: mean of ``−log p(label)``.
        accuracy: share of examples whose most probable class is the label.
        brier: mean of ``Σ_c (p_c − [c = label])²``, from 0 to 2.
        ece: expected calibration error, from 0 to 1.
    """

    nll_nats: float
    accuracy: float
    brier: float
    ece: float


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for N examples, averaged over its posterior.

    Attributes:
        probabilities: (N, C), the mean over the samples.
        entropy: (N,), of that mean, in nats: all uncertainty.
        mutual_information: (N,), between prediction and weights, in nats: the part of the entropy that
            comes from not knowing the weights.
    """

    probabilities: Tensor
    entropy: Tensor
    mutual_information: Tensor


@dataclass(frozen=True)
class Bins:
    """Examples by confidence: how many, their mean confidence, and the share of right answers."""

    count: Sequence[int]
    confidence: Sequence[float]
    accuracy: Sequence[float]

    @property
    def error(self) -> float:
        """Expected calibration error: Σ_b n_b/N · |accuracy_b − confidence_b|."""
        gaps = (n * abs(a - c) for n, c, a in zip(self.count, self.confidence, self.accuracy, strict=True))
        return sum(gaps) / sum(self.count)


def score(probabilities: Tensor, labels: Tensor) -> Scores:
    """All measures of class probabilities (N, C) against labels (N,).

    >>> scores = score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
    >>> scores.accuracy, scores.brier, round(scores.nll_nats, 3), round(scores.ece, 3)
    (1.0, 0.25, 0.347, 0.25)
    """
    return Scores(
        nll_nats(probabilities, labels),
        accuracy(probabilities, labels),
        brier_score(probabilities, labels),
        calibration_error(probabilities, labels),
    )


def nll_nats(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of ``−log p(label)``, of probabilities (N, C) and labels (N,); infinite if a label has none at all.

    >>> round(nll_nats(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0])), 3)  # ½ log 2
    0.347
    """
    p, y = _checked(probabilities, labels)
    return float(-p.gather(1, y[:, None]).log().mean())


def accuracy(probabilities: Tensor, labels: Tensor) -> float:
    """Share of examples, (N, C) with labels (N,), whose most probable class is the label.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.5
    """
    p, y = _checked(probabilities, labels)
    return float((p.argmax(1) == y).double().mean())


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    """Mean of ``Σ_c (p_c − [c = label])²``, from 0 to 2, of probabilities (N, C) and labels (N,).

    >>> brier_score(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([0, 0]))
    0.25
    """
    p, y = _checked(probabilities, labels)
    return float((p - nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error: ``Σ_b n_b/N · |accuracy_b − confidence_b|`` over 15 bins of equal width.

    A bin holds the examples, (N, C) with labels (N,), whose largest probability lies in it, the last one including 1.

    >>> round(calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1])), 3)  # right, and unsure
    0.15
    """
    from torchmetrics.functional.classification import multiclass_calibration_error

    p, y = _checked(probabilities, labels)
    # torchmetrics would give confidences of exactly 1 a bin of their own, and take a probability that
    # rounding has put above 1 for a sign that all of them are logits
    p = p.clamp(max=_BELOW_ONE)
    return float(multiclass_calibration_error(p, y, num_classes=p.shape[1], n_bins=NUM_BINS, norm="l1"))


def calibration_bins(probabilities: Tensor, labels: Tensor) -> Bins:
    """Examples (N, C) with labels (N,) by their largest probability, in 15 bins of equal width.

    >>> calibration_bins(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])).count[12:14]
    [1, 1]
    """
    p, y = _checked(probabilities, labels)
    confidence, guess = p.max(1)
    right = (guess == y).double()
    index = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)  # the last bin includes 1
    counts = torch.bincount(index, minlength=NUM_BINS)
    sums = (confidence.new_zeros(NUM_BINS).index_add_(0, index, values) for values in (confidence, right))
    means = [(total / counts.clamp(min=1)).tolist() for total in sums]
    return Bins(counts.tolist(), *means)


def ood_auroc(inside: Tensor, outside: Tensor) -> float:
    """How well a score tells examples from outside the training distribution: the area under the ROC curve.

    It is the probability that a random example from outside has a higher score than one from inside,
    ties counting half.

    Args:
        inside: scores (N,) of examples from the training distribution, such as their predictive entropy.
        outside: scores (M,) of examples from elsewhere.

    >>> ood_auroc(torch.tensor([0.1, 0.7]), torch.tensor([0.5, 2.0]))
    0.75
    """
    from torchmetrics.functional.classification import binary_auroc

    for name, scores in (("inside", inside), ("outside", outside)):
        _check_scores(name, scores)
    scores = torch.cat([inside.detach().cpu().double(), outside.detach().cpu().double()])
    # Only the order matters, so scores are replaced by their ranks in [0, 1]: outside this range
    # torchmetrics applies a sigmoid, in which small scores become equal.
    _, ranks = scores.unique(return_inverse=True)
    target = (torch.arange(len(scores)) >= len(inside)).long()
    return float(binary_auroc(ranks.double() / len(scores), target))


def entropy(probabilities: Tensor) -> Tensor:
    """``−Σ_c p_c log p_c`` in nats of probabilities (*, C), with ``0 log 0 = 0``; (*).

    >>> entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]))  # none, and log 2
    tensor([0.0000, 0.6931])
    """
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(-1)


@torch.no_grad()
def predictive_statistics(
    model: nn.Module,
    *inputs: Tensor,
    samples: int = 32,
    batch_size: int = 1000,
    bn_batches: Iterable[Batch] | None = None,
) -> Predictions:
    """Average the class probabilities of a model over its posterior, and measure their uncertainty.

    All but the posterior's samples is in eval mode. Of the samples only sums are kept.

    Args:
        model: gives logits (B, C) for a batch (B, \\*).
        inputs: what the model takes of all examples, (N, \\*) each, on the model's device.
        samples: draws per example; 0 means the posterior mean, whose mutual information is 0.
        batch_size: examples in one forward.
        bn_batches: for a model with batch norm, as in :func:`rankfold.predict`.

    Returns:
        Tensors in float64, on the model's device.

    >>> import rankfold as rf
    >>> layer = rf.Linear(8, 6, config=rf.CP(max_rank=2))
    >>> predicted = predictive_statistics(layer, torch.ones(3, 8), samples=4)
    >>> predicted.probabilities.shape, bool((predicted.mutual_information <= predicted.entropy).all())
    (torch.Size([3, 6]), True)
    """
    if not is_integer(samples) or samples < 0:
        raise ValueError(f"samples must be a positive integer, or 0 for the posterior mean, got {samples!r}")
    if not is_positive_integer(batch_size):
        raise ValueError(f"batch_size must be a positive integer, got {batch_size!r}")
    samples, batch_size = int(samples), int(batch_size)
    if not inputs or not all(isinstance(x, Tensor) and x.dim() and len(x) == len(inputs[0]) for x in inputs):
        given = [tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in inputs]
        raise ValueError(f"inputs must be tensors (N, *) with one N, got {given}")
    batches = list(zip(*(x.split(batch_size) for x in inputs), strict=True))
    if samples and bn_batches is not None:  # it takes long to prepare a draw, so each sees all examples
        with closing(draws(model, samples, bn_batches)) as prepared:
            parts = [_average(torch.cat([_probabilities(draw, batch) for batch in batches]) for draw in prepared)]
    else:
        if samples:
            warn_of_batch_norm(model)
        with sampled(model) if samples else posterior_mean(model):
            parts = [_average(_probabilities(model, batch) for _ in range(max(samples, 1))) for batch in batches]
    probabilities, mean_entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    total = entropy(probabilities)
    # I(y; Φ) = H(E p) − E H(p), which rounding may put just below 0
    return Predictions(probabilities, total, (total - mean_entropy).clamp(min=0.0))


def _average(samples: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """``E p`` (B, C) and ``E H(p)`` (B,) over samples ``p``, one at a time."""
    probabilities = next(samples)
    entropies, count = entropy(probabilities), 1
    for p in samples:
        probabilities += p
        entropies += entropy(p)
        count += 1
    return probabilities / count, entropies / count


def _probabilities(model: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    logits = model(*batch)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"the model must return logits of shape (B, C), got {found}; wrap it in one that does")
    return logits.double().softmax(1)  # float32 rounds small probabilities to 0, and their NLL to infinity


def _checked(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities in float64 and labels in int64, both on the CPU."""
    for name, given in (("probabilities", probabilities), ("labels", labels)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(given).__name__}")
    if probabilities.dim() != 2 or labels.shape != probabilities.shape[:1] or not labels.numel():
        raise ValueError(
            f"expected probabilities (N, C) and labels (N,) with N at least 1, got {tuple(probabilities.shape)} "
            f"and {tuple(labels.shape)}"
        )
    p, y = probabilities.detach().cpu().double(), labels.detach().cpu().long()
    if not torch.isclose(p.sum(1), torch.ones_like(p[:, 0]), atol=1e-3).all() or p.min() < 0:
        raise ValueError("every row of probabilities must be non-negative and sum to 1; apply a softmax to logits")
    if y.min() < 0 or y.max() >= p.shape[1]:
        raise ValueError(f"labels must be from 0 to {p.shape[1] - 1}, got {int(y.min())} to {int(y.max())}")
    return p, y


def _check_scores(name: str, scores: Tensor) -> None:
    if not isinstance(scores, Tensor):
        raise TypeError(f"{name} must be a tensor of scores, got {type(scores).__name__}")
    if scores.dim() != 1 or not scores.numel() or scores.isnan().any():
        raise ValueError(
            f"{name} must hold at least one score, in one dimension, and no NaN, got shape {tuple(scores.shape)}"
        )
