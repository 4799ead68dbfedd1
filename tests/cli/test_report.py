import json
import shutil
import sys
import webbrowser
from pathlib import Path

import pytest
from report_pages import parse
from typer.testing import CliRunner

import rankfold as rf
from rankfold.cli import app as entry
from rankfold.cli.main import app

RESULTS = Path(__file__).parents[2] / "results" / "mnist"
RESULT = RESULTS / "ttm-ard-lu-seed0.json"
RECORD = json.loads(RESULT.read_text(encoding="utf-8"))  # results are made anew now and then
FINAL, ACCURACY = RECORD["parameters"]["final"], RECORD["metrics"]["posterior_mean"]["accuracy"]


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def copies(tmp_path):
    for row in ("dense", "ttm-ard-lu", "ttm-fr"):
        shutil.copy(RESULTS / f"{row}-seed0.json", tmp_path)
    return tmp_path


def test_the_page_is_written_beside_the_result(copies):
    result = report(copies / RESULT.name)
    assert result.exit_code == 0, result.output
    page = copies / "ttm-ard-lu-seed0.html"
    assert parse(page.read_text(encoding="utf-8")).all("h1")[0].text == "ttm-ard-lu, seed 0"
    assert (
        f"{FINAL:,} parameters, {407050 / FINAL:.0f}× smaller than dense, accuracy {100 * ACCURACY:.2f}"
        in result.output
    )
    assert {file.suffix for file in copies.iterdir()} == {".json", ".html"}  # nothing half written is left


def test_the_function_report_is_still_there_once_the_command_was_imported():
    assert "dense" in rf.report(rf.Linear(8, 6, config=rf.CP(max_rank=2)))  # a package of its name would hide it


def test_a_folder_of_results_is_a_comparison(copies):
    result = report(copies)
    assert result.exit_code == 0, result.output
    page = parse((copies / "report.html").read_text(encoding="utf-8"))
    assert [s.attributes["id"] for s in page.all("section")] == ["comparison"]
    assert f"Most accurate: ttm-ard-lu, {100 * ACCURACY:.2f}" in page.all("header")[0].text


def test_a_run_folder_gets_its_report_inside(copies):
    folder = copies / "mine"
    folder.mkdir()
    (copies / RESULT.name).rename(folder / "run.json")
    assert report(folder, copies / "dense-seed0.json").exit_code == 0
    assert "dense" in parse((folder / "report.html").read_text(encoding="utf-8")).by_id("comparison").text


