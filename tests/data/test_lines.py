"""Lines of text: with labels or without, and what is refused."""

import pytest

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.lines import read_lines


def write(tmp_path, content):
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    return file


def test_labels_texts_and_numbers_of_lines(tmp_path):
    lines = read_lines(write(tmp_path, "\ufeffgood\tfine film\r\n\nbad\ta\tb, über\n".encode()))
    assert lines.labels == ("good", "bad")
    assert lines.texts == ("fine film", "a\tb, über")
    assert lines.numbers == (1, 3)


def test_lines_without_tabs_have_no_labels(tmp_path):
    lines = read_lines(write(tmp_path, b"one\n\ntwo"))
    assert lines.labels is None
    assert lines.texts == ("one", "two")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (
            b"a\tb\nno tab here\n",
            DamagedData,
            "line 2 has no tab: expected a label, a tab and a text, got 'no tab here'",
        ),
        (b"a\tb\n\tc\n", DamagedData, "line 2 has no label"),
        (b"a\tb\nc\t \n", DamagedData, "line 2 has no text"),
        (b"a\tb\nc\t\xff\n", DamagedData, "line 2 is not UTF-8"),
        (b"\n\n", MissingData, "has no lines"),
    ],
)
def test_what_is_wrong_is_named(content, error, message, tmp_path):
    with pytest.raises(error, match=message):
        read_lines(write(tmp_path, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingData, match=r"nothing.txt cannot be read .*; name a file that exists"):
        read_lines(tmp_path / "nothing.txt")
