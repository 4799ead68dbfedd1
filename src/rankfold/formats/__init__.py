"""The four tensor formats, as pure algebra over factors."""

from rankfold.formats.base import Factors, RankGroup, TensorFormat
from rankfold.formats.cp import CP
from rankfold.formats.tensor_train import TensorTrain
from rankfold.formats.tensor_train_matrix import TensorTrainMatrix
from rankfold.formats.tucker import Tucker

FORMATS: tuple[type[TensorFormat], ...] = (CP, Tucker, TensorTrain, TensorTrainMatrix)

BY_NAME = {kind.name: kind for kind in FORMATS}

__all__ = [
    "BY_NAME",
    "CP",
    "FORMATS",
    "Factors",
    "RankGroup",
    "TensorFormat",
    "TensorTrain",
    "TensorTrainMatrix",
    "Tucker",
]
