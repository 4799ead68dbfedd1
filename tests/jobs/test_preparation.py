"""What is learned of data comes from the training part alone, and comes back from its file."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from jobs.made_up import clicks, images, lines, planted_clicks, table

from rankfold.data.words import Corpus
from rankfold.jobs.criteo import Impressions
from rankfold.jobs.images import Images
from rankfold.jobs.job import make_spec, read_preparation, write_preparation
from rankfold.jobs.networks import planned
from rankfold.jobs.preparation import DataOptions, divide, divide_in_order
from rankfold.jobs.tables import Tabular
from rankfold.jobs.targets import Classes, Quantity
from rankfold.jobs.texts import Texts, ordered_words

KINDS = {
    "images": (Images, lambda folder: images(folder / "i"), DataOptions()),
    "classes": (Tabular, lambda folder: table(folder / "t.csv"), DataOptions(target="kind")),
    "quantity": (Tabular, lambda folder: table(folder / "t.csv"), DataOptions(target="price", ignored=("kind",))),
    "text": (Texts, lambda folder: lines(folder / "l.txt"), DataOptions()),
    "clicks": (Impressions, lambda folder: clicks(folder / "c.txt"), DataOptions()),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_preparation_comes_back_from_its_file(name, tmp_path):
    kind, make, options = KINDS[name]
    data = make(tmp_path)
    learned = kind.learn(data, options)
    write_preparation(learned.preparation, tmp_path)
    again = read_preparation(tmp_path)
    assert json.dumps(again.as_dict()) == json.dumps(learned.preparation.as_dict())
    for ours, theirs in zip(again.read(data).inputs, learned.examples.inputs, strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(again.read(data).labels, learned.examples.labels)


@pytest.mark.parametrize("name", ["images", "quantity"])
def test_numbers_are_standardised_by_the_training_part_alone(name, tmp_path):
    kind, make, options = KINDS[name]
    learned = kind.learn(make(tmp_path), options)
    values = learned.examples.inputs[0].double()
    channels = values.transpose(0, 1).flatten(2) if values.dim() > 2 else values.T[:, :, None]  # (C, N, ·)
    trained = channels[:, torch.from_numpy(learned.train)].flatten(1)
    assert trained.mean(1).abs().max() < 1e-5
    torch.testing.assert_close(trained.std(1, correction=0), torch.ones(len(channels), dtype=torch.float64))
    assert channels.flatten(1).mean(1).abs().max() > 1e-4  # with the examples held back it is not exact
    if name == "quantity":
        labels = learned.examples.labels[torch.from_numpy(learned.train)].double()
        assert float(labels.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(labels.std(correction=0)) == pytest.approx(1.0, rel=1e-4)


def test_words_and_categories_of_the_examples_held_back_are_not_known(tmp_path):
    file = lines(tmp_path / "l.txt")
    learned = Texts.learn(file, DataOptions())
    texts = file.read_text().splitlines()
    times = Counter(word for n in learned.train for word in texts[n].split("\t")[1].split())
    assert set(learned.preparation.words) == {word for word, count in times.items() if count >= 2}


def test_words_that_are_not_known_count_for_nothing(tmp_path):
    preparation = Texts.learn(lines(tmp_path / "l.txt"), DataOptions()).preparation
    file = tmp_path / "new.txt"
    file.write_text("fine gibberish\nnothing familiar\nfine\n")
    examples = preparation.read(file)
    row = preparation.words.index("fine") + 2
    assert [sorted(set(rows)) for rows in examples.inputs[0].tolist()] == [[0, row], [0], [0, row]]
    assert examples.unknown == {"words": 1}
    assert list(preparation.notes(examples)) == ["1 of 3 lines hold no word that training knew"]
    file.write_text("fine\n")
    assert list(preparation.notes(preparation.read(file))) == []


def test_words_stand_in_the_order_of_their_odds():
    random = np.random.default_rng(0)
    odds = {f"w{n}": n / 20 for n in range(21)}
    labels = random.integers(2, size=400)
    texts = [
        " ".join(word for word, share in odds.items() if random.random() < (share if label else 1 - share) / 2)
        for label in labels
    ]
    corpus = Corpus.of(texts)
    words = ordered_words(corpus, labels, 2)
    pairs = [(text.split(), label) for text, label in zip(texts, labels, strict=True)]
    counts = {word: [sum(word in t for t, y in pairs if y == c) for c in (0, 1)] for word in words}
    shares = np.array([sum(c[k] for c in counts.values()) for k in (0, 1)]) / sum(map(sum, counts.values()))
    smoothed = [(counts[word][1] + 10 * shares[1]) / (sum(counts[word]) + 10) for word in words]
    assert smoothed == sorted(smoothed)
    assert set(words) == set(odds)


def test_columns_are_numbers_or_categories(tmp_path):
    preparation = Tabular.learn(table(tmp_path / "t.csv"), DataOptions(target="kind", ignored=("price",))).preparation
    assert [column.name for column in preparation.numbers] == ["width", "height"]
    assert [(c.name, set(c.values)) for c in preparation.categories] == [("colour", {"red", "green", "blue"})]
    file = tmp_path / "new.csv"
    file.write_text("colour,height,width\npurple,,5\n")
    numbers, categories = preparation.read(file).inputs
    assert categories.tolist() == [[0]]  # not known
    assert numbers[0, 1] == 0  # a missing number counts as the mean
    assert preparation.read(file).unknown == {"colour": 1}
    assert next(preparation.notes(preparation.read(file))).startswith("colour: 1 of 1 rows hold a value that training")
    assert preparation.read(file).labels is None


def test_numbers_may_be_names(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("code,y\n" + "10,a\n20,b\n" * 20)
    options = DataOptions(target="y", categorical=("code",))
    preparation = Tabular.learn(file, options).preparation
    assert preparation.numbers == ()
    assert set(preparation.categories[0].values) == {"10", "20"}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "2", "3"] * 10, Classes),
        ([str(n) for n in range(30)], Quantity),
        (["0.5", "1.5"] * 15, Quantity),
        (["yes", "no"] * 15, Classes),
        ([str(n) for n in range(11)], Quantity),  # more than half of the rows differ
        ([str(n) for n in range(6)] * 2, Classes),
    ],
)
def test_classes_or_a_quantity_is_seen_from_the_target(cells, expected, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("x,y\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
    assert isinstance(Tabular.learn(file, DataOptions(target="y")).preparation.target, expected)


def test_a_guess_is_one_only_where_the_other_task_is_possible(tmp_path):
    def guess(cells):
        file = tmp_path / "t.csv"
        file.write_text("x,y\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(cells)))
        return Tabular.learn(file, DataOptions(target="y")).preparation.guess

    assert guess(["yes", "no"] * 10) is None
    assert "--task regression" in guess(["1", "0"] * 10)
    assert "--task classification" in guess(map(str, range(20)))
    assert Texts.learn(lines(tmp_path / "l.txt"), DataOptions()).preparation.guess is None


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    assert Classes.of(["10", "9", "2"], tmp_path).names == ("2", "9", "10")


def test_the_division_holds_back_the_same_share_of_every_class(tmp_path):
    labels = np.array(["a"] * 80 + ["b"] * 20 + ["c"])
    train, validation = divide(labels, len(labels), 0.2, tmp_path)
    assert sorted([*train, *validation]) == list(range(101))
    assert np.unique(labels[validation], return_counts=True)[1].tolist() == [16, 4]
    assert "c" in labels[train]
    assert divide(labels, len(labels), 0.2, tmp_path)[1].tolist() == validation.tolist()
    assert divide_in_order(20, 0.1, tmp_path)[1].tolist() == [18, 19]


def test_defaults_look_at_the_number_of_examples(tmp_path):
    preparation = Tabular.learn(table(tmp_path / "t.csv"), DataOptions(target="kind")).preparation
    given = {"format": "ttm", "prior": "half-cauchy", "epochs": None}
    small, large = (make_spec(preparation, "mlp", size, given) for size in (400, 1_000_000))
    assert (small.kl_weight, small.batch_size, small.epochs) == (0.2, 32, 250)
    assert (large.kl_weight, large.batch_size, large.epochs) == (1.0, 128, 3)
    assert make_spec(preparation, "mlp", 400, {**given, "kl_weight": 1.0}).kl_weight == 1.0
    assert make_spec(preparation, "mlp", 400, {**given, "epochs": 40}).kl_weight == 0.08  # 0.2 √(40 / 250)
    assert make_spec(preparation, "mlp", 400, {**given, "epochs": 1000}).kl_weight == 0.2
    assert small.prior == "half-cauchy"


def test_few_clicks_are_seen_often_and_many_once(tmp_path):
    few = Impressions.learn(clicks(tmp_path / "c.txt"), DataOptions()).preparation
    assert few.num_rows == 108
    many = replace(few, num_rows=1_000_000)
    given = {"format": "ttm"}
    small, large = make_spec(few, "dlrm", 1350, given), make_spec(many, "dlrm", 1_000_000, given)
    assert (small.epochs, large.epochs) == (100, 1)
    tables = [row for row in planned(few.network("dlrm"), small).rows if row.layer == "Table"]
    assert all(row.action == "tensorize" for row in tables if row.dense_parameters > 20 * 16)
    assert few.network("dlrm").options["dim"] < many.network("dlrm").options["dim"]


def test_categories_of_clicks_that_are_not_known_are_counted(tmp_path):
    preparation = Impressions.learn(planted_clicks(tmp_path / "c.tsv", 200), DataOptions()).preparation
    known = preparation.read(tmp_path / "c.tsv")
    assert list(preparation.notes(known)) == []
    assert set(known.unknown) == {f"category {n}" for n in range(1, 27)}
    rows = [line.split("\t") for line in (tmp_path / "c.tsv").read_text().splitlines()]
    for row in rows[:3]:
        row[14 + 4] = "ffffffff"
    rows[0][14 + 25] = "ffffffff"
    (tmp_path / "new.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    examples = preparation.read(tmp_path / "new.tsv")
    assert {name: count for name, count in examples.unknown.items() if count} == {"category 5": 3, "category 26": 1}
    assert list(preparation.notes(examples)) == [
        "2 of 26 categories hold values that training did not see, or saw only once; they count as unknown. "
        "category 5 has the most, in 3 of 200 lines"
    ]


def test_booleans_are_the_same_however_they_are_spelled(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("member,y\n" + "true,FALSE\nfalse,TRUE\n" * 20)
    preparation = Tabular.learn(file, DataOptions(target="y")).preparation
    trained = preparation.read(file)
    pyarrow.parquet.write_table(
        pyarrow.table({"member": [True, False] * 20, "y": [False, True] * 20}), tmp_path / "t.parquet"
    )
    found = preparation.read(tmp_path / "t.parquet")
    assert found.unknown == {"member": 0}
    assert torch.equal(found.inputs[0], trained.inputs[0])
    assert torch.equal(found.labels, trained.labels)
    mixed = Classes(("True", "true"))
    assert mixed.encode(["true", "True"], str).tolist() == [1, 0]  # as they are, where both occur
