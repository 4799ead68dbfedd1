"""``rankfold export`` from the demonstration to a file that runs without torch."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from jobs.made_up import images, lines, planted_clicks
from PIL import Image
from typer.testing import CliRunner

import rankfold as rf
from rankfold.architecture import Input, rebuild
from rankfold.cli import app as entry
from rankfold.cli.export import _load
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
    assert 4 * parameters < size < 4 * parameters + 6000
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
    assert (
        f"x.{ending} cannot be written ({tmp_path}/file is a file, not a folder); choose another place" in result.output
    )


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


def logits(folder, *inputs):
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [expected.name for expected in session.get_inputs()]
    return names, session.run(None, dict(zip(names, inputs, strict=True)))[0]


def trained_and_exported(data, tmp_path):
    """The folder of a run, what it keeps of the data, and what it predicts of them."""
    run = tmp_path / "run"
    trained = CliRunner().invoke(app, ["train", str(data), "--epochs", "2", "--quiet", "--out", str(run)])
    assert trained.exit_code == 0, trained.output
    assert export(run).exit_code == 0
    said = CliRunner().invoke(app, ["predict", str(run), str(data), "--samples", "0", "--out", "-"])
    rows = list(csv.DictReader(said.stdout.splitlines()))
    return run, json.loads((run / "preprocessing.json").read_text()), rows


def test_inputs_of_images_are_what_the_docs_say(tmp_path):
    data = images(tmp_path / "photos")
    run, prepared, rows = trained_and_exported(data, tmp_path)
    pixels = np.stack([np.asarray(Image.open(data / row["file"]), np.float32) for row in rows])[:, None]
    names, found = logits(run, (pixels - prepared["mean"][0]) / np.float32(prepared["std"][0]))
    assert names == ["images"]
    assert_probabilities(found, rows, prepared)


def test_inputs_of_texts_are_what_the_docs_say(tmp_path):
    data = lines(tmp_path / "reviews.txt")
    run, prepared, rows = trained_and_exported(data, tmp_path)
    index = {word: n for n, word in enumerate(prepared["words"], 2)}
    texts = [line.split("\t")[1].split()[-prepared["length"] :] for line in data.read_text().splitlines()]
    inputs = np.zeros((len(texts), prepared["length"]), np.int32)
    for n, text in enumerate(texts):
        inputs[n, : len(text)] = [index.get(word, 0) for word in text]
    names, found = logits(run, inputs)
    assert names == ["rows"]
    assert_probabilities(found, rows, prepared)


def test_inputs_of_clicks_are_what_the_docs_say(tmp_path):
    data = planted_clicks(tmp_path / "clicks.tsv", 200)
    run, prepared, rows = trained_and_exported(data, tmp_path)
    fields = [line.split("\t") for line in data.read_text().splitlines()]
    numbers = np.log1p([[max(0, int(field or 0)) for field in line[1:14]] for line in fields]).astype(np.float32)
    places = [dict(zip(*pair, strict=True)) for pair in zip(prepared["tokens"], prepared["rows"], strict=True)]
    categories = [
        [places[n].get(int(field or "0", 16), prepared["shared"][n]) for n, field in enumerate(line[14:])]
        for line in fields
    ]
    names, found = logits(run, numbers, np.array(categories, np.int32))
    assert names == ["numbers", "categories"]
    expected = [float(row["probability_1"]) for row in rows]
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), expected, rtol=1e-4)


def assert_probabilities(found, rows, prepared):
    shares = np.exp(found) / np.exp(found).sum(1, keepdims=True)
    for n, name in enumerate(prepared["target"]["names"]):
        np.testing.assert_allclose(shares[:, n], [float(row[f"probability_{name}"]) for row in rows], rtol=1e-4)


def test_what_changes_nothing_is_told(tmp_path):
    rf.save(rf.tensorize_(classifier(), rf.TTM(1)), tmp_path / "small")
    of = ("--model", "rankfold.demo:classifier", "--input", "64")
    small = export(tmp_path / "small", tmp_path / "a.onnx", *of, "--int8", "--layout", "halves")
    assert "No matrix or factor has 128 entries or more: --int8 has changed nothing." in small.output
    assert "--layout halves has changed nothing." in small.output
    rf.save(rf.tensorize_(classifier(), rf.TT(6)), tmp_path / "large")
    large = export(tmp_path / "large", tmp_path / "b.onnx", *of, "--int8", "--layout", "halves", "--json")
    assert json.loads(large.output)["notes"] == []


def test_a_network_in_the_current_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    rf.save(rf.tensorize_(classifier(), rf.CP(2)), tmp_path / "saved")
    (tmp_path / "my_own_nets.py").write_text("from rankfold.demo import classifier\n")
    result = export("saved", "--model", "my_own_nets:classifier", "--input", "64")
    assert result.exit_code == 0, result.output
    assert "installed or on PYTHONPATH, or it lies in the current folder" in " ".join(
        export("--help").output.replace("│", " ").split()
    )


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
        (
            ["--model", "rankfold.demo:classifier", "--input", "65"],
            "name the shape of one example, without the batch, for every input, indices as --input 10:int64",
        ),
        (
            ["--model", "rankfold.models.mlp:ImageMLP", "--input", "64"],
            "rankfold.models.mlp:ImageMLP() failed (TypeError: ",
        ),
        (["--model", "builtins:dict", "--input", "64"], "builtins:dict() makes dict, expected a torch module; name a"),
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


def test_inputs_that_a_run_does_not_have_are_refused_with_those_it_has(demo):
    result = export(demo[0], "--input", "784")
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", "").split())
    assert "rankfold.demo:classifier makes a network that cannot be called with --input 784 (" in said
    assert "); leave --input out: the network was trained with --input 64" in said


def test_a_folder_without_a_model_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "norankfoldcheckpointat" in "".join(export(tmp_path / "empty").output.replace("│", "").split())
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


@pytest.mark.parametrize(("rows", "below"), [(5000, 1000), (40, 10), (7, 2)])
def test_a_file_is_checked_with_indices_that_its_tables_have(rows, below, tmp_path, monkeypatch):
    (tmp_path / "lookup.py").write_text(
        f"import torch\n\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Embedding({rows}, 6))\n"
    )
    monkeypatch.chdir(tmp_path)
    model = rf.tensorize_(torch.nn.Sequential(torch.nn.Embedding(rows, 6)), None, overrides={"0": rf.CP(1)})
    rf.save(model, tmp_path / "model")
    _, (example,) = _load(tmp_path / "model", "lookup:net", [Input((50,), "int64")])
    assert 0.5 * below <= example.max() + 1 <= below
    sys.modules.pop("lookup")
