"""Swapping the layers of a model: what would be done, doing it, and undoing it."""

from rankfold.surgery.plan_table import Plan
from rankfold.surgery.planning import plan
from rankfold.surgery.tensorize import tensorize_, to_dense

__all__ = ["Plan", "plan", "tensorize_", "to_dense"]
