"""rankfold: train neural networks that are compact from the first step.

>>> import torch, rankfold as rf
>>> model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
>>> model = rf.tensorize_(model, rf.TTM(max_rank=20))
>>> model[0]
Linear(in_features=784, out_features=512, bias=True, TTM [4, 4, 7, 7] x [8, 4, 4, 4], ranks [20, 20, 20])
"""

from rankfold.batch_norm import update_bn
from rankfold.capture import CapturedStep
from rankfold.checkpoint import load, save
from rankfold.config import CP, TT, TTM, TensorConfig, Tucker
from rankfold.counts import accounting
from rankfold.counts_table import report
from rankfold.distributed import rewrap
from rankfold.health import NumericalFault
from rankfold.layers import Conv1d, Conv2d, Embedding, EmbeddingBag, Linear, Recurrent
from rankfold.likelihood import GaussianLikelihood
from rankfold.parameters import param_groups
from rankfold.predictive import predict, sampled
from rankfold.priors import HalfCauchy, LogUniform
from rankfold.pruning import (
    InformationRule,
    PruneResult,
    RankCollapseWarning,
    RelativeNormRule,
    VarianceRule,
    prune_,
)
from rankfold.rank_determination import RankDetermination
from rankfold.schedule import Pruning
from rankfold.surgery import plan, tensorize_, to_dense

__version__ = "0.1.0"

__all__ = [
    "CP",
    "TT",
    "TTM",
    "CapturedStep",
    "Conv1d",
    "Conv2d",
    "Embedding",
    "EmbeddingBag",
    "GaussianLikelihood",
    "HalfCauchy",
    "InformationRule",
    "Linear",
    "LogUniform",
    "NumericalFault",
    "PruneResult",
    "Pruning",
    "RankCollapseWarning",
    "RankDetermination",
    "Recurrent",
    "RelativeNormRule",
    "TensorConfig",
    "Tucker",
    "VarianceRule",
    "accounting",
    "load",
    "param_groups",
    "plan",
    "predict",
    "prune_",
    "report",
    "rewrap",
    "sampled",
    "save",
    "tensorize_",
    "to_dense",
    "update_bn",
]
