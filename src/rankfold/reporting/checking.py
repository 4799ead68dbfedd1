"""Is it the record of a run? Whatever is wrong is named with the file and the place in it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rankfold.experiments.results import PARTS
from rankfold.reporting.run import QUANTITIES
from rankfold.reporting.wording import PREDICTIONS

_OPTIONAL_PARTS = ("data", "timing", "peak_memory", "commit", "versions", "device")
_LAYER_KEYS = {"name", "format", "in_dims", "out_dims", "ranks_before", "ranks", "counts"}


class UnreadableRun(ValueError):
    """What was named is no run; the message says which file, and what is wrong with it."""


def check_record(file: Path, record: dict[str, Any]) -> None:
    """Refuse a record that lacks what every report shows."""
    missing = [key for key in PARTS if key not in record]
    if missing:
        raise UnreadableRun(f"{file} is no run: it has no {', '.join(missing)}")
    for key, kind in PARTS.items():
        if not isinstance(record[key], kind):
            raise UnreadableRun(f"{file}: {key} must be a {kind.__name__}, got {type(record[key]).__name__}")
    for key in ("dense", "training", "final"):
        value = record["parameters"].get(key)
        if type(value) is not int or value < 1:
            raise UnreadableRun(f"{file}: parameters.{key} must be a positive integer, got {value!r}")
    for key in ("before", "after"):
        _check_ranks(file, f"ranks.{key}", record["ranks"].get(key))
    if record["ranks"]["before"].keys() != record["ranks"]["after"].keys():
        raise UnreadableRun(f"{file}: ranks.before and ranks.after must name the same layers")
    for number, entry in enumerate(record["history"], start=1):
        _check_epoch(file, f"history, entry {number}", entry)
    for name in PREDICTIONS:
        if not isinstance(scores := record["metrics"].get(name, {}), dict):
            raise UnreadableRun(f"{file}: metrics.{name} must hold named scores, got {scores!r}")
    _check_optional(file, record)


def _check_epoch(file: Path, where: str, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise UnreadableRun(f"{file}: {where} must be an object, got {entry!r}")
    for key in QUANTITIES:
        value = entry.get(key)
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise UnreadableRun(f"{file}: {where}: {key} must be a finite number or null, got {value!r}")
    _check_ranks(file, f"{where}: ranks", entry.get("ranks") or {})
    for layer, groups in (entry.get("variances") or {}).items():
        if not isinstance(groups, list) or not all(_are_numbers(group) for group in groups):
            raise UnreadableRun(f"{file}: {where}: variances of {layer} must be lists of numbers, got {groups!r:.80}")


def _check_ranks(file: Path, where: str, ranks: Any) -> None:
    fits = isinstance(ranks, dict) and all(
        isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
        for values in ranks.values()
    )
    if not fits:
        raise UnreadableRun(f"{file}: {where} must be lists of integers by layer, got {ranks!r:.80}")


# What only some records have --------------------------------------------------------------------------


def _check_optional(file: Path, record: dict[str, Any]) -> None:
    for key in _OPTIONAL_PARTS:
        if not isinstance(record.get(key) or {}, dict):
            raise UnreadableRun(f"{file}: {key} must be a dict, got {record[key]!r:.80}")
    for layer in record.get("layers") or ():
        if not isinstance(layer, dict) or not layer.keys() >= _LAYER_KEYS:
            raise UnreadableRun(f"{file}: layers must have {', '.join(sorted(_LAYER_KEYS))}, got {layer!r:.80}")
    if record["metrics"].get("hard_image") is not None:
        _check_hard_image(file, record["metrics"]["hard_image"])


def _check_hard_image(file: Path, hard: Any) -> None:
    """Mean, spread and draws must be of the same labels."""
    if not isinstance(hard, dict) or not _are_numbers(hard.get("mean")) or not _are_numbers(hard.get("std")):
        raise UnreadableRun(f"{file}: metrics.hard_image must hold lists of numbers mean and std")
    size, label = len(hard["mean"]), hard.get("label")
    if type(label) is not int or not 0 <= label < size or type(hard.get("index")) is not int:
        raise UnreadableRun(f"{file}: metrics.hard_image: label must be from 0 to {size - 1}, got {label!r}")
    for values in (hard["std"], *(hard.get("draws") or ())):
        if not _are_numbers(values) or len(values) != size:
            raise UnreadableRun(f"{file}: metrics.hard_image: a number is needed for each of {size} labels")


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) and math.isfinite(value) for value in values)
