"""Values that training never saw: what is said of them is about as wrong as it says it may be."""

import csv

import numpy as np
import pytest
import torch

from rankfold.experiments.task import Examples
from rankfold.jobs.fingerprint import fingerprint
from rankfold.jobs.hiding import HIDDEN_SHARE, hiding, is_unknown
from rankfold.jobs.job import Job, learn, make_spec
from rankfold.jobs.objective import Objective
from rankfold.jobs.predicting import FinishedRun
from rankfold.jobs.preparation import DataOptions
from rankfold.jobs.running import JobRun, Watcher
from rankfold.jobs.targets import Quantity
from rankfold.models.mlp import TableRegressor

CPU = torch.device("cpu")
USERS = 60


def test_a_small_share_of_each_column_becomes_unknown():
    numbers, categories = torch.randn(20_000, 2), torch.randint(2, 9, (20_000, 3), dtype=torch.int32)
    torch.manual_seed(0)
    same, hidden = hiding((0, 1, 11), CPU)((numbers, categories))
    assert same is numbers
    assert hidden.dtype == categories.dtype
    changed = is_unknown((hidden,), (0, 1, 11))
    # four standard deviations of a share of 20,000
    assert (changed.double().mean(0) - HIDDEN_SHARE).abs().max() < 4 * (HIDDEN_SHARE / 20_000) ** 0.5
    assert torch.equal(hidden[~changed], categories[~changed])
    torch.manual_seed(0)
    assert torch.equal(hiding((0, 1, 11), CPU)((numbers, categories))[1], hidden)
    assert hiding((), CPU) is None


def write(file, kind, *, new, size):
    """A number that the user and ``x`` decide, up to noise of 0.6 around 10; or a class, by its sign."""
    random = np.random.default_rng(1 if new else 0)
    known = np.random.default_rng(2).normal(size=USERS)
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["x", "user", "y"])
        for n in range(size):
            user, x = random.integers(USERS), random.normal()
            effect = random.normal() if new else known[user]
            value = 10 + 3 * effect + x + 0.6 * random.normal()
            rows.writerow([x, f"new{n}" if new else f"u{user}", value if kind == "quantity" else value > 12])
    return file


@pytest.mark.parametrize("kind", ["quantity", "classes"])
def test_unknown_users_get_about_the_errors_and_shares_that_are_said(kind, tmp_path):
    data, options = write(tmp_path / "t.csv", kind, new=False, size=2000), DataOptions(target="y")
    model, learned = learn(data, None, options)
    spec = make_spec(learned.preparation, model, len(learned.train), {"format": "ttm", "epochs": 30, "lr": 0.004})
    job = Job(data, model, spec, options, fingerprint(learned))
    JobRun(job, learned, tmp_path / "run", CPU).train(Watcher())
    finished = FinishedRun.open(tmp_path / "run", CPU)
    found = finished.predict(write(tmp_path / "new.csv", kind, new=True, size=1000))
    assert found.header[-1] == "unknown"
    assert {row[-1] for row in found.rows()} == {1}
    if kind == "classes":
        share = float((learned.examples.labels == 1).double().mean())
        assert float(found.mean[:, 1].mean()) == pytest.approx(share, abs=0.06)
        return
    rmse, std = found.scores()["rmse"], float(np.mean([row[2] for row in map(as_numbers, found.rows())]))
    assert std == pytest.approx(rmse, rel=0.15)
    known = finished.predict(data)
    assert float(np.mean([as_numbers(row)[2] for row in known.rows()])) < 0.5 * std
    assert {row[-1] for row in known.rows()} == {0}


def as_numbers(row):
    return [float(cell) for cell in row]


def test_the_noise_of_unknown_values_is_what_is_missed_without_them():
    torch.manual_seed(0)
    model, objective = TableRegressor(0, (5, 4), widens=True), Objective(Quantity("y", 0.0, 1.0), False, (0, 0))
    categories = torch.stack([torch.randint(1, 5, (400,)), torch.randint(1, 4, (400,))], 1)
    with torch.no_grad():
        mean = model(categories)
        labels = mean + 2 * categories[:, 0] + 0.1 * torch.randn(400)  # the second category says nothing
        objective.settle(model, Examples((categories,), labels), seed=0)
        hidden = [categories.clone(), categories.clone(), categories.clone()]
        hidden[1][:, 0] = hidden[2][:, 1] = 0
        missed = [float((model(rows) - labels).square().mean()) for rows in hidden]
        added = [max(0.0, squares - missed[0]) for squares in missed[1:]]
        assert model.noise_std(torch.tensor([[1, 1], [0, 1], [1, 0], [0, 0]])).square().tolist() == pytest.approx(
            [missed[0], missed[0] + added[0], missed[0] + added[1], missed[0] + sum(added)], rel=1e-4
        )
