"""``rankfold data`` says what is there, and gets what is not."""

import hashlib

import pytest
from data.tiny import make, write
from typer.testing import CliRunner

from rankfold.cli import data as command
from rankfold.cli.main import app
from rankfold.data import imdb, mnist
from rankfold.data.errors import DownloadError
from rankfold.whole_files import NotWritten


def run(*arguments, **environment):
    return CliRunner().invoke(app, ["data", *map(str, arguments)], env={"COLUMNS": "120", **environment})


@pytest.fixture
def tiny(monkeypatch):
    """Two tiny data sets in place of the real ones: arrays by file."""
    sets = {name: make(name, seed) for seed, name in enumerate(("mnist", "fashion-mnist"))}
    for module in (command, mnist):
        monkeypatch.setattr(module, "DATA_SETS", {name: data_set for name, (data_set, _) in sets.items()})
    return {name: arrays for name, (_, arrays) in sets.items()}


@pytest.fixture
def network(tiny, monkeypatch):
    """A download that writes the tiny data sets; which ones it was asked for."""
    asked = []

    def download(data_set, folder):
        asked.append(data_set.name)
        write(folder / data_set.name, tiny[data_set.name])
        return folder / data_set.name

    monkeypatch.setattr(command, "download", download)
    return asked


def row(output, name):
    """The cells of the table's row that starts with ``name``."""
    (line,) = [line for line in output.splitlines() if line.split()[:1] == [name]]
    return " ".join(line.split()[1:])


def test_all_is_there(tiny, tmp_path):
    for name, arrays in tiny.items():
        write(tmp_path / name, arrays)
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    for name in tiny:
        assert row(result.output, name) == "found 6 + 4 0.0 MB 4 of 4"
        assert f"{name} is in {tmp_path / name}" in result.output


def test_cifar10_is_read_to_its_end(tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(b"<html>")
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 1
    assert row(result.output, "cifar10") == "damaged 50,000 + 10,000 0.0 MB 0 of 6"
    assert "cifar-10-binary.tar.gz cannot be unpacked" in result.output
    assert row(run("check", "--data", tmp_path / "nowhere").output, "cifar10") == "missing 50,000 + 10,000"


def test_nothing_is_there(tiny, tmp_path):
    result = run("check", RANKFOLD_DATA=str(tmp_path / "nowhere"))
    assert result.exit_code == 0, result.output
    for name in tiny:
        assert row(result.output, name) == "missing 6 + 4"
        assert f"rankfold data get {name}" in result.output
    assert str(tmp_path / "nowhere" / "mnist") in result.output


def test_every_damaged_file_is_named(tiny, tmp_path):
    write(tmp_path / "mnist", tiny["mnist"])
    first, second, third, _ = sorted((tmp_path / "mnist").iterdir())
    first.write_bytes(first.read_bytes()[:-9])
    second.write_bytes(b"<html>")
    third.unlink()
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 1
    assert row(result.output, "mnist").startswith("damaged")
    assert row(result.output, "mnist").endswith("1 of 4")
    assert row(result.output, "fashion-mnist").startswith("missing")
    for path in (first, second, third):
        assert path.name in result.output


def test_one_folder_with_another_data_set_is_no_damage(tiny, tmp_path):
    write(tmp_path, tiny["mnist"])
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert row(result.output, "mnist").startswith("found")
    assert row(result.output, "fashion-mnist").startswith("missing")


def test_get_fetches_once(tiny, network, tmp_path):
    for said in ("is now in", "is already in"):
        result = run("get", "fashion-mnist", "--data", tmp_path)
        assert result.exit_code == 0, result.output
        assert f"fashion-mnist {said} {tmp_path / 'fashion-mnist'}" in result.output
    assert network == ["fashion-mnist"]


def test_get_replaces_what_is_damaged(tiny, network, tmp_path):
    write(tmp_path / "mnist", tiny["mnist"])
    next((tmp_path / "mnist").iterdir()).write_bytes(b"")
    assert run("get", "mnist", "--data", tmp_path).exit_code == 0
    assert run("check", "--data", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DownloadError("no network; copy [the files]"), "error: no network; copy [the files]"),
        (NotWritten(13, "Permission denied", "data/mnist"), "choose another place (--data names the folder)"),
    ],
)
def test_a_failed_download_is_a_message_not_a_traceback(error, said, tiny, tmp_path, monkeypatch):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(command, "download", fail)
    result = run("get", "mnist", "--data", tmp_path)
    assert result.exit_code == 1
    assert said in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_unknown_names_are_refused_with_the_known_ones():
    result = run("get", "cifar")
    assert result.exit_code == 2
    assert "cifar" in result.output
    assert "fashion-mnist" in result.output


@pytest.mark.parametrize("arguments", [(), ("check",), ("get",)])
def test_help_names_the_ways_to_give_a_folder(arguments):
    result = run(*arguments, "--help")
    assert result.exit_code == 0
    assert not arguments or ("--data" in result.output and "RANKFOLD_DATA" in result.output)


def test_imdb_is_checked_and_not_downloaded(tiny, tmp_path):
    asked = run("get", "imdb", "--data", tmp_path)
    assert asked.exit_code == 1
    assert "aclImdb_v1.tar.gz" in asked.output
    (tmp_path / "imdb").mkdir()
    (tmp_path / "imdb" / "imdb-train.jsonl").write_text('{"text": "made up", "label": 1}\n')
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 1
    assert row(result.output, "imdb") == "damaged 25,000 + 25,000 0.0 MB 0 of 2"
    assert "is not the known file" in result.output
    assert "imdb-test.jsonl" in result.output


def test_imdb_that_is_there_is_not_asked_for_again(tiny, tmp_path, monkeypatch):
    (tmp_path / "imdb").mkdir()
    content = '{"text": "bad", "label": 0}\n{"text": "good", "label": 1}\n'
    for half in imdb.HALVES:
        (tmp_path / "imdb" / f"imdb-{half}.jsonl").write_text(content)
    sums = dict.fromkeys(imdb.HALVES, hashlib.sha256(content.encode()).hexdigest())
    monkeypatch.setattr(imdb, "CHECKSUMS", sums)
    monkeypatch.setattr(imdb, "REVIEWS_PER_HALF", 2)
    result = run("get", "imdb", "--data", tmp_path)
    assert result.exit_code == 0, result.output
    assert f"imdb is already in {tmp_path / 'imdb'}, whole" in result.output


def test_criteo_is_checked_and_not_downloaded(tmp_path):
    asked = run("get", "criteo", "--data", tmp_path)
    assert asked.exit_code == 1
    words = " ".join(asked.output.split())
    for part in (
        f"in {tmp_path}/criteo and {tmp_path}. The data root is",
        "criteo-display-ad-challenge",
        "RANKFOLD_DATA",
    ):
        assert part in words
    (tmp_path / "train.txt").write_text("0\t1\n")
    assert row(run("check", "--data", tmp_path).output, "criteo") == "found 45,840,617, or a sample 0.0 MB 0 of 0"
    (tmp_path / "train.txt").unlink()
    (tmp_path / "criteo-kaggle-w261-sample.tsv.xz").write_bytes(b"made up")
    result = run("check", "--data", tmp_path)
    assert result.exit_code == 1
    assert row(result.output, "criteo") == "damaged 45,840,617, or a sample 0.0 MB 0 of 1"
