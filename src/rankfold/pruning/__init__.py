"""Which ranks are dead, and cutting them out."""

from rankfold.pruning.cutting import PrunedTensor, PruneResult, RankCollapseWarning, cut_dead_ranks, prune_
from rankfold.pruning.rules import InformationRule, PruningRule, RelativeNormRule, VarianceRule

__all__ = [
    "InformationRule",
    "PruneResult",
    "PrunedTensor",
    "PruningRule",
    "RankCollapseWarning",
    "RelativeNormRule",
    "VarianceRule",
    "cut_dead_ranks",
    "prune_",
]
