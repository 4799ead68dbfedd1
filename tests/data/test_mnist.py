"""MNIST and its relatives: the published data or a clear word."""

import gzip
import re

import numpy as np
import pytest
import torch
from data.tiny import make, write

from rankfold.data import mnist
from rankfold.data.errors import DamagedData, DataError, MissingData
from rankfold.data.idx import encode, write_idx
from rankfold.data.mnist import FASHION_MNIST, MNIST, load_fashion_mnist_test, load_mnist, read_part


@pytest.fixture
def tiny(monkeypatch):
    """MNIST and Fashion-MNIST replaced by tiny ones, under the same names: sets, and arrays by file."""
    sets = {name: make(name, seed) for seed, name in enumerate(("mnist", "fashion-mnist"))}
    fashion, arrays = sets["fashion-mnist"]
    test = mnist.DataSet(fashion.name, fashion.openml, fashion.parts[1:])
    sets["fashion-mnist"] = test, {file: arrays[file] for file in test.files}
    for attribute, name in (("MNIST", "mnist"), ("FASHION_MNIST", "fashion-mnist")):
        monkeypatch.setattr(mnist, attribute, sets[name][0])
    monkeypatch.setattr(mnist, "DATA_SETS", {name: pair[0] for name, pair in sets.items()})
    return sets


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_arrays_arrive_in_order_and_type(tiny, suffix, tmp_path):
    data_set, arrays = tiny["mnist"]
    write(tmp_path / "mnist", arrays, suffix)
    data = load_mnist(tmp_path)
    expected = [arrays[file] for file in data_set.files]
    for found, array in zip((data.train_x, data.train_y, data.test_x, data.test_y), expected, strict=True):
        assert np.array_equal(found.numpy(), array)
    assert data.train_x.dtype == data.test_x.dtype == torch.uint8
    assert data.train_y.dtype == data.test_y.dtype == torch.int64
    data.train_x[0] = 0  # owned and writable


def test_the_other_data_set_lies_beside_it(tiny, tmp_path):
    for name, (_, arrays) in tiny.items():
        write(tmp_path / name, arrays)
    x, y = load_fashion_mnist_test(tmp_path)
    images, labels = tiny["fashion-mnist"][1].values()
    assert np.array_equal(x.numpy(), images)
    assert np.array_equal(y.numpy(), labels)


def test_packed_by_another_hand_the_content_counts(tiny, tmp_path):
    _, arrays = tiny["mnist"]
    write(tmp_path, arrays)
    for file, array in arrays.items():
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(encode(array), 1, mtime=12345))
    load_mnist(tmp_path)


def altered(array):
    changed = array.copy()
    changed.flat[0] ^= 1
    return changed


@pytest.mark.parametrize("index", range(4))
def test_a_changed_file_is_named_with_both_sums_and_the_ways_out(tiny, index, tmp_path):
    data_set, arrays = tiny["mnist"]
    write(tmp_path, arrays)
    file = data_set.files[index]
    write_idx(tmp_path / f"{file.name}.gz", altered(arrays[file]))
    with pytest.raises(DamagedData) as caught:
        load_mnist(tmp_path)
    message = str(caught.value)
    assert str(tmp_path / f"{file.name}.gz") in message
    assert file.md5 in message
    assert len(set(re.findall(r"\b[0-9a-f]{32}\b", message))) == 2
    assert "rankfold data get mnist" in message
    assert "verify=False" in message
    load_mnist(tmp_path, verify=False)


def test_without_verification_any_number_of_images_will_do(tiny, tmp_path):
    _, arrays = tiny["mnist"]
    write(tmp_path, {file: array[:2] for file, array in arrays.items()})
    with pytest.raises(DamagedData, match=r"shape \(2, 28, 28\).*shape \(6, 28, 28\)"):
        load_mnist(tmp_path)
    assert load_mnist(tmp_path, verify=False).train_x.shape == (2, 28, 28)


WRONG = {
    "images of another size": (0, np.zeros((6, 8, 8), np.uint8), r"uint8 entries of shape \(6, 8, 8\), expected uint8"),
    "labels for images": (0, np.zeros(6, np.uint8), r"shape \(6,\), expected uint8 of shape \(N, 28, 28\)"),
    "images for labels": (1, np.zeros((6, 28, 28), np.uint8), r"expected uint8 of shape \(N\)"),
    "a scalar": (1, np.array(3, np.uint8), r"shape \(\), expected uint8 of shape \(N\)"),
    "another type": (0, np.zeros((6, 28, 28), np.float32), "float32 entries"),
    "an eleventh class": (1, np.array([0, 1, 2, 3, 4, 10], np.uint8), "holds the label 10, expected 0 to 9"),
    "too few labels": (1, np.zeros(5, np.uint8), "6 images in train-images.* but 5 labels"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arrays_are_refused_even_without_verification(tiny, kind, tmp_path):
    index, array, said = WRONG[kind]
    data_set, arrays = tiny["mnist"]
    write(tmp_path, arrays | {data_set.files[index]: array})
    with pytest.raises(DamagedData, match=said):
        load_mnist(tmp_path, verify=False)


def test_a_folder_with_a_part_of_the_files_is_incomplete(tiny, tmp_path):
    data_set, arrays = tiny["mnist"]
    write(tmp_path / "mnist", arrays)
    absent = data_set.files[-1].name
    (tmp_path / "mnist" / f"{absent}.gz").unlink()
    with pytest.raises(DamagedData, match=rf"incomplete: neither {absent}.gz nor {absent}.*rankfold data get mnist"):
        load_mnist(tmp_path)


def test_files_of_another_data_set_are_recognized(tiny, tmp_path):
    write(tmp_path, tiny["mnist"][1])
    with pytest.raises(MissingData, match="belongs to mnist, but fashion-mnist was asked for"):
        load_fashion_mnist_test(tmp_path)


def test_one_error_class_catches_all():
    assert issubclass(MissingData, DataError)
    assert issubclass(DamagedData, DataError)


def test_labels_and_images_of_a_part_belong_together(tiny, tmp_path):
    data_set, arrays = tiny["mnist"]
    write(tmp_path, arrays)
    for part in data_set.parts:
        x, y = read_part(part, data_set, tmp_path)
        assert len(x) == len(y) == part.rows.stop - part.rows.start


@pytest.mark.parametrize("data_set", [MNIST, FASHION_MNIST], ids=lambda data_set: data_set.name)
def test_the_real_descriptions_are_consistent(data_set):
    assert all(re.fullmatch("[0-9a-f]{32}", file.md5) for file in data_set.files)
    assert data_set.parts[-1].rows == slice(60_000, 70_000)
    for part in data_set.parts:
        assert part.images.shape == (*part.labels.shape, 28, 28)


def test_no_two_files_have_the_same_sum():
    sums = [file.md5 for file in MNIST.files + FASHION_MNIST.files]
    assert len(set(sums)) == len(sums) == 6
