"""Numbers and times as reports write them."""

import pytest

from rankfold.reporting.wording import duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.9999, "1 s"),
        (59.94, "59.9 s"),
        (59.97, "1 min 0 s"),
        (3599.4, "59 min 59 s"),
        (3599.7, "1 h 0 min"),
        (7199.0, "2 h 0 min"),
    ],
)
def test_a_duration_is_rounded_before_it_gets_a_unit(seconds, expected):
    assert duration(seconds) == expected
