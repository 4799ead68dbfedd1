"""The command figures: what it writes, what it leaves out, how it ends."""

from pathlib import Path

import pytest
from figures.fake import EXPERIMENTS, write
from typer.testing import CliRunner

from rankfold.cli.main import app
from rankfold.experiments.gradient_variance import Settings, measure

PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch):
    short = Settings(steps=4, looks=2, draws=2)
    monkeypatch.setattr("rankfold.figures.gradient_variance.measure", lambda inference: measure(inference, short))


def invoke(tmp_path, *names):
    folders = {"--results": tmp_path / "results", "--out": tmp_path / "out", "--experiments": EXPERIMENTS}
    arguments = [str(part) for pair in folders.items() for part in pair]
    return CliRunner().invoke(app, ["figures", *names, *arguments])


def drawn(tmp_path):
    return sorted(file.stem for file in Path(tmp_path / "out").glob("*.png") if file.read_bytes()[:4] == PNG)


def test_without_results_only_what_needs_none_is_drawn(tmp_path):
    result = invoke(tmp_path)
    assert result.exit_code == 0, result.output
    assert drawn(tmp_path) == ["fig5-priors", "fig6-gradient-variance"]
    left_out = [line for line in result.output.splitlines() if "left out" in line]
    assert len(left_out) == 6
    assert "rankfold reproduce synthetic" in left_out[0]


def test_with_results_all_are_drawn(tmp_path):
    for table in ("mnist", "mnist-curve", "synthetic", "cifar10"):
        write(tmp_path / "results", table, seeds=2)
    result = invoke(tmp_path)
    assert result.exit_code == 0, result.output
    assert "left out" not in result.output
    assert len(drawn(tmp_path)) == 8


def test_nothing_drawn_gives_exit_code_1(tmp_path):
    assert invoke(tmp_path, "fig9-hard-digit").exit_code == 1
    assert drawn(tmp_path) == []


@pytest.mark.parametrize("damage", [False, True])
def test_a_wrong_request_gives_exit_code_2(tmp_path, damage):
    if damage:
        file = tmp_path / "results" / "mnist" / "cp-ard-lu-seed0.json"
        file.parent.mkdir(parents=True)
        file.write_text("{")
    result = invoke(tmp_path, "fig8-mnist-ranks" if damage else "fig10")
    assert result.exit_code == 2
    assert ("damaged" if damage else "fig10") in result.output
