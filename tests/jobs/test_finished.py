"""A run of train that is not finished: every command that needs its result says how to go on."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankfold.cli.main import app
from rankfold.experiments.spec import Spec
from rankfold.jobs.job import Job
from rankfold.jobs.preparation import DataOptions


@pytest.mark.parametrize("command", ["predict", "export", "report"])
def test_an_unfinished_run_says_how_to_go_on(command, tmp_path):
    spec = Spec("ard", format="ttm", max_rank=3, epochs=2, batch_size=8, lr=0.01)
    Job(Path("things.csv"), "mlp", spec, DataOptions(), "0").write(tmp_path / "run")
    data = ["new.csv"] if command == "predict" else []
    wide = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}
    result = CliRunner(env=wide).invoke(app, [command, str(tmp_path / "run"), *data])
    assert result.exit_code == 2, result.output
    assert f"the run in {tmp_path / 'run'} is not finished; go on with: rankfold train things.csv" in result.output
