"""The same data have the same fingerprint, whatever others look alike once they are prepared."""

import csv

import pytest
from jobs.made_up import images, lines, table
from PIL import Image

from rankfold.jobs.fingerprint import fingerprint, is_same
from rankfold.jobs.job import learn
from rankfold.jobs.preparation import DataOptions

KIND = DataOptions(target="kind")


def learned(data, options=KIND):
    return learn(data, None, options)[1]


def changed(file, change):
    """The table with ``change`` made to every row."""
    with file.open(newline="") as opened:
        rows = [change(row) for row in csv.DictReader(opened)]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {**row, "width": 2 * float(row["width"])},
        lambda row: {**row, "price": 2 * float(row["price"])},
        lambda row: {**row, "kind": row["kind"].upper()},
        lambda row: {**row, "colour": row["colour"].upper()},
        lambda row: {name if name != "width" else "girth": cell for name, cell in row.items()},
    ],
    ids=["scale", "scale of another", "classes", "categories", "name"],
)
def test_what_is_the_same_once_prepared_is_told_apart(change, tmp_path):
    before = learned(table(tmp_path / "t.csv"))
    after = learned(changed(tmp_path / "t.csv", change))
    for one, other in zip(before.examples.inputs, after.examples.inputs, strict=True):
        assert one.equal(other)
    assert before.examples.labels.equal(after.examples.labels)
    assert fingerprint(before) != fingerprint(after)
    assert not is_same(fingerprint(before), after)


def test_a_quantity_in_another_unit_is_told_apart(tmp_path):
    options = DataOptions(target="price")
    before = learned(table(tmp_path / "t.csv"), options)
    after = learned(changed(tmp_path / "t.csv", lambda row: {**row, "price": 2 * float(row["price"])}), options)
    assert before.examples.labels.equal(after.examples.labels)
    assert fingerprint(before) != fingerprint(after)


def test_brighter_images_are_told_apart(tmp_path):
    data = images(tmp_path / "photos")
    for file in data.rglob("*.png"):
        with Image.open(file) as image:
            image.point(lambda value: value // 2).save(file)
    before = learned(data, DataOptions())
    for file in data.rglob("*.png"):
        with Image.open(file) as image:
            image.point(lambda value: 2 * value).save(file)
    after = learned(data, DataOptions())
    assert before.examples.inputs[0].equal(after.examples.inputs[0])
    assert fingerprint(before) != fingerprint(after)


def test_the_same_data_are_the_same_in_an_older_run_too(tmp_path):
    """Which kept the half of the examples, and nothing of what was learned."""
    for data, options in ((table(tmp_path / "t.csv"), KIND), (lines(tmp_path / "t.txt"), DataOptions())):
        first, again = learned(data, options), learned(data, options)
        assert is_same(fingerprint(first), again)
        assert is_same(fingerprint(first)[:16], again)
        assert not is_same("", again)


def test_a_column_that_is_not_used_tells_nothing(tmp_path):
    before = learned(table(tmp_path / "t.csv"))
    after = learned(changed(tmp_path / "t.csv", lambda row: {**row, "same": "1"}))
    assert after.preparation.left_out == ("same",)
    assert fingerprint(before) == fingerprint(after)
