"""Result files as runs would write them, with made-up numbers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankfold.experiments.results import Places, Run, write_record
from rankfold.experiments.spec import read_rows

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
MNIST_RANKS = {
    "cp": {"layer1": [50], "layer2": [50]},
    "tucker": {"layer1": [20] * 4, "layer2": [20, 20, 10]},
    "tt": {"layer1": [20] * 3, "layer2": [20] * 2},
    "ttm": {"layer1": [20] * 3, "layer2": [20]},
}
CONVOLUTIONS = [f"conv{n}" for n in range(2, 7)]
CIFAR10_RANKS = {
    "cp": {name: [560] for name in [*CONVOLUTIONS, "fc1", "fc2"]},
    "tucker": {name: [96, 9, 96] for name in CONVOLUTIONS} | {"fc1": [18] * 4, "fc2": [18] * 4},
    "tt": {name: [96, 96] for name in CONVOLUTIONS} | {"fc1": [38] * 3, "fc2": [32] * 3},
    "ttm": {name: [136, 9] for name in CONVOLUTIONS} | {"fc1": [30] * 3, "fc2": [32] * 3},
}
NUM_RANKS = {"cp": 1, "tucker": 3, "tt": 2, "ttm": 2}
SIZES = {"cp": 6_000, "tucker": 50_000, "tt": 4_000, "ttm": 4_500}


def places(root):
    return Places(EXPERIMENTS, root)


def write(root, table, seeds=3):
    """All rows of a table that find ranks; seed k found k less than half of every rank it had."""
    for row, spec in read_rows(EXPERIMENTS / table).items():
        for seed in range(seeds) if spec.method == "ard" else ():
            run = Run(table, row, replace(spec, seed=seed))
            write_record(run.file(places(root)), fake_result(run, seed))


def fake_result(run, seed):
    spec = run.spec
    synthetic = run.table == "synthetic"
    before = {"layer": [10] * NUM_RANKS[spec.format]} if synthetic else ranks_of(run.table)[spec.format]
    planted = {"ranks": {name: [5] * len(ranks) for name, ranks in before.items()}} if synthetic else None
    return {
        "table": run.table,
        "row": run.row,
        "spec": json.loads(json.dumps(spec.as_dict())),
        "ranks": {"before": before, "after": {k: [max(1, r // 2 - seed) for r in v] for k, v in before.items()}},
        "parameters": {"dense": 407_050, "training": 20_000, "final": SIZES[spec.format] / spec.kl_weight**0.5},
        "metrics": {
            "posterior_mean": {"accuracy": 0.984 - 0.002 * spec.kl_weight + 0.0005 * seed},
            "hard_image": hard_image(),
        },
        "data": {"planted": planted},
        "history": [],
    }


def ranks_of(table):
    return CIFAR10_RANKS if table.startswith("cifar10") else MNIST_RANKS


def hard_image():
    random = np.random.default_rng(0)
    logits = np.array([0, 0.5, 3, 0, -1, 0, 0, 2.5, 0.3, 0]) + random.normal(size=(200, 10))
    draws = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y, x = np.mgrid[:28, :28]
    pixels = 255 * np.exp(-(((x - 14) / 3) ** 2)) * (abs(y - 14) < 9)
    return {
        "index": 1234,
        "label": 2,
        "pixels": pixels.astype(int).ravel().tolist(),
        "mean": draws.mean(0).tolist(),
        "std": draws.std(0, ddof=1).tolist(),
        "draws": draws.tolist(),
    }
