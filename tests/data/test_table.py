"""Tables: CSV in its dialects, Parquet, numbers and what is none."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.table import NoNumber, is_numeric, parsed, read_table


def write(tmp_path, content, name="t.csv"):
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_of_csv(delimiter, tmp_path):
    text = 'a,"b, or not",c\r\n1, x ,NA\n2,"two\nlines",?\n'.replace(",", delimiter)
    table = read_table(write(tmp_path, text))
    assert table.columns == {
        "a": ["1", "2"],
        f"b{delimiter} or not": ["x", "two\nlines"],
        "c": ["", ""],
    }
    assert len(table) == 2


def test_parquet_and_csv_are_the_same_table(tmp_path):
    columns = {"n": [1, 2, None], "x": [0.5, float("nan"), 2.0], "s": ["a", None, "c"], "b": [True, False, None]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    text = "n,x,s,b\n1,0.5,a,True\n2,nan,,False\n,2.0,c,\n"
    assert read_table(tmp_path / "t.parquet").columns == read_table(write(tmp_path, text)).columns


def test_numbers_and_what_counts_as_a_column_of_them(tmp_path):
    table = read_table(write(tmp_path, "x\n1e3\n-2\n\n"))
    assert np.array_equal(table.numbers("x", ""), [1000.0, -2.0])
    assert parsed(["1", "inf"]) == 1
    assert is_numeric([*map(str, range(30)), "oops"])
    assert not is_numeric(["1", "2", "A", "B"])
    with pytest.raises(NoNumber, match=r"t.csv, row 3, column 'y': 'oops' is no finite number; mend it"):
        read_table(write(tmp_path, "y\n1\noops\n")).numbers("y", "mend it")


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("a,b\n1,\0\n", DamagedData, "line 2 holds a zero byte, so this is no text"),
        ("a,b\n1,2\n1,2,3\n", DamagedData, r"row 3 \(line 3\) has 3 cells, but there are 2 columns"),
        ("a,a\n1,2\n", DamagedData, "two columns called 'a'"),
        ("a,b\n", MissingData, "has no rows"),
        ("", MissingData, "is empty; its first row must name the columns"),
        (b"a,b\n1,\xff\n", DamagedData, "line 2 is not UTF-8"),
        ('a,b\n1,"x\n', DamagedData, r"line 2 is no CSV \(unexpected end of data\); mend it$"),
        (
            'a,b\n"1\n",2\n\n"5,6\n7,8\n9,0\n',
            DamagedData,
            r"line 5 is no CSV \(unexpected end of data\); mend it, perhaps a quote is not closed",
        ),
        ('a,b\n1,2\n"5,6\n"7",8\n', DamagedData, r"line 3 is no CSV \(',' expected after '\"'\); mend it, perhaps"),
    ],
)
def test_what_is_wrong_is_named(content, error, message, tmp_path):
    with pytest.raises(error, match=message):
        read_table(write(tmp_path, content))


def test_files_that_are_none_are_named(tmp_path):
    with pytest.raises(MissingData, match="is no file"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(DamagedData, match="cannot be read as Parquet"):
        read_table(write(tmp_path, "a,b\n", "t.parquet"))
    with pytest.raises(MissingData, match=r"no column 'c', which --target names; its columns are a, b"):
        read_table(write(tmp_path, "a,b\n1,2\n")).column("c", "--target")
