"""The DLRM tasks: counts of the paper, days of the split, and made-up rows."""

import re

import pytest
import torch
from data.criteo.fake import fake_lines
from torch import nn

import rankfold as rf
from rankfold.data.criteo import KAGGLE_SIZES
from rankfold.data.errors import DamagedData, MissingData
from rankfold.experiments import dlrm, dlrm_planted
from rankfold.experiments.spec import Spec

CPU = torch.device("cpu")
# The five tables: fixed rank, then Bayesian.
COUNTS = {
    "cp": (1_141_597, 2_284_844),
    "tucker": (1_131_212, 2_262_852),
    "tt": (1_135_752, 2_271_864),
    "ttm": (1_130_048, 2_260_256),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_tables_have_as_many_parameters_as_in_the_paper(name):
    fixed, bayes = COUNTS[name]
    configs = dlrm.TASK.tensor_configs(Spec("ard", name), "bayes")
    large = {f"tables.{n}": size for n, size in enumerate(KAGGLE_SIZES) if size > 1_000_000}
    assert set(configs) == set(large)
    formats = [configs[layer].build(size, 128) for layer, size in large.items()]
    assert sum(format.num_entries for format in formats) == fixed
    assert sum(2 * format.num_entries + sum(format.ranks) for format in formats) == bayes
    # means and log-stds with gradients and Adam's two moments, in float32
    assert 4 * 4 * 2 * fixed < 40e6


def test_the_network_is_tensorized_without_forming_a_large_table():
    configs = dlrm.TASK.tensor_configs(Spec("fr", "ttm"), "fixed")
    model = rf.tensorize_(dlrm.network(), None, overrides=configs)
    counted = sum(p.numel() for layer in configs for p in model.get_submodule(layer).parameters())
    assert counted == COUNTS["ttm"][0]
    assert max(p.numel() for p in model.parameters()) == 286_181 * 128


class OneNumber(nn.Module):
    """Ranks clicks by their first number."""

    def forward(self, numbers, categories):
        return numbers[:, 0]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "criteo").mkdir()
    text = b"\n".join(fake_lines(140))
    (tmp_path / "criteo" / "criteo-kaggle-w261-sample.tsv").write_bytes(text)
    (tmp_path / "criteo" / "criteo-kaggle-extra.tsv").write_bytes(b"\n".join(fake_lines(30, seed=1)))
    return tmp_path


@pytest.mark.parametrize(("split", "days"), [("validation", (5, 6)), ("test", (6, 7))])
def test_days_are_trained_on_before_the_one_that_is_looked_at(folder, split, days):
    data = dlrm.TASK.load(split, CPU, folder, False)
    assert (len(data.train), len(data.evaluation)) == (20 * days[0], 20)
    whole = dlrm.TASK.load("test", CPU, folder, False)
    labels = torch.cat([whole.train.labels, whole.evaluation.labels])
    assert torch.equal(data.train.labels, labels[: 20 * days[0]])
    assert torch.equal(data.evaluation.labels, labels[20 * days[0] : 20 * days[1]])
    numbers, categories = data.train.inputs
    assert numbers.shape == (20 * days[0], 13)
    assert (categories < torch.tensor(KAGGLE_SIZES)).all()
    assert categories[:, 2].max() > 1_000_000  # hashed into the whole table


@pytest.mark.filterwarnings("default")
def test_a_malformed_line_is_told_of_in_a_line(folder, capsys):
    file = folder / "criteo" / "criteo-kaggle-w261-sample.tsv"
    file.write_bytes(file.read_bytes() + b"\njunk\n")
    dlrm.TASK.load("test", CPU, folder, False)
    (told,) = (line for line in capsys.readouterr().err.splitlines() if not line.startswith("Criteo, "))
    assert told.startswith(f"warning: 1 malformed line was left out, the first: {file}:141: it has 1 field, expected")


def test_extra_rows_are_for_training_only(folder):
    plain, extra = (task.load("test", CPU, folder, False) for task in (dlrm.TASK, dlrm.EXTRA_TASK))
    assert len(extra.train) == len(plain.train) + 30
    assert torch.equal(extra.train.labels[:120], plain.train.labels)
    assert torch.equal(extra.evaluation.inputs[1], plain.evaluation.inputs[1])


