"""Which numbers of a table look like ids."""

from pathlib import Path

import pytest

from rankfold.data.table import Table
from rankfold.jobs.columns import looks_like_id


@pytest.mark.parametrize("name", ["postcode", "Postal Code", "zip", "home_zip", "shipZip", "ZIP_CODE", "areaCode"])
def test_numbers_that_are_called_codes_look_like_ids(name):
    """Small ones too, as postcodes that begin with 0 are, and those that come but once."""
    assert looks_like_id(Table(Path("t.csv"), {name: ["1067", "501", "70173", "20000"]}), name)
    assert not looks_like_id(Table(Path("t.csv"), {name: ["1.5", "2"]}), name)


@pytest.mark.parametrize("name", ["age", "price", "unzip", "episode", "codes_sent"])
def test_other_small_numbers_do_not(name):
    assert not looks_like_id(Table(Path("t.csv"), {name: ["7", "8", "7", "8"]}), name)
