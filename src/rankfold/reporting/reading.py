"""From what the user names to runs: a result file, a run's folder, or a folder of result files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankfold.reporting.run import QUANTITIES, Run
from rankfold.reporting.saved import saved_model
from rankfold.reporting.wording import PREDICTIONS

RUN_FILE, DEMO_FILE = "run.json", "demo.json"
_PARTS = {"table": str, "row": str, "spec": dict, "ranks": dict, "parameters": dict, "metrics": dict, "history": list}


class UnreadableRun(ValueError):
    """What was named is no run; the message says which file, and what is wrong with it."""


def find_files(path: Path) -> list[Path]:
    """The file of a run, or all result files of a table's folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UnreadableRun(f"there is no {path}; name a result file, or the folder of a run")
    for name in (RUN_FILE, DEMO_FILE):
        if (path / name).is_file():
            return [path / name]
    files = sorted(path.glob("*.json"))
    if not files:
        raise UnreadableRun(f"{path} holds no {RUN_FILE}, no {DEMO_FILE} and no result files; name another folder")
    return files


def read_run(file: Path) -> Run:
    """The run in a file, beside the dense one of the same seed if there is one."""
    record = _load(file)
    if "table" not in record and {"settings", "after", "dense"} <= record.keys():
        record = _from_demo(file, record)
    _check(file, record)
    run = Run(file, record, record.get("dense_accuracy"))
    return run if run.dense_accuracy is not None else replace(run, dense_accuracy=_accuracy_of_dense(run))


def _load(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableRun(f"{file} is not valid JSON: {error}") from error
    except OSError as error:
        raise UnreadableRun(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(record, dict):
        raise UnreadableRun(f"{file} is no run: it holds a {type(record).__name__}, not an object with named parts")
    return record


def _accuracy_of_dense(run: Run) -> float | None:
    """That of ``dense-seed<k>.json`` in the same folder."""
    beside = run.file.with_name(f"dense-seed{run.seed}.json")
    if run.spec.get("method") == "dense" or beside == run.file or not beside.is_file():
        return None
    record = _load(beside)
    _check(beside, record)
    same_task = record["table"] == run.table and record["parameters"]["dense"] == run.dense_parameters
    return Run(beside, record).accuracy if same_task else None


# Is it one? ---------------------------------------------------------------------------------------


def _check(file: Path, record: dict[str, Any]) -> None:
    """Refuse a record that lacks what every report shows."""
    missing = [key for key in _PARTS if key not in record]
    if missing:
        raise UnreadableRun(f"{file} is no run: it has no {', '.join(missing)}")
    for key, kind in _PARTS.items():
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


def _check_epoch(file: Path, where: str, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise UnreadableRun(f"{file}: {where} must be an object, got {entry!r}")
    for key in QUANTITIES:
        value = entry.get(key)
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise UnreadableRun(f"{file}: {where}: {key} must be a finite number or null, got {value!r}")
    _check_ranks(file, f"{where}: ranks", entry.get("ranks") or {})


def _check_ranks(file: Path, where: str, ranks: Any) -> None:
    fits = isinstance(ranks, dict) and all(
        isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
        for values in ranks.values()
    )
    if not fits:
        raise UnreadableRun(f"{file}: {where} must be lists of integers by layer, got {ranks!r:.80}")


# The demonstration --------------------------------------------------------------------------------


def _from_demo(file: Path, figures: dict[str, Any]) -> dict[str, Any]:
    saved = saved_model(file.parent / "model")
    try:
        return record_of_demo(figures, saved.ranks_before if saved is not None else figures["history"][0]["ranks"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UnreadableRun(f"{file} is no whole demonstration run ({type(error).__name__}: {error})") from error


def record_of_demo(figures: dict[str, Any], first: dict[str, list[int]]) -> dict[str, Any]:
    """What ``rankfold demo`` found, in the shape of a result file; ``first`` are the ranks at the start."""
    history, settings = figures["history"], figures["settings"]
    last = history[-1]["ranks"]
    after, seconds = figures["after"], float(figures["seconds"])
    scores: dict[str, Any] = {"posterior_mean": {"accuracy": after["accuracy"]}}
    scores["monte_carlo"] = {"accuracy": after["accuracy_of_32_samples"], "samples": 32}
    return {
        "table": "digits",
        "row": "demo",
        "seed": settings["seed"],
        "spec": {"method": "ard", "inference": "bayes", **settings},
        "ranks": {"before": first, "after": last},
        "parameters": {
            "dense": figures["dense"]["parameters"],
            "training": _parameters_in_training(figures["before"]["parameters"], first),
            "final": after["parameters"],
        },
        "dense_accuracy": figures["dense"]["accuracy"],
        "metrics": scores,
        "timing": {"training_seconds": seconds},
        "warnings": [f"stopped after {figures['epochs_done']} epochs"] if figures["stopped_early"] else [],
        "versions": figures["versions"],
        # the demonstration looks at its test images after every epoch
        "history": [{**epoch, "accuracy": None, "evaluation_accuracy": epoch["accuracy"]} for epoch in history],
    }


def _parameters_in_training(means: int, ranks: dict[str, list[int]]) -> int:
    """A mean and a log-std of everything, and one λ per rank."""
    return 2 * means + sum(map(sum, ranks.values()))
