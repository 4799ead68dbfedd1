"""The fast reader of blocks against the plain one of single lines."""

import math

import numpy as np
import pytest
from data.criteo.fake import fake_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.data.criteo.lines import MalformedLine, read_block, read_line

WHOLE = b"\t".join([b"0", *[b"%d" % n for n in range(13)], *[b"%08x" % n for n in range(26)]])


def with_field(number: int, field: bytes, line: bytes = WHOLE) -> bytes:
    fields = line.split(b"\t")
    fields[number] = field
    return b"\t".join(fields)


def slowly(lines):
    rows, numbers, malformed = [], [], []
    for number, line in enumerate(line.removesuffix(b"\r") for line in lines):
        try:
            rows.append(read_line(line))
            numbers.append(number)
        except MalformedLine as error:
            if line:
                malformed.append((number, str(error)))
    return rows, numbers, malformed


def assert_read_alike(lines):
    rows, numbers, malformed = read_block(b"".join(line + b"\n" for line in lines))
    expected, expected_numbers, expected_malformed = slowly(lines)
    assert numbers.tolist() == expected_numbers
    assert malformed == expected_malformed
    assert list(zip(rows.labels.tolist(), rows.integers.tolist(), rows.tokens.tolist(), strict=True)) == expected


def test_a_line_by_hand():
    line = b"\t".join([b"1", b"-2", b"", b"7", *[b""] * 10, b"0000000f", b"", b"deadBEEF", *[b""] * 23])
    rows, _, malformed = read_block(line + b"\n")
    assert malformed == []
    assert rows.labels.tolist() == [1]
    assert rows.integers[0, :3].tolist() == [-2, 0, 7]
    assert rows.tokens[0, :3].tolist() == [15, 0, 0xDEADBEEF]
    assert rows.numbers()[0, :3].tolist() == pytest.approx([0.0, 0.0, math.log(8)])


FIELD = st.one_of(
    st.sampled_from([b"", b"-", b"-1", b"0", b"1", b"2", b"12345678", b"123456789", b"9999999999", b"12345678901"]),
    st.sampled_from(
        [b"0123abcd", b"0123ABCD", b"0123abcg", b"0123abc", b"0123abcde", b"--1", b"1-", b"+5", b"\x10" * 8]
    ),
    st.binary(min_size=1, max_size=9).filter(lambda field: not set(field) & set(b"\t\n\r")),
)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 39), FIELD).map(lambda change: with_field(*change)),
            st.sampled_from([WHOLE, WHOLE + b"\r", b"", b"\r", b"\t", WHOLE + b"\t", WHOLE[2:], b"\xff\xfe"]),
        ),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=200)
def test_blocks_are_read_as_their_lines_are(lines):
    assert_read_alike(lines)


def test_many_plain_lines():
    assert_read_alike(fake_lines(500))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (WHOLE + b"\t", "it has 41 fields, expected 40 with tabs between them"),
        (b" ", "it has 1 field, expected 40"),
        (with_field(0, b"2"), "its label is '2', expected 0 or 1"),
        (with_field(3, b"1.5"), "its integer 3 is '1.5', expected up to 10 digits"),
        (with_field(18, b"xyz"), "its category 5 is 'xyz', expected 8 hexadecimal digits"),
        (with_field(18, b"\xff" * 30), "…'"),
    ],
)
def test_a_malformed_line_says_why(line, why):
    rows, numbers, ((number, found),) = read_block(WHOLE + b"\n" + line + b"\n" + WHOLE + b"\n")
    assert number == 1
    assert numbers.tolist() == [0, 2]
    assert why in found
    assert len(rows) == 2


@pytest.mark.parametrize("labelled", [True, False])
def test_empty_lines_are_passed_over(labelled):
    line = WHOLE if labelled else WHOLE.partition(b"\t")[2]
    rows, numbers, malformed = read_block(b"\n" + line + b"\n\r\n" + line + b"\n\n", labelled=labelled)
    assert len(rows) == 2
    assert numbers.tolist() == [1, 3]
    assert malformed == []


def test_nothing_is_no_rows():
    rows, _, malformed = read_block(b"")
    assert len(rows) == 0
    assert malformed == []
    assert rows.tokens.shape == (0, 26)
    assert rows.numbers().dtype == np.float32
