"""rankfold: train neural networks that are compact from the first step."""

from rankfold.config import CP, TT, TTM, TensorConfig, Tucker
from rankfold.health import NumericalFault
from rankfold.layers import Embedding, EmbeddingBag, Linear
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
    "Embedding",
    "EmbeddingBag",
    "HalfCauchy",
    "InformationRule",
    "Linear",
    "LogUniform",
    "NumericalFault",
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
