"""CIFAR-10 from the archive and from mosaics: the same bytes, or a clear word."""

import hashlib
import pickle
import sys

import numpy as np
import pytest
import torch
from data.tiny_cifar10 import COUNT, make_records, write_archive, write_mosaics
from PIL import Image

from rankfold.data import cifar10
from rankfold.data.cifar10 import ARCHIVE, BATCHES, LABELS, load_cifar10
from rankfold.data.errors import DamagedData, DataError, MissingData


@pytest.fixture
def records(monkeypatch):
    """Six tiny batches with checksums of their own, by name: (6, 3073)."""
    made = make_records()
    sums = {name: hashlib.md5(array.tobytes()).hexdigest() for name, array in made.items()}
    tiny = tuple(cifar10.Batch(batch.name, sums[batch.name], batch.part, batch.number) for batch in BATCHES)
    monkeypatch.setattr(cifar10, "BATCHES", tiny)
    return made


WRITERS = {"archive": write_archive, "mosaics": write_mosaics}


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("subfolder", ["cifar10", "."])
def test_images_arrive_in_order_by_channel_row_and_column(form, subfolder, records, tmp_path):
    WRITERS[form](tmp_path / subfolder, records)
    data = load_cifar10(tmp_path)
    assert data.train_x.shape == (5 * COUNT, 3, 32, 32)
    assert data.test_x.shape == (COUNT, 3, 32, 32)
    assert data.train_x.dtype == data.test_x.dtype == torch.uint8
    assert data.train_y.dtype == data.test_y.dtype == torch.int64
    record = records["data_batch_3"][4]
    index = 2 * COUNT + 4
    assert data.train_y[index] == record[0]
    for channel, row, column in ((0, 0, 0), (1, 2, 31), (2, 30, 7)):
        assert data.train_x[index, channel, row, column] == record[1 + 1024 * channel + 32 * row + column]
    assert np.array_equal(data.test_y.numpy(), records["test_batch"][:, 0])
    data.train_x[0] = 0  # owned and writable


def test_both_forms_hold_the_same(records, tmp_path):
    write_archive(tmp_path / "a", records)
    write_mosaics(tmp_path / "b", records)
    first, second = load_cifar10(tmp_path / "a"), load_cifar10(tmp_path / "b")
    for name in ("train_x", "train_y", "test_x", "test_y"):
        assert torch.equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("position", [0, 100], ids=["label", "pixel"])
def test_a_changed_byte_is_found(form, position, records, tmp_path):
    changed = {name: array.copy() for name, array in records.items()}
    changed["data_batch_2"][1, position] ^= 1
    WRITERS[form](tmp_path, changed)
    with pytest.raises(DamagedData, match=r"data_batch_2 in .* is not the published one.*cifar\.html.*verify=False"):
        load_cifar10(tmp_path)
    load_cifar10(tmp_path, verify=False)


@pytest.mark.parametrize("form", WRITERS)
def test_an_eleventh_class_is_refused_even_without_verification(form, records, tmp_path):
    records["test_batch"][2, 0] = 10
    WRITERS[form](tmp_path, records)
    with pytest.raises(DamagedData, match=r"test_batch .* holds the label 10, expected 0 to 9"):
        load_cifar10(tmp_path, verify=False)


def test_nothing_there(tmp_path):
    with pytest.raises(MissingData, match=r"cifar10 is not here; neither .*cifar10 nor .* holds cifar-10-binary"):
        load_cifar10(tmp_path)


def without_a_batch(folder, records):
    write_archive(folder, {name: array for name, array in records.items() if name != "data_batch_4"})


def cut_short(folder, records):
    write_archive(folder, records)
    path = folder / ARCHIVE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_archive(folder, records):
    (folder / ARCHIVE).write_bytes(b"<html>not found</html>")


def pickled(folder, records):
    """The Python version of the archive: it is not unpickled."""
    write_archive(folder, {name: np.frombuffer(pickle.dumps(array), np.uint8) for name, array in records.items()})


def without_a_mosaic(folder, records):
    write_mosaics(folder, records)
    (folder / "data_batch_5.webp").unlink()


def without_labels(folder, records):
    write_mosaics(folder, records)
    (folder / LABELS).unlink()


def broken_picture(folder, records):
    write_mosaics(folder, records)
    path = folder / "data_batch_1.webp"
    path.write_bytes(path.read_bytes()[:100])


def odd_picture(folder, records):
    write_mosaics(folder, records)
    Image.new("RGB", (96, 60)).save(folder / "data_batch_1.webp", lossless=True)


def too_few_labels(folder, records):
    write_mosaics(folder, records)
    np.savez(folder / LABELS, train=np.zeros(5, np.uint8), test=np.zeros(COUNT, np.uint8))


def labels_of_another_type(folder, records):
    write_mosaics(folder, records)
    np.savez(folder / LABELS, train=np.zeros(COUNT), test=np.zeros(COUNT))


def labels_by_other_names(folder, records):
    write_mosaics(folder, records)
    np.savez(folder / LABELS, y=np.zeros(COUNT, np.uint8))


def labels_as_objects(folder, records):
    """An array of objects is a pickle: it is not loaded."""
    write_mosaics(folder, records)
    np.savez(folder / LABELS, train=np.array([{}] * COUNT, dtype=object))


DAMAGE = {
    without_a_batch: "has no cifar-10-batches-bin/data_batch_4.bin; is it the binary version",
    cut_short: "cannot be unpacked .* cut short",
    no_archive: "cannot be unpacked",
    pickled: "bytes, expected a multiple of 3,073",
    without_a_mosaic: "incomplete: there is neither data_batch_5.webp nor cifar-10-binary.tar.gz",
    without_labels: "incomplete: there is neither labels.npz",
    broken_picture: "data_batch_1.webp is no whole picture",
    odd_picture: "has 96×60 pixels, expected tiles of 32×32",
    too_few_labels: "6 images in data_batch_1.webp but 5 labels",
    labels_of_another_type: "float64 entries of shape .* expected uint8",
    labels_by_other_names: "has no array 'train' of labels",
    labels_as_objects: "has no array 'train' of labels that can be read",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_named_even_without_verification(damage, records, tmp_path):
    damage(tmp_path, records)
    with pytest.raises(DamagedData, match=DAMAGE[damage]):
        load_cifar10(tmp_path, verify=False)


def test_without_pillow_it_says_what_to_install(records, tmp_path, monkeypatch):
    write_mosaics(tmp_path, records)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"Pillow; install it with pip install 'rankfold\[experiments\]'"):
        load_cifar10(tmp_path)


def test_the_archive_is_preferred_and_named_as_what_is_read(records, tmp_path):
    write_mosaics(tmp_path, records)
    assert len(cifar10.files_of(tmp_path)) == 7
    write_archive(tmp_path, records)
    assert cifar10.files_of(tmp_path) == [tmp_path / ARCHIVE]
