"""The table is made of the results, and the README's of the table."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from rankfold.cli.main import app
from rankfold.experiments.clicks import pack_scores
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places, write_record
from rankfold.experiments.spec import read_rows
from rankfold.experiments.summary import summarize
from rankfold.experiments.tables import brief_grid, grids
from rankfold.grids import Grid, render, with_section, write_between_markers

ROOT = Path(__file__).parents[2]
REQUEST = Request("mnist")


@pytest.fixture
def places(tmp_path):
    return Places(ROOT / "experiments", tmp_path / "results")


def leave_result(places, row, seed, *, accuracy, final, nll=0.1, monte_carlo=None, request=REQUEST):
    run = request.run(row, read_rows(places.experiments / request.table)[row], seed)
    scores = {"accuracy": accuracy, "nll_nats": nll, "ece": 0.02, "brier": 0.03, "auroc_entropy": 0.95}
    metrics = {"posterior_mean": scores}
    if monte_carlo:
        metrics["monte_carlo"] = {**scores, "auroc_mutual_information": 0.98, **monte_carlo}
    result = {
        "table": request.table,
        "row": row,
        "spec": run.spec.as_dict(),
        "ranks": {},
        "parameters": {"dense": 407_050, "training": 17_344, "final": final},
        "metrics": metrics,
        "history": [],
    }
    write_record(run.file(places), result)


def lines_of(places, style="text"):
    return render(grids(summarize(REQUEST, places)), style).splitlines()


def test_numbers_stand_beside_the_paper_s(places):
    for seed, (accuracy, final) in enumerate(((0.98, 6000), (0.982, 6400), (0.984, 6200))):
        leave_result(places, "cp-ard-lu", seed, accuracy=accuracy, final=final)
    row = next(line for line in lines_of(places) if line.startswith("CP") and "ARD-LU " in line and "17,344" in line)
    shown = " ".join(row.split())
    assert shown == "CP ARD-LU 17,344 6,200 ± 200 65.7× 98.20 ± 0.20 3 17,344 7,175 98.06"


def test_all_29_rows_are_there_before_any_result(places):
    lines = lines_of(places)
    assert sum(line.startswith(("CP", "Tucker", "TT", "TTM")) or " dense " in line for line in lines) == 29
    assert any("343,664¹" in line for line in lines)
    assert any(line.startswith("¹ training parameters printed as 343,644") for line in lines)
    assert not any("Targets" in line for line in lines)


def test_quick_results_are_not_held_against_targets_of_full_training(places):
    quick = Request("mnist", quick=True)
    leave_result(quick.places(places), "cp-ard-lu", 0, accuracy=0.9811, final=6000, request=quick)
    summary = summarize(quick, places)
    assert sum(len(row.results) for row in summary.rows) == 1
    assert summary.targets == ()


@pytest.mark.parametrize("variant", [{"quick": True}, {"validation": True}, {"quick": True, "validation": True}])
def test_results_that_were_kept_apart_are_pointed_out(variant, places, monkeypatch):
    # typer reads TERMINAL_WIDTH once, when another test may have set it to less
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)

    def run(results, *options):
        arguments = ["table", "mnist", "--experiments", places.experiments, "--results", results, *options]
        return CliRunner(env={"COLUMNS": "1000"}).invoke(app, [str(a) for a in arguments])

    def noted(*options, results=places.results):
        result = run(results, *options)
        assert result.exit_code == 2
        assert result.stdout == ""  # no table of dashes
        return result.stderr

    options, apart = [f"--{name}" for name in variant], "-".join(variant)
    experiments = f"--experiments {places.experiments}"
    nothing = f"error: there are no results in {places.results}"
    assert noted() == (
        f"{nothing}/mnist; make some with `rankfold reproduce mnist {experiments} --results {places.results}`, or give "
        "with --results the folder mnist is in\n"
    )
    assert noted(*options) == (
        f"{nothing}/{apart}/mnist; make some with `rankfold reproduce mnist {' '.join(options)} {experiments} "
        f"--results {places.results}`, or give with --results the folder {apart}/mnist is in\n"
    )
    request = Request("mnist", **variant)
    leave_result(request.places(places), "cp-ard-lu", 0, accuracy=0.98, final=100, request=request)
    folder = places.results / apart / "mnist"
    command = f"`rankfold table mnist {' '.join(options)} {experiments} --results {places.results}`"
    assert noted() == f"{nothing}/mnist; those in {folder} are shown by {command}\n"
    shown = run(places.results, *options)
    assert (shown.exit_code, shown.stderr) == (0, "")
    # the folder of a variant itself: its results are no damaged ones of full training
    assert noted(*options, results=folder.parent).endswith(f"/mnist; those in {folder} are shown by {command}\n")
    refused = run(folder.parent)
    assert refused.exit_code == 2
    assert f"but if it is one of {' '.join(options)}, give {command}" in refused.output


@pytest.mark.parametrize("options", [[], ["--quick"]])
def test_results_of_other_data_are_pointed_out(options, places):
    request = Request("mnist", quick=bool(options), edition="mine-1a2b3c4d")
    leave_result(request.places(places), "cp-ard-lu", 0, accuracy=0.98, final=100, request=request)
    pointing = CliRunner().invoke(
        app, ["table", "mnist", "--experiments", str(places.experiments), "--results", str(places.results), *options]
    )
    assert pointing.exit_code == 2
    words = shlex.split(pointing.stderr.split("`")[1])
    assert words[:2] == ["rankfold", "table"]
    shown = CliRunner().invoke(app, words[1:])
    assert shown.exit_code == 0
    assert "98.00" in shown.stdout


@pytest.mark.parametrize(("rows", "said"), [(19_592, True), (6_548_660, False)])
def test_what_is_said_of_the_sample_of_clicks_is_not_said_of_other_data(rows, said, places):
    request = Request("dlrm")
    leave_result(places, "ttm-fr", 0, accuracy=0.77, final=100, request=request)
    file = places.results / "dlrm" / "ttm-fr-seed0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data": {"num_evaluation": rows, "verified": True}}))
    arguments = ["table", "dlrm", "--experiments", str(places.experiments), "--results", str(places.results)]
    assert ("note: the published sample has 0.3 %" in CliRunner().invoke(app, arguments).stderr) == said


def test_targets_are_met_or_missed(places):
    good = {"ece": 0.005, "nll_nats": 0.07}
    leave_result(places, "cp-fr", 0, accuracy=0.97, final=8622, nll=0.1)
    leave_result(places, "cp-ard-lu", 0, accuracy=0.9811, final=6000, monte_carlo=good)
    leave_result(places, "cp-ard-hc", 0, accuracy=0.9809, final=3000, monte_carlo={"ece": 0.011, "nll_nats": 0.0751})
    verdicts = {(t.row, t.wanted): t.met for t in summarize(REQUEST, places).targets}
    assert verdicts == {
        ("cp-ard-lu", "bar: ≥ 98.1 % at ≤ 6,800"): True,
        ("cp-ard-lu", "goal: ≥ 98.1 % at ≤ 3,600"): False,
        ("cp-ard-lu", "posterior mean: ECE ≤ 0.01"): False,
        ("cp-ard-lu", "posterior mean: NLL ≤ 0.0750"): False,
        ("cp-ard-lu", "Monte Carlo: ECE ≤ 0.01"): True,
        ("cp-ard-lu", "Monte Carlo: NLL ≤ 0.0750"): True,
        ("cp-ard-lu", "Monte Carlo: AUROC ≥ 0.97"): True,
        ("cp-ard-hc", "bar: ≥ 98.1 % at ≤ 6,800"): False,
        ("cp-ard-hc", "goal: ≥ 98.1 % at ≤ 3,600"): False,
        ("cp-ard-hc", "posterior mean: ECE ≤ 0.01"): False,
        ("cp-ard-hc", "posterior mean: NLL ≤ 0.0750"): False,
        ("cp-ard-hc", "Monte Carlo: ECE ≤ 0.01"): False,
        ("cp-ard-hc", "Monte Carlo: NLL ≤ 0.0750"): False,
        ("cp-ard-hc", "Monte Carlo: AUROC ≥ 0.97"): True,
    }
    assert any(line.startswith("cp-ard-lu") and line.endswith(" missed") for line in lines_of(places))


@pytest.mark.parametrize(("dense", "bar", "met"), [(0.92, 92.32, True), (0.9264, 92.46, False)])
def test_a_better_dense_network_lifts_the_accuracies_wanted_beside_it(places, dense, bar, met):
    request = Request("cifar10")
    leave_result(places, "dense", 0, accuracy=dense, final=13_937_226, request=request)
    leave_result(places, "cp-ard-lu", 0, accuracy=0.9240, final=260_000, request=request)
    verdicts = {(t.row, t.wanted): t.met for t in summarize(request, places).targets}
    assert verdicts == {
        ("dense", "≥ 92.5 %"): dense >= 0.925,
        ("cp-ard-lu", f"bar: ≥ {bar} % at ≤ 563,036"): met,
        ("cp-ard-lu", f"goal: ≥ {bar - 0.82:g} % at ≤ 278,830"): True,
    }


@pytest.mark.parametrize(("accuracy", "found", "met"), [(0.8951, "0.49 %", True), (0.8949, "0.51 %", False)])
def test_an_accuracy_may_be_so_much_below_the_dense_one(places, accuracy, found, met):
    request = Request("ngram")
    leave_result(places, "dense", 0, accuracy=0.9, final=1_296_797_056, request=request)
    leave_result(places, "cp-ard-lu", 0, accuracy=accuracy, final=10_000, request=request)
    (target,) = summarize(request, places).targets
    assert (target.row, target.found, target.met) == ("cp-ard-lu", found, met)
    assert target.wanted == "accuracy at most 0.5 % below that of dense"


def test_ranks_of_several_layers_are_told_apart(places):
    request = Request("dlrm-planted")
    spec = read_rows(places.experiments / "dlrm-planted")["tt-ard-lu"]
    run = request.run("tt-ard-lu", spec, 0)
    scores = {"accuracy": 0.8, "auc": 0.81, "nll_nats": 0.4}
    result = {
        "table": "dlrm-planted",
        "row": "tt-ard-lu",
        "spec": run.spec.as_dict(),
        "ranks": {"after": {"tables.2": [15, 9, 16], "tables.3": [4, 5, 4]}},
        "data": {"planted": {"ranks": {"tables.2": [4], "tables.3": [4]}}},
        "parameters": {"dense": 4248739968, "training": 2271864, "final": 281937},
        "metrics": {"posterior_mean": scores, "planted": scores},
        "history": [],
    }
    write_record(run.file(places), result)
    lines = [" ".join(line.split()) for line in render(grids(summarize(request, places)), "text").splitlines()]
    assert "TT ARD-LU 4, 4 15·9·16, 4·5·4" in lines


def test_planted_ranks_stand_beside_the_ranks_that_were_found(places):
    request = Request("synthetic")
    specs = read_rows(places.experiments / "synthetic")
    found = {
        "cp-ard-lu": {0: [5], 2: [5]},
        "tt-ard-lu": {2: [5, 6], 3: [7, 6]},
        "tt-ard-hc": {0: [5, 5], 2: [5, 8]},
    }
    for row, by_seed in found.items():
        for seed, ranks in by_seed.items():
            run = request.run(row, specs[row], seed)
            scores = {"accuracy": 0.9, "nll_nats": 0.2, "ece": 0.02, "brier": 0.03, "auroc_entropy": None}
            result = {
                "table": "synthetic",
                "row": row,
                "spec": run.spec.as_dict(),
                "ranks": {"after": {"layer": ranks}},
                "data": {"planted": {"ranks": {"layer": [5] * len(ranks)}}},
                "parameters": {"dense": 7850, "training": 1350, "final": 340},
                "metrics": {"posterior_mean": scores},
                "history": [],
            }
            write_record(run.file(places), result)
    summary = summarize(request, places)
    lines = [" ".join(line.split()) for line in render(grids(summary), "text").splitlines()]
    assert "format method planted seed 0 seed 2 seed 3" in lines
    assert "CP ARD-LU 5 5 5 –" in lines
    assert "TT ARD-LU 5·5 – 5·6 7·6" in lines
    assert {t.row: t.met for t in summary.targets} == {"cp-ard-lu": True, "tt-ard-lu": True, "tt-ard-hc": False}


def test_text_and_markdown_have_the_same_cells():
    grid = Grid("title", ("row", "n"), (("dense", "407,050"), ("cp", "8,622")), labels=1, notes=("¹ note",))
    text, markdown = (render([grid], style) for style in ("text", "markdown"))
    assert text.splitlines() == [
        "title",
        "",
        "row          n",
        "-----  -------",
        "dense  407,050",
        "cp       8,622",
        "",
        "¹ note",
    ]
    assert markdown.splitlines()[2:6] == [
        "| row   |       n |",
        "| ----- | ------: |",
        "| dense | 407,050 |",
        "| cp    |   8,622 |",
    ]


def test_every_note_is_a_paragraph_of_its_own_in_markdown():
    grid = Grid("", ("row", "n"), (("dense", "1"),), labels=1, notes=("¹ one", "² two"))
    assert render([grid], "markdown").endswith("|\n\n¹ one\n\n² two")
    assert render([grid], "text").endswith("\n\n¹ one\n² two")


def test_only_the_marked_section_is_replaced(tmp_path):
    file = tmp_path / "README.md"
    file.write_text("before\n<!-- t: begin, generated -->\nold\n<!-- t: end -->\nafter\n")
    assert write_between_markers(file, "t", "new")
    assert file.read_text() == "before\n<!-- t: begin, generated -->\n\nnew\n\n<!-- t: end -->\nafter\n"
    assert not write_between_markers(file, "t", "new")


@pytest.mark.parametrize("document", ["nothing", "<!-- t: end -->\n<!-- t: begin, generated -->"])
def test_missing_markers_are_asked_for(document):
    with pytest.raises(ValueError, match=r"README\.md has no section for the table; add these two lines"):
        with_section(document, "t", "new", "README.md")


def test_the_readme_shows_the_main_results():
    summary = summarize(REQUEST, Places(ROOT / "experiments", ROOT / "results"))
    text = render([brief_grid(summary)], "markdown")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    up_to_date = with_section(readme, "table mnist", text, "README.md") == readme
    assert up_to_date, "run: rankfold table mnist --brief --write README.md"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "results").glob("*.md")), ids=lambda page: page.stem)
def test_pages_of_results_show_the_results_there_are(page):
    text = page.read_text(encoding="utf-8")
    tables = re.findall(r"<!-- table ([\w-]+): begin, generated -->", text)
    assert tables
    for table in tables:
        grid = render(grids(summarize(Request(table), Places(ROOT / "experiments", ROOT / "results"))), "markdown")
        up_to_date = with_section(text, f"table {table}", grid, page.name) == text
        assert up_to_date, f"run: rankfold table {table} --write {page.relative_to(ROOT)}"


def test_auc_targets_come_from_a_paired_bootstrap_of_the_stored_scores(places):
    request = Request("dlrm")
    specs = read_rows(places.experiments / "dlrm")
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(400, generator=generator) < 0.5
    signal = labels.double() + torch.randn(400, generator=generator, dtype=torch.double)
    noise = torch.randn(400, generator=generator, dtype=torch.double)
    scores = {"ttm-fr": signal, "ttm-ard-lu": signal + 0.1, "ttm-ard-hc": signal + 3 * noise}
    for row, logits in scores.items():
        run = request.run(row, specs[row], 0)
        probabilities = torch.sigmoid(logits)
        result = {
            "table": "dlrm",
            "row": row,
            "spec": run.spec.as_dict(),
            "ranks": {},
            "parameters": {"dense": 10**9, "training": 10**6, "final": 200_000},
            "metrics": {
                "posterior_mean": {"accuracy": 0.7, "auc": 0.75, "nll_nats": 0.5},
                "scores": pack_scores(probabilities, labels),
            },
            "history": [],
        }
        write_record(run.file(places), result)
    summary = summarize(request, places)
    verdicts = {(t.row, t.wanted): t.met for t in summary.targets}
    assert verdicts[("ttm-ard-lu", "bar: ≤ 226,009 parameters")]
    assert verdicts[("ttm-ard-lu", "AUC not below that of ttm-fr")]
    assert not verdicts[("ttm-ard-hc", "AUC not below that of ttm-fr")]
    uncertainty = next(grid for grid in grids(summary) if grid.title.startswith("Uncertainty"))
    assert uncertainty.headings == ("format", "method", "prediction", "AUC", "NLL")


@pytest.mark.parametrize(
    ("seeds", "others", "paired"), [([0, 1], [1, 2], [1]), ([2, 1, 0], [2, 0], [0, 2]), ([0], [1], [])]
)
def test_auc_targets_pair_results_by_their_seed(seeds, others, paired, places, monkeypatch):
    def compare(first, second):
        compared.append([[result["spec"]["seed"] for result in row] for row in (first, second)])
        return SimpleNamespace(difference=0.0, low=-0.1, high=0.1)

    compared = []
    monkeypatch.setattr("rankfold.experiments.summary.compare", compare)
    request = Request("dlrm")
    for row, of_row in (("ttm-ard-lu", seeds), ("ttm-fr", others)):
        for seed in of_row:
            leave_result(places, row, seed, accuracy=0.77, final=200_000, request=request)
    wanted = [target.wanted for target in summarize(request, places).targets]
    assert compared == ([[paired, paired]] if paired else [])
    assert ("AUC not below that of ttm-fr" in wanted) == bool(paired)
