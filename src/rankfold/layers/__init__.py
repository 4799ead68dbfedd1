"""Tensorized layers with the signatures of ``torch.nn``."""

from rankfold.layers.base import TensorizedLayer, TensorizedModule
from rankfold.layers.conv import Conv1d, Conv2d
from rankfold.layers.embedding import Embedding, EmbeddingBag
from rankfold.layers.linear import Linear
from rankfold.layers.recurrent import Recurrent

__all__ = [
    "Conv1d",
    "Conv2d",
    "Embedding",
    "EmbeddingBag",
    "Linear",
    "Recurrent",
    "TensorizedLayer",
    "TensorizedModule",
]
