"""What typer refuses is said in plain words, with the option, the value and what was expected."""

import pytest
from typer.testing import CliRunner

from rankfold.cli.main import app


def said(*arguments):
    result = CliRunner(env={"COLUMNS": "500", "TERMINAL_WIDTH": "500"}).invoke(app, [str(part) for part in arguments])
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "t.csv", "--epochs", "0"), "'--epochs': must be at least 1, got '0'"),
        (("plan", "t.csv", "--epochs", "1.5"), "'--epochs': must be an integer, got '1.5'"),
        (("train", "t.csv", "--lr", "fast"), "'--lr': must be a number, got 'fast'"),
        (("train", "t.csv", "--kl-weight", "nan"), "'--kl-weight': must be at least 0, got 'nan'"),
        (("train", "t.csv", "--seed", 10**20), "'--seed': must be at most 4294967295, got '1"),
        (("train", "t.csv", "--format", "tnt"), "'--format': 'tnt' is not one of 'cp', 'tucker', 'tt', 'ttm'"),
        (("demo", "--kl-weight", "inf"), "--kl-weight: must be a finite number, got inf"),
        (("bench", "layers", "--repeat", "1"), "'--repeat': must be at least 3, got '1'"),
        (("train", "t.csv", "--device", "meta"), "'meta' is a device that rankfold does not train on; use cpu or cuda"),
    ],
)
def test_a_value_is_refused_in_plain_words(arguments, message):
    words = said(*arguments)
    assert f"Invalid value for {message}" in words or message in words
    assert "Input should" not in words
    assert "Value error" not in words


def test_a_folder_without_rows_is_no_table(tmp_path):
    (tmp_path / "none").mkdir()
    for command in ("reproduce", "table"):
        assert "none holds no rows, <row>.toml; add one" in said(command, "none", "--experiments", tmp_path)