def test_the_numbers_come_as_json(copies):
    out = copies / "deep" / "page.html"
    result = report(copies / RESULT.name, copies / "ttm-fr-seed0.json", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert out.exists()
    assert summary["page"] == str(out)
    assert summary["parameters"].items() >= {"dense": 407050, "training": 58564, "final": FINAL}.items()
    assert summary["times_smaller"] == pytest.approx(407050 / FINAL)
    dense = json.loads((copies / "dense-seed0.json").read_text(encoding="utf-8"))
    assert summary["accuracy"] == ACCURACY
    assert summary["dense_accuracy"] == dense["metrics"]["posterior_mean"]["accuracy"]
    assert summary["ranks"]["after"] == RECORD["ranks"]["after"]
    assert [row["row"] for row in summary["comparison"]] == ["ttm-fr", "ttm-ard-lu"]


def test_a_demonstration_has_a_calibration_diagram_and_lambdas(tmp_path):
    ran = CliRunner().invoke(app, ["demo", "--epochs", "6", "--quiet", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    result = report(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    summary, figures = json.loads(result.output), json.loads((tmp_path / "demo.json").read_text())
    assert summary["parameters"]["final"] == figures["after"]["parameters"]
    assert summary["dense_accuracy"] == figures["dense"]["accuracy"]
    page = parse((tmp_path / "report.html").read_text(encoding="utf-8"))
    titles = [figure.all("b")[0].text for figure in page.all("figure")]
    assert "Calibration, posterior mean" in titles
    assert "Calibration, 32 samples of the posterior" in titles
    assert "λ, the prior variance of each rank" in page.by_id("training").text
    assert "model/model.safetensors" in page.by_id("facts").text
    rows = [[cell.text for cell in row.children] for row in page.by_id("layers").all("tr")]
    assert [row[0] for row in rows] == ["layer", "layer1", "layer2", "layer3", "total"]


def test_a_demonstration_tells_lambda_over_training_and_where_it_ran(tmp_path):
    assert CliRunner().invoke(app, ["demo", "--epochs", "3", "--quiet", "--out", str(tmp_path)]).exit_code == 0
    assert report(tmp_path).exit_code == 0
    figures = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    page = parse((tmp_path / "report.html").read_text(encoding="utf-8"))
    for layer, ranks in figures["history"][0]["ranks"].items():
        (chart,) = (f.all("svg")[0] for f in page.all("figure") if f.text.startswith(f"{layer}each line a λ"))
        assert len(chart.all("path", "line")) == sum(ranks)
    facts = page.by_id("facts").text
    assert figures["device"]["name"] in facts
    assert figures["commit"] is None or figures["commit"]["hash"][:12] in facts
    assert "training examples1,437" in facts


def test_events_are_written_beside_the_page(copies):
    written = report(copies / RESULT.name, "--tensorboard", copies / "events")
    assert written.exit_code == 0
    assert f"TensorBoard's events are in {copies / 'events'}" in written.output
    assert len(list((copies / "events").glob("events.out.tfevents.*"))) == 1
    assert report(copies, "--tensorboard", copies / "all").exit_code == 0
    assert {folder.name for folder in (copies / "all").iterdir()} == {file.stem for file in copies.glob("*.json")}


def test_events_of_every_run_that_is_named_are_written(copies):
    """Each run has a folder of its own, whatever its file is called; one that is named twice has one."""
    for row in ("dense", "ttm-fr"):
        (copies / "runs" / row).mkdir(parents=True)
        (copies / f"{row}-seed0.json").rename(copies / "runs" / row / "run.json")
    named = (copies / RESULT.name, copies / "runs" / "dense", copies / "runs" / "ttm-fr", copies / RESULT.name)
    assert report(*named, "--tensorboard", copies / "events").exit_code == 0
    files = sorted((copies / "events").rglob("events.out.tfevents.*"))
    assert [file.parent.relative_to(copies / "events").as_posix() for file in files] == [
        "dense",
        "ttm-ard-lu-seed0",
        "ttm-fr",
    ]


def test_a_missing_tensorboardx_is_named_with_its_extra(copies, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setattr(
        sys, "argv", ["rankfold", "report", str(copies / RESULT.name), "--tensorboard", str(copies / "events")]
    )
    with pytest.raises(SystemExit) as stopped:
        entry()
    assert "pip install 'rankfold[tensorboard]'" in str(stopped.value)


def test_the_page_is_opened_on_request(copies, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert report(copies / RESULT.name, "--open").exit_code == 0
    assert opened == [(copies / "ttm-ard-lu-seed0.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "there is no nowhere"),
        ([RESULT, "--out", "page.pdf"], "the page must end in .html, got page.pdf"),
        (
            [RESULT, "--out", "/dev/null/x.html", "--tensorboard", f"{RESULT}/x"],
            f"x cannot be written ({RESULT} is a file, not a folder); choose",
        ),
        ([RESULT, "--out", f"{RESULT}/x.html"], f"x.html cannot be written ({RESULT} is a file, not a folder); choose"),
        (
            [Path(__file__)],
            "is not valid JSON: Expecting value: line 1 column 1 (char 0); name a result file, or the folder of a run",
        ),
    ],
)
def test_a_wrong_request_is_explained(arguments, complaint):
    result = report(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.replace("│", " ").split())


def test_a_damaged_run_is_named_with_a_remedy(tmp_path):
    (tmp_path / "run.json").write_text('{"table": "train"}')
    letters = "".join(report(tmp_path).output.replace("│", " ").split())  # a long path is broken anywhere
    assert "run.jsonisnorun:ithasno" in letters
    assert ";namearesultfile,orthefolderofarun" in letters