@pytest.mark.parametrize("task", [dlrm.TASK, dlrm.EXTRA_TASK])
def test_the_sample_is_the_same_data_by_its_own_name_and_by_that_of_its_folder(task, folder):
    """Its categories are numbered by the frequencies of the extra rows too."""
    sample = folder / "criteo" / "criteo-kaggle-w261-sample.tsv"
    one, other = (task.load("test", CPU, place, False) for place in (folder, sample))
    assert one.files == other.files
    assert torch.equal(one.train.inputs[1], other.train.inputs[1])
    assert task.edition(sample, True) is None
    assert task.edition(sample, False) == task.edition(folder, False)
    (folder / "criteo" / "criteo-kaggle-extra.tsv").unlink()
    alone = dlrm.TASK.load("test", CPU, sample, False)
    assert not torch.equal(alone.evaluation.inputs[1], one.evaluation.inputs[1])
    assert dlrm.TASK.edition(sample, True) == dlrm.TASK.edition(folder, True) == "sample-alone"


def test_extra_rows_that_are_not_there_are_missed(folder):
    sample = folder / "criteo" / "criteo-kaggle-w261-sample.tsv"
    (folder / "criteo" / "criteo-kaggle-extra.tsv").unlink()
    with pytest.raises(MissingData, match=r"there are no extra rows beside .*; name the folder that has"):
        dlrm.EXTRA_TASK.find(sample)
    with pytest.raises(MissingData, match="no extra rows"):
        dlrm.EXTRA_TASK.load("test", CPU, sample, False)


def test_other_data_than_the_samples_have_a_name(folder, tmp_path):
    assert dlrm.TASK.edition(folder, True) is None
    (folder / "criteo" / "train.txt.gz").touch()
    assert dlrm.TASK.edition(folder, True) == "whole"
    assert dlrm.TASK.edition(folder / "criteo" / "criteo-kaggle-extra.tsv", True) == "extra-alone"
    (tmp_path / "mine.tsv").touch()
    with pytest.raises(DamagedData, match=r"mine\.tsv is none of the published files"):
        dlrm.TASK.edition(tmp_path / "mine.tsv", True)


def test_files_that_nobody_verifies_are_told_apart_by_what_they_hold(folder, tmp_path):
    mine = tmp_path / "train.txt"
    mine.write_bytes(b"some rows")
    name = dlrm.TASK.edition(mine, False)
    assert re.fullmatch("train-[0-9a-f]{8}", name)
    assert dlrm.TASK.edition(mine.rename(tmp_path / "other.txt"), False) == name.replace("train", "other")
    mine.write_bytes(b"some more rows")
    assert dlrm.TASK.edition(mine, False) != name
    assert dlrm.TASK.edition(folder, False).startswith("criteo-kaggle-w261-sample-")


def test_only_published_files_pass_verification(folder, tmp_path):
    with pytest.raises(DamagedData, match="has 140 rows, expected 137,139; give --no-verify"):
        dlrm.TASK.load("test", CPU, folder, True)
    other = tmp_path / "mine.txt"
    other.write_bytes(b"\n".join(fake_lines(14)))
    with pytest.raises(DamagedData, match=r"mine\.txt is none of the published files"):
        dlrm.TASK.load("test", CPU, other, True)
    assert len(dlrm.TASK.load("test", CPU, other, False).evaluation) == 2


def test_made_up_rows_know_their_best_score(monkeypatch):
    monkeypatch.setattr(dlrm_planted, "NUM_TRAIN", 500)
    monkeypatch.setattr(dlrm_planted, "NUM_EVALUATION", 2000)
    test, validation = (dlrm_planted.TASK.load(split, CPU, None, True) for split in ("test", "validation"))
    assert torch.equal(test.train.inputs[1], validation.train.inputs[1])
    assert not torch.equal(test.evaluation.inputs[1], validation.evaluation.inputs[1])
    assert set(test.planted.ranks) == set(dlrm.FOLDINGS["tt"].layers)
    metrics = dlrm_planted.TASK.evaluate(OneNumber(), test, 0)
    assert metrics["planted"]["accuracy"] == pytest.approx(test.planted.accuracy)
    assert metrics["planted"]["auc"] > 0.78 > metrics["posterior_mean"]["auc"]
