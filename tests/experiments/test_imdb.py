"""The IMDB and n-gram tasks: counts of their foldings, data of made-up reviews, rows as in the paper."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import rankfold as rf
from rankfold.data.words import UNKNOWN
from rankfold.experiments import imdb, ngram
from rankfold.experiments.spec import Spec

CPU = torch.device("cpu")
FORMATS = ("cp", "tucker", "tt", "ttm")
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
METHODS = ("fr", "tc-mr", "tc-or", "ard-lu", "ard-hc")
NUM_TRAIN, NUM_TEST = 48, 32
# Parameters of the table at a fixed rank, and of training with a posterior: a mean, a log-std, and one λ per rank.
COUNTS = {
    (imdb, "cp"): (8_300, 16_700),
    (imdb, "tucker"): (78_540, 157_115),
    (imdb, "tt"): (28_260, 56_640),
    (imdb, "ttm"): (22_440, 44_980),
    (ngram, "cp"): (243_728, 2 * 243_728 + 8),  # 8 · (338 + 30,000 + 128)
    (ngram, "tucker"): (244_240, 2 * 244_240 + 24),  # 8 · (338 + 30,000 + 128) + 8³
    (ngram, "tt"): (241_608, 2 * 241_608 + 6),  # 338 · 4 + 4 · 30,000 · 2 + 2 · 128
    (ngram, "ttm"): (293_056, 2 * 293_056 + 4),  # 4 · (338 · 128 + 30,000)
}


def tensorized(task, format, inference):
    """The task's network with its table as factors; what is dense never exists."""
    with torch.device("meta"):
        network = task.network()
    return rf.tensorize_(network, None, overrides=task.tensor_configs(Spec("fr", format), inference))


@pytest.mark.parametrize(("module", "format"), COUNTS, ids=lambda value: getattr(value, "__name__", value))
def test_the_table_has_the_number_of_parameters_of_its_folding(module, format):
    fixed, bayes = COUNTS[module, format]
    dense = 6_400_000 if module is imdb else 10_131_227 * 128
    for inference, training in (("fixed", fixed), ("bayes", bayes)):
        (layer,) = rf.accounting(tensorized(module.TASK, format, inference)).layers
        assert layer.counts.dense_parameters == dense
        assert layer.counts.training_parameters == training
        assert layer.counts.final_parameters == fixed


