"""Bins of a calibration diagram: from a run's record, or from predictions."""

from __future__ import annotations

from pathlib import Path

import torch

from rankfold.reporting.run import DEMO_FILE, Run
from rankfold.uncertainty import Bins, calibration_bins, predictive_statistics

_SAMPLES = 32
_KEYS = ("count", "confidence", "accuracy")


def bins_of(run: Run, folder: Path | None) -> dict[str, Bins]:
    """What the run noted; for the demonstration, whose data are always there, what its saved model says."""
    noted = {
        name: Bins(*(list(scores["calibration"][key]) for key in _KEYS))
        for name, scores in run.record["metrics"].items()
        if isinstance(scores, dict) and _is_whole(scores.get("calibration"))
    }
    if noted or folder is None or run.file.name != DEMO_FILE or not (folder / "model").is_dir():
        return noted
    return _bins_of_demo(folder / "model")


def _is_whole(bins: object) -> bool:
    """Lists of one length, with examples in them."""
    if not isinstance(bins, dict) or not all(isinstance(bins.get(key), list) for key in _KEYS):
        return False
    return len({len(bins[key]) for key in _KEYS}) == 1 and sum(bins["count"]) > 0


def _bins_of_demo(folder: Path) -> dict[str, Bins]:
    """Of the posterior mean and of averaged samples, on the test digits."""
    from rankfold.architecture import rebuild
    from rankfold.data.digits import load_digits
    from rankfold.demo import classifier

    try:
        model, digits = rebuild(classifier(), folder), load_digits()
    except (ValueError, OSError, ModuleNotFoundError):
        return {}  # a damaged model, or no scikit-learn: the page does without the diagram
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        predictions = {
            name: predictive_statistics(model, digits.test_images, samples=samples)
            for name, samples in (("posterior_mean", 0), ("monte_carlo", _SAMPLES))
        }
    return {name: calibration_bins(found.probabilities, digits.test_labels) for name, found in predictions.items()}
