"""Tensorized layers with the signatures of ``torch.nn``."""

from rankfold.layers.base import TensorizedLayer
from rankfold.layers.embedding import Embedding, EmbeddingBag
from rankfold.layers.linear import Linear

__all__ = ["Embedding", "EmbeddingBag", "Linear", "TensorizedLayer"]
