"""From text files to arrays, whole or not at all."""

import gzip
import io
import lzma
import os

import numpy as np
import pytest
import torch
from data.criteo.fake import fake_lines

from rankfold.data.criteo import Criteo, Tables, find_files, prepare, seventh, time_split
from rankfold.data.criteo import files as criteo_files
from rankfold.data.criteo.lines import read_line
from rankfold.data.criteo.preparing import Progress
from rankfold.data.criteo.progress_bar import ProgressBar
from rankfold.data.errors import DamagedData, MissingData

LINES = fake_lines(120)
TEXT = b"\n".join(LINES) + b"\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(TEXT)
    return path


def test_arrays_hold_what_the_lines_say(file):
    data = prepare([file])
    expected = [read_line(line) for line in LINES]
    assert data.labels.tolist() == [label for label, _, _ in expected]
    integers = torch.tensor([integers for _, integers, _ in expected])
    torch.testing.assert_close(data.numbers, integers.clamp(min=0).float().log1p())
    for column in range(26):
        tokens = [tokens[column] for _, _, tokens in expected]
        pairs = set(zip(tokens, data.categories[:, column].tolist(), strict=True))
        assert len(pairs) == len(set(tokens)) == data.sizes[column]  # one row for every value
        assert len({row for _, row in pairs}) == len(pairs)
    assert (data.file_rows, data.malformed, data.examples) == ((120,), 0, ())


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda text: text[:-1]])
@pytest.mark.parametrize("block_bytes", [700, 1 << 18])
def test_packed_files_and_small_blocks_give_the_same(file, tmp_path, pack, block_bytes, monkeypatch):
    packed = tmp_path / "other"
    packed.write_bytes(pack(TEXT))
    plain = prepare([file])
    monkeypatch.setattr(criteo_files.blocks, "__defaults__", (block_bytes,))
    other = prepare([packed])
    assert torch.equal(plain.labels, other.labels)
    assert torch.equal(plain.numbers, other.numbers)
    assert torch.equal(plain.categories, other.categories)


def test_several_files_are_one_data_set(file, tmp_path):
    extra = tmp_path / "extra.txt"
    extra.write_bytes(b"\n".join(fake_lines(30, seed=5)))
    data = prepare([file, extra])
    assert data.file_rows == (120, 30)
    assert torch.equal(data.labels[:120], prepare([file]).labels)


def test_one_file_needs_no_list(file, tmp_path):
    one, several = prepare(str(file), cache=tmp_path / "one"), prepare([file], cache=tmp_path / "several")
    assert torch.equal(one.categories, several.categories)


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DamagedData, match=r"empty\.txt has no rows; expected lines in the Criteo format"):
        prepare(tmp_path / "empty.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_a_file_whose_rows_are_all_malformed_says_what_they_are(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"\n".join(line.split(b"\t", 1)[1] for line in LINES[:50]))
    with pytest.raises(DamagedData, match=r"no line in the Criteo format: .*train.txt:1: it has 39 fields.*; 49 more"):
        prepare(tmp_path / "train.txt")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_malformed": -1}, ValueError, "max_malformed must be an integer, at least 0, got -1"),
        ({"tables": (1, 2)}, TypeError, r"tables must be Tables, such as .* got \(1, 2\)"),
    ],
)
def test_wrong_arguments_are_named(file, arguments, error, message):
    with pytest.raises(error, match=message):
        prepare(file, **arguments)


def test_a_folder_is_no_file(file):
    with pytest.raises(MissingData, match=r"cannot be read \(Is a directory\); find_files\(folder\) finds"):
        prepare(file.parent)


def test_a_place_that_cannot_be_written_to_is_named(file):
    with pytest.raises(OSError, match=r"train.txt/cache/criteo-\w+ cannot be written \(.*train.txt is a file, not a"):
        prepare(file, file / "cache")


