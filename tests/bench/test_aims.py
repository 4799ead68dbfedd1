"""Aims beside the records that are kept."""

import json
from pathlib import Path

import pytest

from rankfold.bench.aims import _reached, aims
from rankfold.bench.peers import smallest

FOLDER = Path(__file__).parents[2] / "benchmarks"
ROWS = "Embedding 10,131,227 × 128"


@pytest.fixture
def records():
    names = ("embedding", "linear", "step")
    return {name: json.loads((FOLDER / f"{name}-h200.json").read_text(encoding="utf-8")) for name in names}


def line(records, work, format):
    grid = aims(records)
    (cells,) = (row for row in grid.rows if row[:2] == (work, format))
    return dict(zip(grid.headings, cells, strict=True))


def test_the_worse_of_uniform_and_skewed_counts(records):
    rows = [r for r in records["embedding"]["rows"] if "65,536" in r["case"] and r["format"] == "TT"]
    for row in rows:
        if row["library"].endswith("fixed rank"):
            row["forward_backward_graph"]["median_ms"] = 0.7 if "skewed" in row["case"] else 0.3
    found = line(records, "65,536 rows", "TT")
    assert (found["in a graph"], found["bar"], found["reached"]) == ("0.70", "1.00", "bar")


def test_a_bayesian_step_is_compared_with_that_of_fixed_rank(records):
    for row in records["step"]["rows"]:
        if row["format"] == "CP" and "MNIST" in row["case"]:
            row["step_graph"]["median_ms"] = 0.8 if row["library"].endswith("Bayesian") else 0.5
    found = line(records, "Bayesian over fixed rank", "CP")
    assert (found["in a graph"], found["reached"]) == ("1.60×", "no")


def test_memory_is_that_of_a_call_as_it_is_beside_the_smallest_peer_of_its_format(records):
    for row in records["embedding"]["rows"]:
        if "65,536" in row["case"] and row["library"].endswith("fixed rank"):
            row["extra_bytes"] = (60 if "skewed" in row["case"] else 30) * 2**20
    found = {format: line(records, "65,536 rows, memory", format) for format in ("CP", "Tucker", "TT", "TTM")}
    assert {name: cells["best peer"] for name, cells in found.items()} == {
        name: f"{smallest(f'{ROWS}, 65,536 rows, skewed', name).extra_mib:,} MiB" for name in found
    }
    assert len({cells["best peer"] for cells in found.values()}) == 4
    assert {(cells["in a graph"], cells["as it is"], cells["reached"]) for cells in found.values()} == {
        ("–", "60 MiB", "bar")
    }


@pytest.mark.parametrize(
    ("found", "further", "verdict"),
    [(1.0, 0.4, "goal"), (1.0, 0.6, "bar"), (3.0, 0.4, "goal in a graph, bar missed"), (3.0, 0.6, "no")],
)
def test_verdicts(found, further, verdict):
    assert _reached(found, 2.0, further, 0.5) == verdict
