"""What kind of data a file holds, by its name, its first lines and what was asked for."""

import gzip

import pytest
from jobs.made_up import clicks, lines, table

from rankfold.data.errors import DamagedData
from rankfold.jobs.criteo import Impressions
from rankfold.jobs.job import kind_of, learn
from rankfold.jobs.preparation import DataOptions
from rankfold.jobs.tables import Tabular
from rankfold.jobs.texts import Texts


def each_line(file, change):
    """The file with ``change`` made to every line."""
    file.write_bytes(b"\n".join(map(change, file.read_bytes().splitlines())))
    return file


def tabbed(file):
    return each_line(table(file), lambda line: line.replace(b",", b"\t"))


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda file: clicks(file, labelled=False), 39),
        (lambda file: each_line(clicks(file), lambda line: line + b"\tx"), 41),
        (lambda file: each_line(clicks(file), lambda line: b"yes" + line[1:]), 40),
        (tabbed, 5),
    ],
)
def test_lines_of_many_fields_are_not_taken_for_texts(make, fields, tmp_path):
    file = make(tmp_path / "data.txt")
    with pytest.raises(
        DamagedData, match=rf"most lines have {fields} fields .* a label and a text are 2, clicks are 40"
    ):
        kind_of(file, None, DataOptions())
    assert kind_of(file, "text", DataOptions()) is Texts
    assert kind_of(file, "dlrm", DataOptions()) is Impressions


def test_texts_may_hold_tabs(tmp_path):
    file = lines(tmp_path / "reviews.txt")
    first, *others = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([first.replace(b" ", b"\t"), *others]))
    assert kind_of(file, None, DataOptions()) is Texts


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_clicks_may_begin_with_an_empty_line(pack, tmp_path):
    file = tmp_path / "train.txt"
    file.write_bytes(pack(b"\n" + clicks(file).read_bytes()))
    assert kind_of(file, None, DataOptions()) is Impressions


def test_a_target_makes_no_table_of_texts_and_clicks(tmp_path):
    options = DataOptions(target="x")
    with pytest.raises(ValueError, match=r"reviews.txt is a text file of labelled lines; leave --target out"):
        learn(lines(tmp_path / "reviews.txt"), None, options)
    with pytest.raises(ValueError, match=r"train.txt is a file in the Criteo format; leave --target out"):
        learn(clicks(tmp_path / "train.txt"), None, options)


def test_a_target_makes_a_table_of_other_lines(tmp_path):
    assert kind_of(tabbed(tmp_path / "data.txt"), None, DataOptions(target="x")) is Tabular
    two = tmp_path / "two.txt"
    two.write_text('"a"\t"b"\n' + "1\t2\n" * 9)
    assert kind_of(two, None, DataOptions(target="b")) is Tabular


def test_texts_are_no_new_data_for_a_table(tmp_path):
    preparation = Tabular.learn(table(tmp_path / "t.csv"), DataOptions(target="kind")).preparation
    reviews = lines(tmp_path / "reviews.txt")
    with pytest.raises(DamagedData, match=r"texts have no columns; give a table with the columns .*: width, height, "):
        preparation.read(reviews)
    assert len(preparation.read(tabbed(tmp_path / "new.txt"))) == 60
