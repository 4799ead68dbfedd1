"""Whether one model ranks clicks better than another: AUC differences with a paired bootstrap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]


@final
@dataclass(frozen=True)
class AUCDifference:
    """AUC of *a* less AUC of *b* on the same examples, each the mean over the seeds.

    Attributes:
        difference: on the examples themselves.
        low, high: between them lie 95 % of the differences on resampled examples.
    """

    difference: float
    low: float
    high: float


def paired_bootstrap(
    scores_a: ArrayLike, scores_b: ArrayLike, labels: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> AUCDifference:
    """Compare two models by their scores of the same examples.

    Examples are resampled with replacement, the same ones for both models and for all seeds of each.

    Args:
        scores_a, scores_b: higher where a click is likelier; (N,), or (S, N) for S seeds.
        labels: 0 or 1, (N,).

    >>> paired_bootstrap([0.1, 0.2, 0.8, 0.9], [0.1, 0.8, 0.2, 0.9], [0, 0, 1, 1]).difference
    0.25
    """
    clicks = np.asarray(labels).astype(bool)
    models = [[Ranking(row, clicks) for row in np.atleast_2d(np.asarray(s, float))] for s in (scores_a, scores_b)]
    _check(clicks, draws)
    random = np.random.default_rng(seed)
    differences = [_difference(models, weights) for weights in _weights(clicks, draws, random)]
    low, high = np.quantile(differences, [0.025, 0.975])
    return AUCDifference(
        difference=_difference(models, np.ones(len(clicks))),
        low=float(low),
        high=float(high),
    )


@final
class Ranking:
    """Examples in the order of one model's scores, so that a resampling costs no sorting."""

    def __init__(self, scores: _Floats, clicks: NDArray[np.bool_]) -> None:
        if scores.shape != clicks.shape:
            raise ValueError(
                f"scores and labels must have one entry for each example, got {scores.shape[-1]} scores "
                f"and {len(clicks)} labels"
            )
        self._order = np.argsort(scores, kind="stable")
        ordered = scores[self._order]
        self._clicks = clicks[self._order]
        self._ties = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))

    def auc(self, weights: _Floats) -> float:
        """AUC where example n counts as ``weights[n]`` examples; ties count half."""
        ordered = weights[self._order]
        clicks = np.add.reduceat(np.where(self._clicks, ordered, 0.0), self._ties)
        others = np.add.reduceat(np.where(self._clicks, 0.0, ordered), self._ties)
        # P(score of a click > score of another) + ½ P(equal)
        below = np.cumsum(others) - others
        return float((clicks * (below + 0.5 * others)).sum() / (clicks.sum() * others.sum()))


def _difference(models: list[list[Ranking]], weights: _Floats) -> float:
    first, second = (float(np.mean([ranking.auc(weights) for ranking in rankings])) for rankings in models)
    return first - second


def _weights(clicks: NDArray[np.bool_], draws: int, random: np.random.Generator) -> list[_Floats]:
    """How often each example is drawn; draws without clicks, or with nothing else, have no AUC and are left out."""
    size = len(clicks)
    drawn = (np.bincount(random.integers(size, size=size), minlength=size).astype(float) for _ in range(draws))
    return [weights for weights in drawn if 0 < weights[clicks].sum() < size]


def _check(clicks: NDArray[np.bool_], draws: int) -> None:
    if clicks.all() or not clicks.any():
        raise ValueError(f"labels must have both clicks and others, got {int(clicks.sum())} clicks of {len(clicks)}")
    if draws < 1:
        raise ValueError(f"draws must be a positive integer, got {draws!r}")
