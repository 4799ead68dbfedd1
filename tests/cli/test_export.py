"""``rankfold export`` from the demonstration to a file that runs without torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rankfold as rf
from rankfold.architecture import rebuild
from rankfold.cli import app as entry
from rankfold.cli.main import app
from rankfold.data.digits import load_digits
from rankfold.demo import classifier
from rankfold.experiments import mnist
from rankfold.export import ExportError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"
EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_digits"


def export(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A folder as ``rankfold demo`` leaves it, and the file exported from it."""
    folder = tmp_path_factory.mktemp("demo")
    ran = CliRunner().invoke(app, ["demo", "--epochs", "6", "--quiet", "--out", str(folder)])
    assert ran.exit_code == 0, ran.output
    result = export(folder)
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_a_demo_run_is_exported_by_its_folder_alone(demo):
    folder, output = demo
    size = (folder / "model.onnx").stat().st_size
    parameters = json.loads((folder / "demo.json").read_text())["after"]["parameters"]
    assert 4 * parameters < size < 4 * parameters + 5000
    assert f"{size:,}" in output
    assert f"{parameters:,}" in output
    assert "85,002" in output  # the dense network
    assert "onnxruntime and the model agree" in output


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_a_file_that_cannot_be_written_is_named(demo, ending, tmp_path):
    (tmp_path / "file").write_text("mine")
    wide = {"COLUMNS": "500", "TERMINAL_WIDTH": "500"}
    result = CliRunner(env=wide).invoke(app, ["export", str(demo[0]), str(tmp_path / "file" / f"x.{ending}")])
    assert result.exit_code == 2
    assert f"x.{ending} cannot be written (File exists); choose another file" in result.output


def test_the_figures_come_as_json(demo, tmp_path):
    result = export(demo[0] / "model", tmp_path / "small.onnx", "--int8", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert figures["bytes"] == (tmp_path / "small.onnx").stat().st_size < (demo[0] / "model.onnx").stat().st_size
    assert figures["dense_bytes"] == 4 * figures["dense_parameters"] == 4 * 85_002
    assert 0 < figures["change_by_rounding"] < 0.05
    assert figures["difference_from_model"] < 1e-5


def test_a_program_of_torch_export_is_a_pt2_file(demo, tmp_path):
    file = tmp_path / "new" / "demo.pt2"
    result = export(demo[0], file, "--layout", "dense")
    assert result.exit_code == 0, result.output
    images = load_digits().test_images
    with torch.no_grad():
        found = torch.export.load(file).module()(images)
        expected = rf.to_dense(rebuild(classifier(), demo[0] / "model")).eval()(images)
    torch.testing.assert_close(found, expected)


def test_models_of_the_experiments_are_exported_by_their_function(tmp_path):
    configs = {
        name: rf.TTM(3, in_dims=dims[0], out_dims=dims[1]) for name, dims in mnist.FOLDINGS["ttm"].layers.items()
    }
    model = rf.tensorize_(mnist.classifier(), None, overrides=configs)
    rf.save(model, tmp_path / "model")
    file = tmp_path / "mnist.pt2"
    result = export(tmp_path, file, "--model", "rankfold.experiments.mnist:classifier", "--input", "784", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["parameters"] == rf.accounting(model).total.final_parameters


PRICES = """rooms,area,city,price
1,30.5,Bern,61000
3,71.5,Bonn,84000
2,48.0,Brno,52000
5,99.0,Bern,131000
4,90.5,Bonn,99000
3,66.0,Brno,70500
"""


def test_the_example_of_a_table_in_the_docs_says_what_predict_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header, *rows = PRICES.splitlines()
    Path("prices.csv").write_text("\n".join([header, *rows * 10]) + "\n")
    Path("new.csv").write_text("rooms,area,city\n3,71.5,Bonn\n")
    options = ["--target", "price", "--task", "regression", "--epochs", "3", "--quiet"]
    trained = CliRunner().invoke(app, ["train", "prices.csv", *options])
    assert trained.exit_code == 0, trained.output
    assert export("runs/prices").exit_code == 0
    names = {}
    (block,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    exec(block, names)
    said = CliRunner().invoke(app, ["predict", "runs/prices", "new.csv", "--samples", "0", "--out", "-"])
    assert float(said.output.splitlines()[1].split(",")[1]) == pytest.approx(names["price"], rel=1e-4)


# Without torch -----------------------------------------------------------------------------------------


def test_the_example_runs_where_there_is_no_torch(demo, tmp_path):
    for package in ("torch", "rankfold", "onnx", "sklearn"):
        (tmp_path / f"{package}.py").write_text(f"raise ImportError('{package} is not installed here')\n")
    run = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE / "classify.py", demo[0] / "model.onnx"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    model = rebuild(classifier(), demo[0] / "model").eval()
    rows = [[int(cell) for cell in line.split(",")] for line in (EXAMPLE / "digits.csv").read_text().split()[1:]]
    taken = model(torch.tensor(rows)[:, 1:] / 16.0).argmax(1).tolist()
    said = [int(line.split("taken for a ")[1][0]) for line in run.stdout.splitlines() if "taken for" in line]
    assert said == taken
    right = sum(row[0] == digit for row, digit in zip(rows, taken, strict=True))
    assert right > 0.7 * len(rows)
    assert f"{right} of 30 right" in run.stdout


# What goes wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    rf.save(rf.tensorize_(classifier(), rf.CP(2)), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "does not say which network it holds"),
        (["--model", "rankfold.demo:classifier"], "--input"),
        (["--model", "rankfold.demo:nothing", "--input", "64"], "rankfold.demo:nothing"),
        (["--model", "rankfold.demo:classifier", "--input", "64,3"], "64,3"),
        (["--model", "rankfold.experiments.mnist:classifier", "--input", "784"], "layer3"),
        (["--model", "rankfold.demo:classifier", "--input", "65"], "expected 64 input features"),
        (["out.txt"], "out.txt"),
        (["out.pt2", "--int8"], "out.pt2"),
    ],
)
def test_wrong_requests_are_named(arguments, named, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = export(saved, *arguments)
    assert result.exit_code == 2, result.output
    assert named in " ".join(result.output.replace("│", "").split())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_without_a_model_is_named(tmp_path):
    result = export(tmp_path / "nowhere")
    assert result.exit_code == 2
    said = "".join(result.output.replace("│", "").split())  # a long path is broken anywhere
    assert "thereisnofolder" in said
    assert "nowhere" in said


def test_a_model_that_cannot_be_exported_is_an_error_of_its_own(saved, monkeypatch):
    def refuse(*arguments, **options):
        raise ExportError("no such operator")

    monkeypatch.setattr("rankfold.cli.export.export_onnx", refuse)
    result = export(saved, "--model", "rankfold.demo:classifier", "--input", "64")
    assert result.exit_code == 1
    assert "error: no such operator" in result.output


def test_without_the_extra_the_command_says_what_to_install(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setattr(
        sys, "argv", ["rankfold", "export", str(saved), "--model", "rankfold.demo:classifier", "--input", "64"]
    )
    with pytest.raises(SystemExit, match=r"needs onnxscript; .*pip install 'rankfold\[export\]'"):
        entry()
