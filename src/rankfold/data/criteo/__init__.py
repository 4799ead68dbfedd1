"""Criteo Kaggle Display Advertising: read once as text, from then on as memory-mapped arrays."""

from rankfold.data.criteo.arrays import Criteo, TimeSplit, seventh, time_split
from rankfold.data.criteo.encoding import KAGGLE_SIZES, Tables
from rankfold.data.criteo.lines import NUM_CATEGORIES, NUM_NUMBERS
from rankfold.data.criteo.preparing import find_files, prepare

__all__ = [
    "KAGGLE_SIZES",
    "NUM_CATEGORIES",
    "NUM_NUMBERS",
    "Criteo",
    "Tables",
    "TimeSplit",
    "find_files",
    "prepare",
    "seventh",
    "time_split",
]
