"""Tensorized layers with the signatures of ``torch.nn``."""

from rankfold.layers.base import TensorizedLayer
from rankfold.layers.conv import Conv1d, Conv2d
from rankfold.layers.embedding import Embedding, EmbeddingBag
from rankfold.layers.linear import Linear

__all__ = ["Conv1d", "Conv2d", "Embedding", "EmbeddingBag", "Linear", "TensorizedLayer"]
