"""Files that cannot be written to their end: nothing half written is left, and what was there before stays."""

import errno
import os

import pytest
import torch
from full_disk import short_of_space
from torch import nn

import rankfold as rf
from rankfold.experiments.checkpoints import read_checkpoint, write_checkpoint
from rankfold.whole_files import NotWritten, check_writable, write_whole

LIMIT = 20_000


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_file_that_cannot_be_finished_is_as_it_was(tmp_path):
    file = tmp_path / "deep" / "page.html"
    write_whole(file, "before")
    with short_of_space(LIMIT), pytest.raises(OSError, match="too large"):
        write_whole(file, "x" * 2 * LIMIT)
    assert file.read_text() == "before"
    assert files(tmp_path) == {"deep/page.html"}


def test_saving_raises_what_the_system_says(tmp_path):
    with short_of_space(LIMIT), pytest.raises(OSError, match="too large") as caught:
        rf.save(nn.Linear(100, 100), tmp_path / "model")
    assert caught.value.errno == errno.EFBIG
    assert str(caught.value) == f"{tmp_path / 'model'} cannot be written (File too large); choose another place"
    assert not files(tmp_path)


@pytest.mark.parametrize("place", ["file/model", "/proc/x", "/proc/x/model", "n" * 300])
def test_saving_names_a_folder_that_cannot_be_made(place, tmp_path):
    (tmp_path / "file").write_text("keep me")
    with pytest.raises(NotWritten, match=rf"{place} cannot be written \(.*\); choose another place"):
        rf.save(nn.Linear(2, 2), tmp_path / place)
    assert (tmp_path / "file").read_text() == "keep me"


@pytest.mark.parametrize("place", [".", "file/page.html", "/proc/x.html", "n" * 300])
def test_files_that_cannot_be_written_are_named_with_a_remedy(place, tmp_path):
    (tmp_path / "file").write_text("keep me")
    for write in (check_writable, lambda file: write_whole(file, "text")):
        with pytest.raises(NotWritten, match=r"cannot be written \(.*\); (choose another place|.*name a file in it)"):
            write(tmp_path / place)
    assert files(tmp_path) == {"file"}


def test_what_can_be_written_is_left_as_it_is_by_the_check(tmp_path):
    (tmp_path / "file").write_text("keep me")
    check_writable(tmp_path / "file")
    check_writable(tmp_path / "deep" / "file")
    assert (tmp_path / "file").read_text() == "keep me"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("size", [10, 100])  # of the layer: it is the state beside the model, or the model, that fails
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(size, tmp_path):
    model, state = nn.Linear(size, size), {"settings": {}, "number": torch.ones(1)}
    write_checkpoint(tmp_path, model, state, 1)
    before = files(tmp_path)
    with short_of_space(LIMIT), pytest.raises(OSError, match="too large"):
        write_checkpoint(tmp_path, model, {**state, "number": torch.ones(LIMIT)}, 2)
    assert files(tmp_path) == before
    found = read_checkpoint(tmp_path, model, {})
    assert found is not None
    assert found["number"].tolist() == [1]


# What is no plain file ------------------------------------------------------------------------------


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (check_writable, lambda file: write_whole(file, "text")):
        with pytest.raises(NotWritten, match=r"pipe cannot be written \(it is a device or a pipe, not a file\)"):
            write(pipe)
    assert pipe.is_fifo()


def test_a_checkpoint_does_not_replace_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "rankfold.json")
    with pytest.raises(NotWritten, match="a device or a pipe"):
        rf.save(nn.Linear(2, 2), tmp_path)
    assert (tmp_path / "rankfold.json").is_fifo()
    assert not files(tmp_path)


def test_what_a_link_leads_to_is_written(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    assert files(tmp_path) == {"file", "link"}


def test_both_files_of_a_checkpoint_can_be_read_by_the_same_people(tmp_path):
    rf.save(nn.Linear(2, 2), tmp_path)
    tensors, manifest = (tmp_path / name for name in ("model.safetensors", "rankfold.json"))
    assert tensors.stat().st_mode == manifest.stat().st_mode