# Data -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up reviews: of up to 12 words with a verdict at the end, and one too long to be kept whole."""
    root = tmp_path_factory.mktemp("reviews")
    for half, size in (("train", NUM_TRAIN), ("test", NUM_TEST)):
        with (root / f"imdb-{half}.jsonl").open("w") as file:
            for n in range(size):
                label = int(n >= size // 2)
                middle, verdict = ["the", "movie", "was"] * (1 + n % 3), "good" if label else "bad"
                words = [f"number{n}", f"{half}{n}", *middle, verdict]
                if n == 0:
                    words = ["opening"] * 500 + words
                file.write(json.dumps({"text": " ".join(words), "label": label}) + "\n")
    return root


def parts(examples):
    """Inputs and labels."""
    return [getattr(examples, field.name) for field in fields(examples)]


@pytest.fixture(scope="module", params=[imdb, ngram], ids=lambda module: module.__name__)
def task_data(request, folder):
    return request.param, {split: request.param.load(split, CPU, folder, False) for split in ("test", "validation")}


def test_shapes_and_types(task_data):
    module, data = task_data
    inputs, labels = parts(data["test"].train)
    assert inputs[0].shape == (NUM_TRAIN, 400 if module is imdb else 1197)
    assert inputs[0].dtype == torch.int32
    assert len(inputs) == (2 if module is imdb else 1)
    assert labels.tolist() == [0] * (NUM_TRAIN // 2) + [1] * (NUM_TRAIN // 2)


def test_both_splits_train_on_the_same_and_share_the_test_half(task_data):
    _, data = task_data
    trained = [parts(data[split].train)[0][0] for split in ("test", "validation")]
    assert torch.equal(*trained)
    looked_at = [parts(data[split].evaluation) for split in ("test", "validation")]
    rows = [tuple(row) for inputs, _ in looked_at for row in inputs[0].tolist()]
    assert [len(labels) for _, labels in looked_at] == [NUM_TEST // 2] * 2
    assert sum(int(labels.sum()) for _, labels in looked_at) == NUM_TEST // 2
    assert len(set(rows)) == NUM_TEST


def test_the_division_is_always_the_same(task_data, folder):
    module, data = task_data
    again = module.load("validation", CPU, folder, False)
    assert torch.equal(parts(again.evaluation)[0][0], parts(data["validation"].evaluation)[0][0])


def test_the_vocabulary_knows_the_training_half_alone(folder):
    data = imdb.load("test", CPU, folder, False)
    (train, _), (evaluation, lengths) = parts(data.train)[0], parts(data.evaluation)[0]
    assert not (train == UNKNOWN).any()
    # one word of every test review occurs nowhere else, and "opening" is in both halves
    assert ((evaluation == UNKNOWN).sum(1) == 1).all()
    assert torch.equal((evaluation != 0).sum(1), lengths)


def test_a_long_review_keeps_its_end(folder):
    (words, lengths), _ = parts(imdb.load("test", CPU, folder, False).train)
    assert lengths[0] == 400
    assert words[0, -1] == words[3, lengths[3] - 1]  # the verdict "bad"
    assert (words[0, :390] == words[0, 0]).all()


# Training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_the_verdict_is_learned_from_the_giant_table(format, folder):
    data = ngram.load("test", CPU, folder, False)
    (rows,), labels = parts(data.train)
    torch.manual_seed(0)
    model = tensorized(ngram.TASK, format, "bayes")
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=2e-2))
    ranks = rf.RankDetermination(model, optimizer, num_data=10_000_000, total_steps=30)
    for _ in range(30):
        (F.cross_entropy(model(rows), labels) + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
    (rows,), labels = parts(data.evaluation)
    with torch.no_grad():
        assert (model.eval()(rows).argmax(1) == labels).float().mean() > 0.8


@pytest.mark.parametrize("format", FORMATS)
def test_gradients_reach_every_factor_of_the_word_table(format, folder):
    (words, lengths), labels = parts(imdb.load("test", CPU, folder, False).train)
    model = tensorized(imdb.TASK, format, "bayes")
    F.cross_entropy(model(words[1:5, :12], lengths[1:5]), labels[1:5]).backward()
    assert all(factor.grad.abs().sum() > 0 for factor in model.embedding.tensor.factors.mean)


# Files ------------------------------------------------------------------------------------------------


def rows_of(table):
    files = {file.stem: tomllib.loads(file.read_text()) for file in (EXPERIMENTS / table).glob("*.toml")}
    defaults = files.pop("defaults")
    beside = {name: files.pop(name, None) for name in ("paper", "targets")}
    return {name: Spec(**{**defaults, **row}) for name, row in files.items()}, beside


@pytest.mark.parametrize(("table", "methods"), [("imdb", METHODS), ("ngram", ("fr", "ard-lu", "ard-hc"))])
def test_every_method_has_its_row(table, methods):
    rows, _ = rows_of(table)
    assert set(rows) == {"dense", *(f"{format}-{method}" for format in FORMATS for method in methods)}
    for name, spec in rows.items():
        if spec.format is not None:
            assert name.startswith(f"{spec.format}-")
            assert (spec.prior == "half-cauchy") == name.endswith("-hc")
            assert spec.oracle == (f"{spec.format}-ard-lu" if spec.method == "tc-or" else None)


def test_the_papers_rows_have_the_counts_of_our_foldings():
    rows, beside = rows_of("imdb")
    assert set(beside["paper"]) == set(rows)
    for format in FORMATS:
        fixed, bayes = COUNTS[imdb, format]
        paper = {method: beside["paper"][f"{format}-{method}"] for method in METHODS}
        assert paper["fr"]["training"] == paper["fr"]["final"] == paper["tc-mr"]["final"] == fixed
        assert paper["ard-lu"]["training"] == paper["ard-hc"]["training"] == bayes
        assert paper["tc-or"]["final"] == paper["ard-lu"]["final"]
        bar, goal = beside["targets"][format]["bar"], beside["targets"][format]["goal"]
        assert 2 * goal["parameters"] <= bar["parameters"]
