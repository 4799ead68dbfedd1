"""The bytes of data-parallel training: the model against a ring played through, the page against its figures."""

import json
from pathlib import Path

import pytest
import torch

import rankfold as rf
from rankfold.bench import allreduce
from rankfold.bench.allreduce import DIM, MAX_RANK, ROWS, Tables, page_section, record, ring

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_ring_sends_what_a_ring_played_through_sends(workers):
    values = [torch.randn(workers, 6, dtype=torch.float64) for _ in range(workers)]  # a chunk for each worker
    total, sent = sum(values), 0
    held = [value.clone() for value in values]
    for phase in range(2):  # first sums travel round, then results
        for turn in range(workers - 1):
            chunks = [(worker - turn + phase) % workers for worker in range(workers)]
            moving = [held[worker][chunk].clone() for worker, chunk in enumerate(chunks)]
            for worker, chunk in enumerate(chunks):
                target = held[(worker + 1) % workers]
                target[chunk] = moving[worker] if phase else target[chunk] + moving[worker]
                sent += moving[worker].nbytes
    for value in held:
        torch.testing.assert_close(value, total)
    assert sent / workers == pytest.approx(ring(values[0].nbytes, workers))


def test_the_page_shows_the_figures_of_the_file():
    figures = json.loads((ROOT / "benchmarks" / "allreduce.json").read_text())
    page = (ROOT / "docs" / "explanation" / "distributed.md").read_text()
    assert page_section(figures) in page
    measured = figures["measured"]
    again = record({"dense_small": measured["dense_small"]["bytes"], "tensorized": measured["tensorized"]["bytes"]})
    assert json.loads(json.dumps(again["modelled"])) == figures["modelled"]


def test_what_was_measured_is_every_byte_of_the_gradients():
    measured = json.loads((ROOT / "benchmarks" / "allreduce.json").read_text())["measured"]
    assert measured["dense_small"]["bytes"] == 4 * measured["dense_small"]["parameters"]
    with torch.device("meta"):
        tables = Tables(ROWS)
    assert sum(p.numel() for p in tables.parameters()) == sum(ROWS) * DIM == 4_248_739_968
    tensorized = rf.tensorize_(tables, rf.TTM(max_rank=MAX_RANK))
    assert measured["tensorized"]["bytes"] == 4 * sum(p.numel() for p in tensorized.parameters())


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--json", "unmarked.md/x.json", "unmarked.md is a file, not a folder); choose another place"),
        ("--json", "/proc/x", "cannot be written"),
        ("--json", ".", "is a folder"),
        ("--page", "nowhere.md", "cannot read"),
        ("--page", "unmarked.md", "has no section"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_measuring(option, value, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "unmarked.md").write_text("# A page\n")
    monkeypatch.setattr(allreduce, "spawn", lambda *_, **__: pytest.fail("measured"))
    monkeypatch.setattr("sys.argv", ["allreduce", option, str(tmp_path / value)])
    with pytest.raises(SystemExit) as stopped:
        allreduce.main()
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert printed.count("\n") == 1
    assert said in printed
    assert str(tmp_path / value) in printed


def test_the_page_says_what_the_figures_depend_on():
    figures = record({"dense_small": 4_000, "tensorized": 400})
    figures["settings"] |= {"batch_per_worker": 77, "max_rank": 5, "dim": 33}
    first = page_section(figures).splitlines()[0]
    assert all(part in first for part in ("77 examples", "rank 5", "33 wide"))


def test_without_a_file_the_tables_are_printed(monkeypatch, capsys):
    measured = {"dense_small": 4_000, "tensorized": 400}
    monkeypatch.setattr(allreduce, "spawn", lambda work, arguments, nprocs: save(arguments[0], measured))
    monkeypatch.setattr("sys.argv", ["allreduce"])
    allreduce.main()
    assert capsys.readouterr().out.strip() == page_section(record(measured)).strip()


def save(folder, measured):
    Path(folder, "0").write_text(json.dumps(measured))
