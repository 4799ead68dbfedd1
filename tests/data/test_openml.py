"""Downloads: with a stand-in for the network, the files come out as published, or not at all."""

import gzip
import os
import warnings
from http.client import IncompleteRead
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
from data.tiny import make, write

from rankfold.data.errors import DownloadError
from rankfold.data.idx import encode
from rankfold.data.mnist import FASHION_MNIST, MNIST, DataSet
from rankfold.data.openml import download


def table(arrays):
    """The data set as OpenML has it: floating-point pixels, labels as strings, training before test."""
    images, labels, test_images, test_labels = arrays.values()
    pixels = np.concatenate([images, test_images]).reshape(-1, 784).astype(np.float64)
    return SimpleNamespace(data=pixels, target=np.concatenate([labels, test_labels]).astype(str).astype(object))


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a function in the place of scikit-learn's."""
    return lambda fetch: monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)


@pytest.fixture
def source(stand_in):
    """A tiny data set, its arrays, and how the stand-in that gives them was called."""
    data_set, arrays = make("mnist", 0)
    calls = []

    def fetch(name, **options):
        calls.append((name, options))
        return table(arrays)

    stand_in(fetch)
    return SimpleNamespace(data_set=data_set, arrays=arrays, calls=calls)


def test_the_files_hold_what_was_published(source, tmp_path):
    place = download(source.data_set, tmp_path)
    assert place == tmp_path / "mnist"
    assert sorted(os.listdir(place)) == sorted(f"{file.name}.gz" for file in source.data_set.files)
    for file, array in source.arrays.items():
        assert gzip.decompress((place / f"{file.name}.gz").read_bytes()) == encode(array)
    assert source.data_set.find(tmp_path) == place
    ((name, options),) = source.calls
    assert name == source.data_set.openml
    assert options["version"] == 1
    assert options["as_frame"] is False
    assert not os.path.exists(options["data_home"])  # its cache is gone


def test_a_set_of_which_only_the_test_part_is_needed(source, tmp_path):
    part = source.data_set.parts[1]
    only_test = DataSet("fashion-mnist", "x", (part,))
    place = download(only_test, tmp_path)
    assert sorted(os.listdir(place)) == [f"{part.images.name}.gz", f"{part.labels.name}.gz"]


def test_it_goes_where_data_are_looked_for(source, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKFOLD_DATA", str(tmp_path / "sets"))
    assert download(source.data_set) == tmp_path / "sets" / "mnist"


def test_damaged_files_are_replaced(source, tmp_path):
    write(tmp_path / "mnist", {file: array[:1] for file, array in source.arrays.items()})
    place = download(source.data_set, tmp_path)
    for file, array in source.arrays.items():
        assert gzip.decompress((place / f"{file.name}.gz").read_bytes()) == encode(array)


@pytest.mark.parametrize("kind", ["one pixel", "order", "one label"])
def test_other_data_are_not_written(source, stand_in, kind, tmp_path):
    @stand_in
    def fetch(name, **options):
        result = table(source.arrays)
        if kind == "one pixel":
            result.data[3, 400] = (result.data[3, 400] + 1) % 256
        elif kind == "order":
            result.data, result.target = result.data[::-1], result.target[::-1]
        else:
            result.target[-1] = str((int(result.target[-1]) + 1) % 10)
        return result

    with pytest.raises(DownloadError, match=r"not the published data.*nothing was written"):
        download(source.data_set, tmp_path)
    assert not (tmp_path / "mnist").exists()


def test_a_table_of_another_size_is_refused(source, stand_in, tmp_path):
    @stand_in
    def fetch(name, **options):
        result = table(source.arrays)
        return SimpleNamespace(data=result.data[1:], target=result.target[1:])

    with pytest.raises(DownloadError, match=r"pixels \(9, 784\) and labels \(9,\), expected \(10, 784\) and \(10,\)"):
        download(source.data_set, tmp_path)


@pytest.mark.parametrize(
    "error", [URLError("no address"), TimeoutError("too slow"), IncompleteRead(b""), ValueError("no such data set")]
)
def test_without_a_network_the_message_says_how_to_do_without(source, stand_in, error, tmp_path):
    @stand_in
    def fetch(name, **options):
        warnings.warn("Retrying...", stacklevel=2)  # an error in these tests, unless it is hushed
        raise error

    with pytest.raises(DownloadError) as caught:
        download(source.data_set, tmp_path)
    message = str(caught.value)
    assert str(error) in message
    assert all(f"{file.name}.gz" in message for file in source.data_set.files)
    assert "--data" in message
    assert "RANKFOLD_DATA" in message


def test_a_folder_that_cannot_be_written_to_is_noticed_before_the_download(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file is a file, not a folder\); choose another place"):
        download(source.data_set, tmp_path / "file")
    assert not source.calls


@pytest.mark.parametrize(("data_set", "name"), [(MNIST, "mnist_784"), (FASHION_MNIST, "Fashion-MNIST")])
def test_each_data_set_has_its_name_at_openml(data_set, name, stand_in, tmp_path):
    @stand_in
    def fetch(asked, **options):
        assert asked == name
        raise URLError("enough")

    with pytest.raises(DownloadError, match="enough"):
        download(data_set, tmp_path)
