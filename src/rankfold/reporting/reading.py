"""From what the user names to runs: a result file, a run's folder, or a folder of result files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankfold.reporting.checking import UnreadableRun, check_record
from rankfold.reporting.run import DEMO_FILE, RUN_FILE, Run
from rankfold.reporting.saved import saved_model


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
    check_record(file, record)
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
    check_record(beside, record)
    same_task = record["table"] == run.table and record["parameters"]["dense"] == run.dense_parameters
    return Run(beside, record).accuracy if same_task else None


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
        **{key: figures.get(key) for key in ("data", "commit", "versions", "device")},
        # the demonstration looks at its test images after every epoch
        "history": [{**epoch, "accuracy": None, "evaluation_accuracy": epoch["accuracy"]} for epoch in history],
    }


def _parameters_in_training(means: int, ranks: dict[str, list[int]]) -> int:
    """A mean and a log-std of everything, and one λ per rank."""
    return 2 * means + sum(map(sum, ranks.values()))
