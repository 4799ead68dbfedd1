"""IMDB in its two layouts: the reviews or a clear word. All reviews here are made up."""

import hashlib
import json
import lzma

import numpy as np
import pytest

from rankfold.data import imdb
from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.imdb import CHECKSUMS, find_imdb, load_imdb

TEXTS = {
    "train": (["dull<br />dull", "worst ever"], ["great fun", "café, loved it"]),
    "test": (["no", "not good"], ["yes", "good"]),
}


def lines(half, texts=TEXTS):
    return "".join(
        json.dumps({"text": text, "label": label, "id": n, "rating": 9 * label + 1}) + "\n"
        for label, group in enumerate(texts[half])
        for n, text in enumerate(group)
    ).encode()


def write_files(folder, suffix=".jsonl.xz"):
    folder.mkdir(parents=True, exist_ok=True)
    for half in TEXTS:
        content = lines(half)
        (folder / f"imdb-{half}{suffix}").write_bytes(lzma.compress(content) if suffix.endswith("xz") else content)


def write_folders(folder):
    for half, groups in TEXTS.items():
        for sentiment, group in zip(("neg", "pos"), groups, strict=True):
            (folder / half / sentiment).mkdir(parents=True)
            for n, text in enumerate(group):
                number = 5 + 10 * n  # 5 and 15: in the order of names 15 would come first
                (folder / half / sentiment / f"{number}_7.txt").write_text(text, encoding="utf-8")


@pytest.fixture
def tiny(monkeypatch):
    """Checksums and counts of the made-up reviews."""
    monkeypatch.setattr(imdb, "CHECKSUMS", {half: hashlib.sha256(lines(half)).hexdigest() for half in TEXTS})
    monkeypatch.setattr(imdb, "REVIEWS_PER_HALF", 4)


@pytest.mark.parametrize("layout", ["packed", "plain", "folders", "folders one down", "renamed"])
def test_all_layouts_give_the_same_reviews(tiny, layout, tmp_path):
    match layout:
        case "packed":
            write_files(tmp_path / "imdb")
        case "plain":
            write_files(tmp_path, ".jsonl")
        case "folders":
            write_folders(tmp_path / "aclImdb")
        case "folders one down":
            write_folders(tmp_path / "imdb" / "aclImdb")
        case "renamed":  # packed whatever its name says
            write_files(tmp_path / "imdb")
            for half in TEXTS:
                (tmp_path / "imdb" / f"imdb-{half}.jsonl.xz").rename(tmp_path / "imdb" / f"imdb-{half}.jsonl")
    train, test = load_imdb(tmp_path)
    for reviews, half in ((train, "train"), (test, "test")):
        assert list(reviews.texts) == [*TEXTS[half][0], *TEXTS[half][1]]
        assert reviews.labels.tolist() == [0, 0, 1, 1]
        assert reviews.labels.dtype == np.int64
        assert len(reviews) == 4


def test_nothing_there(tmp_path):
    with pytest.raises(MissingData, match=r"imdb is not here.*imdb-train.jsonl.xz.*no download.*aclImdb_v1.tar.gz"):
        load_imdb(tmp_path)


BAD = {
    "cut": (lambda raw: raw[:-20], "cut short or altered"),
    "altered": (lambda raw: raw[:40] + b"\0\0\0\0" + raw[44:], "cut short or altered"),
    "a web page": (lambda raw: b"<html>", r"line 1 is no JSON"),
    "cut after unpacking": (lambda raw: lines("train")[:-9], "line 4 is no JSON"),
    "a list": (lambda raw: b"[1, 2]\n", r"line 1 starts with b'\[1, 2\]', expected"),
    "no label": (lambda raw: b'{"text": "a"}\n', "line 1 starts with"),
    "a third label": (lambda raw: b'{"text": "a", "label": 2}\n', "0 or 1"),
    "a label that is true": (lambda raw: b'{"text": "a", "label": true}\n', "0 or 1"),
    "a number for a text": (lambda raw: b'{"text": 1, "label": 1}\n', "0 or 1"),
    "empty": (lambda raw: b"", "holds no reviews"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_damaged_file_is_named_even_without_verification(tiny, kind, tmp_path):
    change, said = BAD[kind]
    write_files(tmp_path)
    file = tmp_path / "imdb-train.jsonl.xz"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DamagedData, match=said) as caught:
        load_imdb(tmp_path, verify=False)
    assert str(file) in str(caught.value)


def test_another_content_is_refused_unless_one_insists(tiny, tmp_path):
    write_files(tmp_path)
    other = lines("train").replace(b"great", b"small")
    (tmp_path / "imdb-train.jsonl.xz").write_bytes(lzma.compress(other))
    with pytest.raises(DamagedData, match=rf"{hashlib.sha256(other).hexdigest()}, expected .*verify=False"):
        load_imdb(tmp_path)
    assert load_imdb(tmp_path, verify=False)[0].texts[2] == "small fun"


def test_one_half_alone_is_incomplete(tiny, tmp_path):
    write_files(tmp_path)
    (tmp_path / "imdb-test.jsonl.xz").unlink()
    assert find_imdb(tmp_path) == tmp_path
    with pytest.raises(DamagedData, match=r"incomplete: neither imdb-test.jsonl.xz nor .* nor test/pos"):
        load_imdb(tmp_path)


def test_folders_are_counted(tiny, tmp_path):
    write_folders(tmp_path)
    next((tmp_path / "train" / "pos").iterdir()).unlink()
    with pytest.raises(DamagedData, match="holds 2 negative and 1 positive reviews, expected 2 of each"):
        load_imdb(tmp_path)
    assert len(load_imdb(tmp_path, verify=False)[0]) == 3


def test_folders_with_something_else_in_them(tiny, tmp_path):
    write_folders(tmp_path)
    stray = tmp_path / "train" / "neg" / "notes.txt"
    stray.write_text("mine")
    with pytest.raises(DamagedData, match=r"notes.txt is no review"):
        load_imdb(tmp_path)
    stray.unlink()
    (tmp_path / "train" / "neg" / "5_7.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DamagedData, match="no UTF-8"):
        load_imdb(tmp_path)
    for file in (tmp_path / "train" / "neg").iterdir():
        file.unlink()
    (tmp_path / "train" / "neg").rmdir()
    with pytest.raises(DamagedData, match="neg is not there"):
        load_imdb(tmp_path)


def test_the_known_sums_are_of_sha256():
    assert set(CHECKSUMS) == {"train", "test"}
    assert all(len(bytes.fromhex(value)) == 32 for value in CHECKSUMS.values())
