"""Planted ranks are what is said, labels are those of the planted model, and a run ends in its JSON."""

from pathlib import Path

import pytest
import torch

from rankfold.experiments.mnist import load_data
from rankfold.experiments.planning import Request, schedule
from rankfold.experiments.results import Places, read_result
from rankfold.experiments.runner import execute
from rankfold.experiments.spec import Spec, read_rows
from rankfold.experiments.synthetic import MAX_RANK, TRUE_RANK, plant, planted_matrix

CPU = torch.device("cpu")
FORMATS = ("cp", "tucker", "tt", "ttm")
NUM_RANKS = {"cp": 1, "tucker": 3, "tt": 2, "ttm": 2}
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def data(data_folder):
    return load_data("test", CPU, data_folder, verify=False)


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix.double(), rtol=1e-5))


@pytest.mark.parametrize("name", ["cp", "tucker", "tt"])
def test_every_unfolding_of_the_planted_tensor_has_the_true_rank(name):
    _, matrix = planted_matrix(name, torch.Generator().manual_seed(1))
    tensor = matrix.reshape(28, 28, 10)
    unfoldings = [tensor.movedim(mode, 0).flatten(1) for mode in range(3)]
    # a train bounds the first and the last unfolding; its middle one may have rank 5 · 5
    for mode in (0, 2) if name == "tt" else (0, 1, 2):
        assert rank(unfoldings[mode]) == TRUE_RANK


def test_every_cut_of_the_planted_train_of_matrices_has_the_true_rank():
    _, matrix = planted_matrix("ttm", torch.Generator().manual_seed(1))
    pairs = matrix.reshape(14, 8, 7, 1, 2, 5).permute(0, 3, 1, 4, 2, 5)  # (i1, j1, i2, j2, i3, j3)
    assert rank(pairs.reshape(14, -1)) == TRUE_RANK
    assert rank(pairs.reshape(14 * 16, -1)) == TRUE_RANK


@pytest.mark.parametrize("name", FORMATS)
def test_labels_are_balanced_nearly_certain_and_the_seeds_own(name, data):
    first, again = (plant(data, Spec("ard", name, seed=3)) for _ in range(2))
    other = plant(data, Spec("ard", name, seed=4))
    assert torch.equal(first.train.labels, again.train.labels)
    assert not torch.equal(first.train.labels, other.train.labels)
    assert first.train.inputs[0].mean(0).abs().max() < 1e-5
    torch.testing.assert_close(first.train.inputs[0] + data.train.inputs[0].mean(0), data.train.inputs[0])
    shares = first.train.labels.bincount(minlength=10) / len(first.train)
    assert first.planted.label_shares == pytest.approx(shares.tolist())
    assert min(first.planted.label_shares) > 0.01
    assert max(first.planted.label_shares) < 0.3
    assert first.planted.accuracy > 0.8
    assert first.planted.ranks == {"layer": [TRUE_RANK] * NUM_RANKS[name]}


@pytest.mark.parametrize("spec", [Spec("dense"), Spec("tc-mr", "cp")], ids=("dense", "tc-mr"))
def test_methods_that_train_a_dense_model_are_refused(spec, data):
    with pytest.raises(ValueError, match="method must be 'ard' or 'fr' in the synthetic study"):
        plant(data, spec)


def test_the_table_has_both_priors_in_every_format():
    specs = {name: (spec.format, spec.prior) for name, spec in read_rows(EXPERIMENTS / "synthetic").items()}
    priors = {"lu": "log-uniform", "hc": "half-cauchy"}
    assert specs == {f"{name}-ard-{key}": (name, prior) for name in FORMATS for key, prior in priors.items()}


def test_a_run_of_every_format_ends_in_planted_and_found_ranks(tmp_path, data_folder):
    folder = tmp_path / "experiments" / "synthetic"
    folder.mkdir(parents=True)
    for name in FORMATS:
        (folder / f"{name}.toml").write_text(f'method = "ard"\nformat = "{name}"\nepochs = 2\nbatch_size = 64\n')
    places = Places(tmp_path / "experiments", tmp_path / "results", tmp_path / "runs", data_folder, verify=False)
    plan = schedule(Request("synthetic", seeds=1), places)
    execute(plan, places, CPU, 1, lambda event: None)
    assert plan.failures == {}
    for name in FORMATS:
        result = read_result(places.results / "synthetic" / f"{name}-seed0.json")
        count = NUM_RANKS[name]
        assert result["data"]["planted"]["ranks"] == {"layer": [TRUE_RANK] * count}
        assert result["ranks"]["before"] == {"layer": [MAX_RANK] * count}
        assert len(result["ranks"]["after"]["layer"]) == count
        assert result["parameters"]["dense"] == 7_850
        assert 0 <= result["metrics"]["posterior_mean"]["accuracy"] <= 1
