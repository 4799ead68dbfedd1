"""Idx files: what is written is read, and nothing else is."""

import gzip
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rankfold.data.errors import DamagedData
from rankfold.data.idx import decode, encode, read_idx, write_idx

DTYPES = ("uint8", "int8", "int16", "int32", "float32", "float64")
IMAGES = struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 3, 4) + bytes(range(24))  # as the format's description has it


def test_a_file_written_by_hand_is_read(tmp_path):
    file = tmp_path / "images"
    file.write_bytes(IMAGES)
    array = read_idx(file)
    assert array.dtype == np.uint8
    assert np.array_equal(array, np.arange(24).reshape(2, 3, 4))
    assert array.flags.writeable  # torch warns of arrays that are not


def test_entries_are_big_endian(tmp_path):
    file = tmp_path / "numbers"
    file.write_bytes(b"\0\0\x0b\x01" + b"\0\0\0\x02" + b"\x01\x02" + b"\xff\xff")
    assert read_idx(file).tolist() == [0x0102, -1]


@settings(max_examples=30)
@given(hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
def test_every_array_survives(array):
    result = decode(encode(array), "somewhere")
    assert result.dtype == array.dtype
    assert result.shape == array.shape
    assert result.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["labels", "labels.gz"])
def test_compression_follows_the_name_in_writing_and_the_content_in_reading(name, tmp_path):
    array, file, renamed = np.arange(10, dtype=np.uint8), tmp_path / name, tmp_path / "renamed"
    write_idx(file, array)
    assert file.read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")
    file.rename(renamed)
    assert np.array_equal(read_idx(renamed), array)


def test_the_same_array_gives_the_same_file(tmp_path, monkeypatch):
    for name, now in (("a.gz", 1e9), ("b.gz", 2e9)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        write_idx(tmp_path / name, np.zeros(9, dtype=np.uint8))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


BAD = {
    "empty": (b"", "is empty"),
    "a web page": (b"<!DOCTYPE html>", "3c 21 44 4f"),
    "unknown type": (b"\0\0\x0a\x01\0\0\0\x01\0", "00 00 0a 01"),
    "cut in the magic number": (b"\0\0\x08", "00 00 08"),
    "cut in the header": (IMAGES[:10], "holds 10 bytes, but the header of 3 dimensions alone takes 16"),
    "cut in the entries": (IMAGES[:-1], r"holds 39 bytes.*shape \(2, 3, 4\), 40 bytes in all: the array is cut short"),
    "bytes at the end": (IMAGES + b"\0", "holds 41 bytes.*40 bytes in all: the array is followed by something else"),
    "huge sizes": (b"\0\0\x08\x02" + b"\xff" * 8, "18,446,744,065,119,617,037 bytes in all"),
    "gzip, cut": (gzip.compress(IMAGES)[:-10], "gzip file of .* bytes that is cut short or altered"),
    "gzip, cut in its header": (gzip.compress(IMAGES)[:5], "gzip file of 5 bytes that is cut short or altered"),
    "gzip, wrong sum": (gzip.compress(IMAGES)[:-8] + struct.pack("<II", 1, 40), "CRC"),
    "gzip, then something": (gzip.compress(IMAGES) + b"end", "cut short or altered"),
    "gzip of a web page": (gzip.compress(b"<html>"), "3c 68 74 6d"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_damaged_file_is_named_with_what_is_wrong_and_what_to_do(kind, tmp_path):
    content, said = BAD[kind]
    file = tmp_path / "images.gz"
    file.write_bytes(content)
    with pytest.raises(DamagedData, match=said) as caught:
        read_idx(file)
    assert str(file) in str(caught.value)
    assert "fresh copy" in str(caught.value)


@settings(max_examples=60)
@given(st.integers(0, len(gzip.compress(IMAGES, mtime=0)) * 8 - 1))
def test_no_single_flipped_bit_goes_unnoticed(tmp_path_factory, bit):
    packed = bytearray(gzip.compress(IMAGES, mtime=0))
    packed[bit // 8] ^= 1 << (bit % 8)
    file = tmp_path_factory.mktemp("flipped") / "images.gz"
    file.write_bytes(packed)
    try:
        array = read_idx(file)
    except DamagedData:
        return
    assert np.array_equal(array, np.arange(24).reshape(2, 3, 4))  # a bit of the time stamp, say


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path):
    with pytest.raises(DamagedData, match="cannot be read"):
        read_idx(tmp_path)


def test_arrays_that_idx_cannot_hold_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"uint8, .*, got int64; convert"):
        write_idx(tmp_path / "labels", np.arange(3, dtype=np.int64))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failing", ["write_bytes", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_rest(failing, tmp_path, monkeypatch):
    file = tmp_path / "labels.gz"
    write_idx(file, np.arange(3, dtype=np.uint8))

    def fail(self, *arguments):
        if failing == "write_bytes":
            with open(self, "wb") as half:
                half.write(arguments[0][:5])
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_bytes" if failing == "write_bytes" else "os.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            write_idx(file, np.arange(9, dtype=np.uint8))
    assert os.listdir(tmp_path) == ["labels.gz"]
    assert read_idx(file).tolist() == [0, 1, 2]


def test_zlib_errors_are_caught_too(tmp_path):
    packed = bytearray(gzip.compress(IMAGES))
    packed[10] |= 0b110  # the block type that deflate reserves
    with pytest.raises(zlib.error):
        gzip.decompress(packed)
    (tmp_path / "images.gz").write_bytes(packed)
    with pytest.raises(DamagedData, match="invalid block type"):
        read_idx(tmp_path / "images.gz")
