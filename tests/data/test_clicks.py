"""Criteo files in memory: the same rows as the prepared arrays have, with labels or without."""

import numpy as np
import pytest
import torch
from data.criteo.fake import fake_lines
from jobs.made_up import clicks

from rankfold.data.clicks import read_clicks
from rankfold.data.criteo import prepare
from rankfold.data.errors import DamagedData, MissingData


def test_rows_are_those_of_the_prepared_data_set(tmp_path):
    file = clicks(tmp_path / "train.txt")
    found, prepared = read_clicks(file), prepare([file], tmp_path)
    assert torch.equal(torch.from_numpy(found.labels), prepared.labels)
    assert torch.equal(torch.from_numpy(found.numbers), prepared.numbers)


def test_without_labels_the_rest_is_the_same(tmp_path):
    whole = read_clicks(clicks(tmp_path / "a.txt"))
    bare = read_clicks(clicks(tmp_path / "b.txt", labelled=False))
    assert bare.labels is None
    assert np.array_equal(bare.tokens, whole.tokens)
    assert np.array_equal(bare.numbers, whole.numbers)


def test_what_is_wrong_is_named(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"1\t2\t3\n")
    with pytest.raises(DamagedData, match=r"no line in the Criteo format: .*a.txt:1: it has 3 fields, expected 40"):
        read_clicks(file)
    file.write_bytes(b"\n".join([*fake_lines(300), *[b"1\t2\t3"] * 101]))
    with pytest.raises(
        DamagedData, match=r"more than 100 malformed lines(.|\n)*a.txt:301: it has 3 .* 100 more of the"
    ):
        read_clicks(file)
    for nothing in (b"", b"\n\n"):
        file.write_bytes(nothing)
        with pytest.raises(MissingData, match="is empty"):
            read_clicks(file)
    with pytest.raises(MissingData, match="is no file"):
        read_clicks(tmp_path / "nothing")


@pytest.mark.parametrize("labelled", [True, False])
def test_malformed_lines_are_left_out_and_named(labelled, tmp_path):
    whole = read_clicks(clicks(tmp_path / "whole.txt", 60, labelled=labelled))
    assert whole.left_out is None
    assert whole.lines.tolist() == list(range(1, 61))
    lines = (tmp_path / "whole.txt").read_bytes().splitlines()
    for place, bad in ((7, b"x"), (20, b"y"), (21, lines[3] + b"\t")):
        lines.insert(place, bad)
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    found = read_clicks(tmp_path / "a.txt")
    assert np.array_equal(found.tokens, whole.tokens)
    assert np.array_equal(found.numbers, whole.numbers)
    assert found.lines.tolist() == [n for n in range(1, 64) if n not in (8, 21, 22)]
    assert found.left_out.startswith("left out, as they are malformed: 3 lines, 8, 21, 22 (line 8: it has")
    assert found.left_out.count("expected 40" if labelled else "expected 39") == 2  # two kinds
    assert "it has 1 field," in found.left_out
    assert ("a label" in found.left_out) == labelled


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("fault", [lambda line: line.rpartition(b"\t")[0], lambda line: line + b"\t", lambda line: b""])
def test_a_malformed_first_line_says_nothing_about_the_others(labelled, fault, tmp_path):
    file = clicks(tmp_path / "a.txt", 60, labelled=labelled)
    whole, (first, *others) = read_clicks(file), file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([fault(first), *others]))
    found = read_clicks(file)
    assert found.lines.tolist() == list(range(2, 61))
    assert np.array_equal(found.tokens, whole.tokens[1:])
    assert (found.labels is not None) == labelled


def test_empty_lines_do_not_count(tmp_path):
    file = clicks(tmp_path / "a.txt", 60)
    first, *others = file.read_bytes().splitlines()
    file.write_bytes(b"\n".join([b"", first, b"", *others, *[b""] * 101]))
    found = read_clicks(file)
    assert found.left_out is None
    assert found.lines.tolist() == [2, *range(4, 63)]


def test_the_remedy_is_one_that_can_be_had(tmp_path):
    file = clicks(tmp_path / "a.txt", 60)
    file.write_bytes(file.read_bytes() + b"1\t2\n" * 101)
    with pytest.raises(DamagedData, match=r"Mend the file$"):
        read_clicks(file)
    with pytest.raises(DamagedData, match=r"prepare\(..., max_malformed=...\) allows more"):
        prepare([file], tmp_path)
