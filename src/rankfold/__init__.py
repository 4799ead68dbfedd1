"""rankfold: train neural networks that are compact from the first step."""

from rankfold.config import CP, TT, TTM, TensorConfig, Tucker
from rankfold.layers import Linear
from rankfold.parameters import param_groups
from rankfold.priors import HalfCauchy, LogUniform
from rankfold.pruning import PruneResult, RankCollapseWarning, prune_
from rankfold.pruning_rules import InformationRule, RelativeNormRule, VarianceRule
from rankfold.rank_determination import Pruning, RankDetermination

__version__ = "0.1.0"

__all__ = [
    "CP",
    "TT",
    "TTM",
    "HalfCauchy",
    "InformationRule",
    "Linear",
    "LogUniform",
    "PruneResult",
    "Pruning",
    "RankCollapseWarning",
    "RankDetermination",
    "RelativeNormRule",
    "TensorConfig",
    "Tucker",
    "VarianceRule",
    "param_groups",
    "prune_",
]
