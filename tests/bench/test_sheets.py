"""The tables say what the record says, and what follows from it."""

import json
from dataclasses import asdict

import benchmark_sections
import pytest
import torch

from rankfold.bench import peers
from rankfold.bench.cases import FORMATS, Sizes, all_cases, linear_cases
from rankfold.bench.ceilings import Ceilings
from rankfold.bench.contender import BAYESIAN, DENSE, FIXED
from rankfold.bench.layers import Row
from rankfold.bench.measure import Timing
from rankfold.bench.sheets import sheets

MANY_ROWS = "Embedding 10,131,227 × 128, 65,536 rows, skewed"


def timing(ms):
    return Timing(ms, 0.9 * ms, 1.1 * ms, 5)


def record(rows, bench="embedding", device="NVIDIA H200"):
    """As it comes back from a file."""
    rows = [row if isinstance(row, dict) else asdict(row) for row in rows]
    return json.loads(json.dumps({"bench": bench, "device": {"name": device}, "rows": rows}))


def cells(grid):
    """Every row as a dictionary, by format and library."""
    return {(line[0], line[1]): dict(zip(grid.headings, line, strict=True)) for line in grid.rows}


def test_times_floors_and_peers_of_a_layer():
    ours = Row(MANY_ROWS, FIXED, "TTM", 270_080, timing(0.2), timing(0.6), 2**25)
    graph = Row(**{**vars(ours), "library": BAYESIAN, "forward_backward_graph": timing(0.3), "floor_ms": 0.05})
    (grid,) = sheets(record([ours, graph, Row(MANY_ROWS, DENSE, "dense", note="too large")]))
    found = cells(grid)
    assert found["TTM", FIXED]["forward + backward, ms"] == "0.600 [0.540 – 0.660]"
    assert found["TTM", FIXED]["memory, MiB"] == "32.0"
    assert found["TTM", FIXED]["fastest peer, ms"] == f"2.64 ({peers.AUTHORS})"
    assert found["TTM", BAYESIAN]["over floor"] == "6.0×"  # the graph is the faster one
    assert "graph: forward, ms" not in grid.headings  # nobody has one
    assert next(iter(found)) == ("dense", DENSE)
    assert grid.notes == (f"{DENSE}, dense: too large",)


def test_peers_are_shown_beside_the_same_device_alone():
    row = Row(MANY_ROWS, FIXED, "TTM", 270_080, timing(0.2), timing(0.6), 2**25)
    (elsewhere,) = sheets(record([row], device="NVIDIA A100-SXM4-80GB"))
    assert not any("peer" in heading for heading in elsewhere.headings)


def test_every_peer_figure_belongs_to_a_case_and_format():
    sizes = Sizes.for_device(torch.device("cuda"))
    names = {case.name for case in all_cases(sizes, dense_table=True)}
    assert {figure.case for figure in peers.FIGURES} <= names
    assert {figure.format for figure in peers.FIGURES} == {"dense", *FORMATS}


def test_tf32_is_not_compared_with_peers():
    names = [case.name for case in linear_cases(Sizes(4096, 1), tf32=True)]
    assert [peers.fastest(name, "CP") is None for name in names] == [False, False, False, True, True]
    assert peers.smallest(MANY_ROWS, "TTM").peer == peers.FBTT


def test_a_bayesian_step_over_the_fixed_rank_step():
    def row(library, format, step, graph=None):
        timings = {"step": asdict(timing(step)), "step_graph": graph and asdict(timing(graph))}
        return {"case": "step", "library": library, "format": format, "parameters": 5, "launches": 7, **timings}

    rows = [row(DENSE, "dense", 1.0), row(FIXED, "CP", 2.0, 0.5), row(BAYESIAN, "CP", 3.0, 0.6)]
    (grid,) = sheets(record(rows, "step"))
    assert cells(grid)["CP", BAYESIAN]["over fixed rank"] == "1.20×"
    assert cells(grid)["CP", FIXED]["over fixed rank"] == "–"


def test_an_answer_beside_the_dense_one_of_the_same_runtime():
    def row(library, format, layout, ms):
        return {"case": "c", "library": library, "format": format, "layout": layout, "answer": ms and vars(timing(ms))}

    rows = [
        row("onnxruntime", "dense", "dense", 0.030),
        row("torch", "dense", "dense", 0.060),
        row("onnxruntime", "TT", "halves", 0.010),
        {**row("torch.compile", "TT", "halves", None), "note": "fails"},
    ]
    (grid,) = sheets(record(rows, "inference"), quartiles=False)
    assert cells(grid)["TT", "onnxruntime, halves"] == {
        "format": "TT",
        "layer": "onnxruntime, halves",
        "answer, µs": "10.0",
        "faster than dense": "3.00×",
    }
    assert grid.notes == ("torch.compile, halves, TT: fails",)


@pytest.mark.parametrize("file", ["layers-cpu.json", "linear-h200.json"])
def test_records_of_older_runs_can_be_read(file, request):
    kept = json.loads((request.config.rootpath / "benchmarks" / file).read_text())
    shown = "\n".join(" ".join(line) for grid in sheets(kept, quartiles=False) for line in grid.rows)
    assert all(f"{row['parameters']:,}" in shown for row in kept["rows"] if row["parameters"])


def test_the_page_shows_the_figures_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark_sections, "ROOT", tmp_path)
    assert "rankfold bench embedding --device cuda" in benchmark_sections.benchmark("embedding")
    row = Row(MANY_ROWS, FIXED, "TTM", 270_080, timing(0.2), timing(0.6), 2**25, floor_ms=0.05)
    kept = record([row]) | {"versions": {"torch": "2.x"}, "ceilings": asdict(Ceilings(4.3e12, 66e12, 400e12))}
    kept["device"] |= {"type": "cuda", "threads": 1}
    kept["repeat"] = 20
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "embedding-h200.json").write_text(json.dumps(kept))
    page = benchmark_sections.benchmark("embedding")
    for shown in (
        "```sh\nrankfold bench embedding --device cuda --repeat 20\n```",
        "NVIDIA H200, torch 2.x",
        "4,300 GB/s, 66.00 TFLOP/s, 400 TFLOP/s with TF32",
        "0.600",
        "12.0×",
        "2.64",
    ):
        assert shown in page


def test_steps_say_how_long_an_epoch_takes_and_what_their_kernels_do():
    step = {"case": "Step", "library": FIXED, "format": "TT", "parameters": 10, "step": asdict(timing(2.0))}
    fixed = step | {
        "steps_per_epoch": 468,
        "step_graph": asdict(timing(0.5)),
        "kernels": {"products": 3.0, "Adam": 1.5},
    }
    bayesian = fixed | {"library": BAYESIAN, "kernels": {"products": 3.0, "rows, KL and moments": 1.0}}
    steps, kernels = sheets(record([fixed, bayesian], bench="step"))
    assert cells(steps)["TT", FIXED]["epoch, s"] == "0.23"  # 468 of the faster one
    assert cells(kernels)["TT", BAYESIAN] | {"format": "", "layer": ""} == {
        "format": "", "layer": "", "rows, KL and moments": "1.0", "Adam": "–", "products": "3.0", "all": "4.0"
    }  # fmt: skip
    (alone,) = sheets(record([step], bench="step"))
    assert "epoch, s" not in alone.headings
