"""rankfold: train neural networks that are compact from the first step."""

from rankfold.config import CP, TT, TTM, TensorConfig, Tucker
from rankfold.layers import Linear
from rankfold.priors import HalfCauchy, LogUniform

__version__ = "0.1.0"

__all__ = ["CP", "TT", "TTM", "HalfCauchy", "Linear", "LogUniform", "TensorConfig", "Tucker"]