def test_a_home_folder_may_be_named(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare(file, "~/arrays")
    assert (tmp_path / "arrays").is_dir()


def test_it_is_done_once(file, tmp_path, monkeypatch):
    first = prepare([file], tmp_path / "cache")
    seen = []
    second = prepare([file], tmp_path / "cache", progress=seen.append)
    assert seen == []
    assert torch.equal(first.categories, second.categories)
    prepare([file], tmp_path / "cache", tables=Tables(min_count=2), progress=seen.append)
    assert {progress.stage for progress in seen} == {"counting", "writing"}
    assert seen[-1].share == 1.0
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_malformed_lines_are_named_and_left_out(file):
    lines = [*LINES[:10], b"nonsense", *LINES[10:50], b"2" + LINES[50][1:], *LINES[50:]]
    file.write_bytes(b"\n".join(lines))
    message = r"2 malformed lines were left out, the first: .*train.txt:11: it has 1 field"
    with pytest.warns(UserWarning, match=message) as caught:
        data = prepare([file])
    assert caught[0].filename == __file__
    assert len(data) == 120
    assert data.malformed == 2
    assert data.examples[1] == f"{file}:52: its label is '2', expected 0 or 1"
    with pytest.raises(DamagedData, match=r"2 malformed lines, but max_malformed is 1"):
        prepare([file], max_malformed=1)


def test_empty_lines_are_no_rows_and_no_faults(file):
    file.write_bytes(b"\n" + TEXT + b"\n" * 9)
    data = prepare([file])
    assert (len(data), data.malformed) == (120, 0)


def test_too_many_malformed_lines_stop_it_and_leave_nothing(file, tmp_path):
    file.write_bytes(b"junk\n" * 5 + TEXT)
    with pytest.raises(
        DamagedData, match=r"more than 3 malformed lines(.|\n)*train.txt:1: it has 1 field.*; 3 more of the kind"
    ):
        prepare([file], tmp_path / "cache", max_malformed=3)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_interruption_leaves_nothing(file, tmp_path):
    def stop(progress: Progress) -> None:
        if progress.stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare([file], tmp_path / "cache", progress=stop)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_killed_process_of_the_same_number_has_left_is_in_nobodys_way(file, tmp_path):
    (name,) = [folder.name for folder in (prepare(file, tmp_path / "once"), tmp_path / "once")[1].iterdir()]
    left = tmp_path / "cache" / f"{name}.partial-{os.getpid()}"
    left.mkdir(parents=True)
    (left / "labels").write_bytes(b"half")
    assert len(prepare(file, tmp_path / "cache")) == 120
    assert [folder.name for folder in (tmp_path / "cache").iterdir()] == [name]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_packed_file_that_is_cut_short_is_damaged(tmp_path, pack):
    path = tmp_path / "train.txt"
    path.write_bytes(pack(TEXT)[:-30])
    with pytest.raises(DamagedData, match="is cut short or altered"):
        prepare([path])


def test_a_file_without_lines_is_no_text_file(tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_files, "_LONGEST_LINE", 100)
    path = tmp_path / "train.txt"
    path.write_bytes(bytes(1000))
    with pytest.raises(DamagedData, match="line 1 has no end within 100 bytes"):
        prepare([path], max_malformed=0)


def test_damaged_arrays_are_not_used(file, tmp_path):
    prepare([file], tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    os.truncate(folder / "numbers", 100)
    with pytest.raises(DamagedData, match="numbers has 100 bytes instead of 6,240"):
        prepare([file], tmp_path / "cache")
    with pytest.raises(DamagedData, match="is no prepared data set"):
        Criteo.open(tmp_path)


def test_arrays_can_be_changed_without_changing_the_files(file):
    data = prepare([file])
    data.labels.fill_(7)
    assert prepare([file]).labels.max() == 1


def test_files_are_found(tmp_path, file):
    assert find_files(file) == [file]
    assert find_files(tmp_path) == [file]
    folder = tmp_path / "root" / "criteo"
    folder.mkdir(parents=True)
    for name in ("criteo-kaggle-w261-sample.tsv.xz", "criteo-kaggle-extra.tsv.xz"):
        (folder / name).write_bytes(lzma.compress(TEXT))
    assert [path.name for path in find_files(tmp_path / "root")] == [
        "criteo-kaggle-w261-sample.tsv.xz",
        "criteo-kaggle-extra.tsv.xz",
    ]
    with pytest.raises(MissingData, match="nowhere does not exist; name train"):
        find_files(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingData, match=r"looked for train\.txt"):
        find_files(tmp_path / "empty")
    with pytest.raises(MissingData, match="cannot be read"):
        prepare([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="at least one file, got none"):
        prepare([])


@pytest.mark.parametrize("num_rows", [8, 9, 70, 137_139])
def test_days_follow_each_other(num_rows):
    days = [np.arange(num_rows)[seventh(num_rows, day)] for day in range(1, 8)]
    assert np.concatenate(days).tolist() == list(range(num_rows))
    assert max(map(len, days)) - min(map(len, days)) <= 1
    split = time_split(num_rows)
    parts = [np.arange(num_rows)[part] for part in (split.train, split.validation, split.test)]
    assert np.concatenate(parts).tolist() == list(range(num_rows))
    assert len(parts[1]) + len(parts[2]) == len(days[6])


def test_rows_of_which_a_part_would_be_empty_are_refused():
    split = time_split(8)
    assert all(range(8)[part] for part in (split.train, split.validation, split.test))
    with pytest.raises(ValueError, match="num_rows must be more than 7, so that no part is empty, got 7"):
        time_split(7)


def test_the_progress_bar_writes_now_and_then():
    stream = io.StringIO()
    bar = ProgressBar(stream)
    for share in (0.1, 0.2, 1.0):
        bar(Progress("counting", share, round(1000 * share), 1.0))
    first, last = stream.getvalue().splitlines()
    assert "##......................   10 %           100 rows" in first
    assert "100 %" in last


def test_beside_a_file_that_nothing_can_be_written_to_it_says_where_the_arrays_are(file, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = rf"{tmp_path} cannot be written to, so the arrays are in {tmp_path}/cache/rankfold/criteo-\w+; the"
    with pytest.warns(UserWarning, match=expected):
        assert len(prepare([file])) == 120
    assert len(prepare([file])) == 120  # said once
    assert len(list((tmp_path / "cache" / "rankfold").iterdir())) == 1


def test_arrays_beside_a_file_are_opened_by_those_who_could_not_write_them(file, monkeypatch):
    prepare(file)
    monkeypatch.setattr(os, "access", lambda *_: False)
    seen = []
    assert len(prepare(file, progress=seen.append)) == 120
    assert not seen
