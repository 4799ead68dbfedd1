"""Which folder is taken, and what is said where there is none."""

import pytest

from rankfold.data.errors import MissingData
from rankfold.data.location import data_root, find_file, find_folder

FILES = ("images", "labels")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Start in an empty folder, with no environment variable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKFOLD_DATA", raising=False)


def put(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"")


def test_the_named_folder_goes_before_the_variable_and_that_before_the_default(tmp_path, monkeypatch):
    for place in ("named", "variable", "data"):
        put(tmp_path / place / "mnist", *FILES)
    assert find_folder("mnist", FILES).absolute() == tmp_path / "data" / "mnist"
    monkeypatch.setenv("RANKFOLD_DATA", str(tmp_path / "variable"))
    assert find_folder("mnist", FILES) == tmp_path / "variable" / "mnist"
    assert find_folder("mnist", FILES, tmp_path / "named") == tmp_path / "named" / "mnist"


def test_a_named_folder_without_the_data_is_not_replaced_by_another(tmp_path):
    put(tmp_path / "data" / "mnist", *FILES)
    with pytest.raises(MissingData, match="named"):
        find_folder("mnist", FILES, tmp_path / "named")


def test_an_empty_variable_counts_as_none_and_a_tilde_is_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("RANKFOLD_DATA", "")
    assert str(data_root()) == "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root("~/sets") == tmp_path / "sets"


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        (FILES, FILES, "mnist"),  # the folder of that name goes first
        (FILES, (), "mnist"),
        (("labels.gz",), FILES, "mnist"),  # even if incomplete: it is meant to be mnist
        ((), FILES, "."),
        ((), ("images.gz", "labels"), "."),
        ((), ("labels",), None),  # may belong to another data set
        ((), (), None),
    ],
)
def test_subfolder_or_folder(below, above, expected, tmp_path):
    put(tmp_path / "mnist", *below)
    put(tmp_path, *above)
    if expected is None:
        with pytest.raises(MissingData):
            find_folder("mnist", FILES, tmp_path)
    else:
        assert find_folder("mnist", FILES, tmp_path).resolve() == (tmp_path / expected).resolve()


def test_the_error_lists_places_and_remedies(tmp_path, monkeypatch):
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "mnist").write_text("not a folder")
    monkeypatch.setenv("RANKFOLD_DATA", str(tmp_path / "sets"))
    with pytest.raises(MissingData) as caught:
        find_folder("mnist", FILES)
    message = str(caught.value)
    assert f"{tmp_path / 'sets' / 'mnist'} (a file, not a folder)" in message
    assert f"{tmp_path / 'sets'} (no images, labels, with .gz or without)" in message
    for remedy in ("`rankfold data get mnist`", "--data", "RANKFOLD_DATA"):
        assert remedy in message
    assert "taken from RANKFOLD_DATA" in message


def test_the_error_names_absent_folders_in_full(tmp_path):
    with pytest.raises(MissingData) as caught:
        find_folder("mnist", FILES)
    assert f"{tmp_path / 'data' / 'mnist'} (no such folder)" in str(caught.value)


def test_the_gzipped_file_goes_first(tmp_path):
    put(tmp_path, "images", "images.gz", "labels")
    (tmp_path / "others.gz").mkdir()
    assert find_file(tmp_path, "images").name == "images.gz"
    assert find_file(tmp_path, "labels").name == "labels"
    assert find_file(tmp_path, "others") is None
