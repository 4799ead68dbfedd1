"""The benchmark measures what it says it measures."""

import io
import json
import os
import time
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest
import tensorly
import torch
from rich.console import Console
from typer.testing import CliRunner

from rankfold.bench import tensorly_peer
from rankfold.bench.cases import Sizes, all_cases, conv_case, embedding_case
from rankfold.bench.ceilings import Ceilings
from rankfold.bench.contender import DENSE, FIXED, TENSORLY, Case, Contender
from rankfold.bench.layers import Row, run_case, speedups
from rankfold.bench.measure import Timing, peak_memory, share_of_cores, time_calls
from rankfold.bench.sheets import sheets
from rankfold.cli.bench_run import FILE_WIDTH
from rankfold.cli.bench_table import record_tables
from rankfold.cli.main import app

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def backend():
    """tensorly-torch sets tensorly's backend for the whole process; other tests want theirs back."""
    before = tensorly.get_backend()
    yield
    tensorly.set_backend(before)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Figures that nobody named a file for are written below the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    """Measuring what this machine can do takes half a second, and is tested once."""
    monkeypatch.setattr("rankfold.cli.bench_run.measure_ceilings", lambda device: Ceilings(1e10, 1e11))


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Whatever runs beside the tests."""
    monkeypatch.setattr("rankfold.cli.bench_run.share_of_cores", lambda: 1.0)


def run_bench(*options, name="layers"):
    return CliRunner().invoke(app, ["bench", name, *options], env={"COLUMNS": "160"})


def test_calls_take_turns_and_slow_ones_look_slow():
    order = []

    def call(name, seconds):
        return lambda: (order.append(name), time.sleep(seconds))

    timings = time_calls({"slow": call("slow", 0.02), "fast": call("fast", 0.002)}, CPU, repeat=4)
    assert order[:4] == ["slow"] * 2 + ["fast"] * 2
    rounds = [tuple(order[n : n + 2]) for n in range(4, 12, 2)]
    assert set(rounds) == {("slow", "fast"), ("fast", "slow")}  # nobody always has the same one before
    assert timings["slow"].median_ms >= 20.0 > timings["fast"].median_ms >= 2.0
    assert timings["slow"].lower_ms <= timings["slow"].median_ms <= timings["slow"].upper_ms
    assert timings["slow"].rounds == 4


def test_short_calls_are_timed_several_in_a_row_and_long_ones_alone():
    calls = []

    def call(name, seconds):
        return lambda: (calls.append(name), time.sleep(seconds))

    timings = time_calls({"long": call("long", 0.03), "short": call("short", 0.001)}, CPU, repeat=4, in_a_row=5)
    # two to warm up, one to see how long it takes, and the rounds
    assert (calls.count("long"), calls.count("short")) == (2 + 1 + 4, 2 + 1 + 4 * 5)
    assert timings["long"].median_ms >= 30.0
    assert 1.0 <= timings["short"].median_ms < 5.0


def test_torch_gets_at_most_all_of_its_cores():
    assert 0.0 < share_of_cores(0.02) < 1.2  # clocks are not that fine


@pytest.mark.parametrize(("share", "warned"), [(0.5, True), (0.97, False)])
def test_a_busy_machine_is_named(share, warned, monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench_run.share_of_cores", lambda: share)
    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    result = run_bench("--only", "784", "--json")
    assert ("and torch gets 50% of the time of its threads" in result.stderr) == warned
    assert json.loads(result.stdout)["rows"]


def test_a_very_slow_call_sits_out(monkeypatch):
    monkeypatch.setattr("rankfold.bench.measure.PATIENCE_SECONDS", 0.0)
    assert time_calls({"a": lambda: None}, CPU, repeat=9)["a"].rounds == 3


def test_peak_memory_is_the_largest_amount_held_at_once():
    def call():
        first = torch.empty(1000, 1000)  # 4 MB
        del first
        second, third = torch.empty(500, 1000), torch.empty(1000, 1000)  # 2 MB and 4 MB
        return second.shape, third.shape

    assert peak_memory(call, CPU) == pytest.approx(6_000_000, rel=1e-3)


def row(library, format, forward, both, case="case"):
    timings = [Timing(ms, ms, ms, 3) for ms in (forward, both)]
    return Row(case, library, format, 1, *timings, extra_bytes=0)


def test_the_summary_compares_with_the_best_rival_for_each_figure():
    rows = [
        row("tensorly-torch, factorized", "CP", 4.0, 30.0),
        row("tensorly-torch, reconstructed", "CP", 6.0, 10.0),
        row("tensorly-torch, factorized", "CP", 1.0, 1.0, case="another case"),
        Row("case", "tensorly-torch, factorized", "TTM", note="fails"),
        row(DENSE, "dense", 1.0, 1.0),
        row(FIXED, "CP", 2.0, 20.0),
        row(FIXED, "TTM", 2.0, 20.0),
    ]
    assert speedups(rows, over=TENSORLY) == {("case", "CP"): (2.0, 0.5)}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # numpy's word to tensorly-torch, not to us
def test_both_libraries_get_layers_of_the_same_size():
    small = [all_cases(Sizes(8, 1), dense_table=False)[0], conv_case(1), embedding_case(4, dense_table=False)]
    for case in small:
        rows = {(r.library, r.format): r for r in run_case(case, CPU, repeat=3)}
        for (library, format), rival in rows.items():
            if library.startswith(TENSORLY):
                ours = rows[FIXED, format].parameters
                assert rival.parameters == pytest.approx(ours, rel=0.2 if "Conv" in case.name else 0.01)


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (TypeError("no such index\nsecond line"), "fails: TypeError: no such index"),
        (NotImplementedError(), "fails: NotImplementedError"),  # without a word
    ],
)
def test_a_peer_that_fails_is_listed_with_the_reason_and_our_failure_is_one(error, note):
    def fail():
        raise error

    def case(library):
        return Case("case", lambda device: torch.ones(1), (Contender(library, "CP", fail),))

    (listed,) = run_case(case(TENSORLY), CPU, repeat=3)
    assert listed.note == note
    with pytest.raises(type(error)):
        list(run_case(case(FIXED), CPU, repeat=3))


def test_the_command_prints_and_writes_every_row(tmp_path):
    file = tmp_path / "figures" / "bench.json"
    result = run_bench("--only", "784", "--repeat", "3", "--out", str(file))
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["rows"]
    assert {(r["library"], r["format"]) for r in rows} == {
        (DENSE, "dense"),
        *((f"{TENSORLY}, {how}", f) for how in tensorly_peer.IMPLEMENTATIONS for f in ("CP", "Tucker", "TTM")),
        *((f"rankfold, {mode}", f) for mode in ("fixed rank", "Bayesian") for f in ("CP", "Tucker", "TT", "TTM")),
    }
    assert all(f"{r['parameters']:,}" in result.output for r in rows)


def test_json_is_all_that_is_printed(tmp_path):
    result = run_bench("--only", "784", "--repeat", "3", "--formats", "CP", "--json", "--out", str(tmp_path / "b.json"))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == json.loads((tmp_path / "b.json").read_text())


def one_row(case, **_):
    return [row(FIXED, "CP", 1.0, 2.0, case.name)]


def test_json_writes_no_file_that_nobody_named(monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    result = run_bench("--only", "784", "--json")
    assert [r["format"] for r in json.loads(result.stdout)["rows"]] == ["CP"]
    assert not list(Path().iterdir())


@pytest.mark.parametrize("options", [[], ["--out", "mine.json"]])
def test_the_last_line_says_which_file_was_replaced(options, monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    file = Path(options[-1] if options else "runs/bench/layers-cpu.json")
    first = run_bench(*options)
    assert f"All figures are in {file}\n" in first.output
    os.utime(file, (0, datetime(2024, 2, 29, 7, 5).timestamp()))
    second = run_bench("--only", "784", *options)
    assert f"All figures are in {file}, which replaced that of 2024-02-29 07:05\n" in second.output
    assert len(json.loads(file.read_text())["rows"]) == 1


def test_without_the_peer_one_note_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorly_peer, "installed_version", lambda: None)
    for module in ("bench", "bench_run"):
        monkeypatch.setattr(f"rankfold.cli.{module}.installed_version", lambda: None)
    result = run_bench("--only", "784", "--repeat", "3", "--out", str(tmp_path / "bench.json"))
    assert result.exit_code == 0, result.output
    assert result.output.count("tensorly") == result.output.count("pip install 'rankfold[bench]'") == 1
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert not any(r["library"].startswith(TENSORLY) for r in figures["rows"])
    assert figures["versions"]["tensorly-torch"] is None


def test_the_peer_is_found_by_its_version(monkeypatch):
    assert tensorly_peer.installed_version() is not None
    monkeypatch.setattr(tensorly_peer, "TENSORLY", "no-such-package")
    assert tensorly_peer.installed_version() is None


def until(word):
    """Measures cases up to the first one with this in its name, where Ctrl-C comes."""

    def measure(case, device, repeat, ceilings):
        if word in case.name:
            raise KeyboardInterrupt
        yield row(FIXED, "CP", 1.0, 2.0, case.name)

    return measure


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_is_cut_short_keeps_what_it_measured_and_says_so(as_json, monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", until("Embedding"))
    result = run_bench(*(["--json"] if as_json else ["--out", "bench.json"]))
    assert result.exit_code == 130
    record = json.loads(result.stdout if as_json else Path("bench.json.part").read_text())
    assert [r["case"].split(",")[0] for r in record["rows"]] == [
        "Linear 784 → 512",
        "Linear 1024 → 4096",
        "Linear 4096 → 4096",
    ]
    assert len(record["not_measured"]) == 5
    said = "Stopped.\n" if as_json else "Stopped; the figures of 3 of 8 cases are in bench.json.part.\n"
    assert result.stderr.endswith(said)


@pytest.mark.parametrize(("only", "file"), [((), "bench.json.part"), (("--only", "Linear 784"), "bench.json")])
def test_ctrl_c_before_figures_are_kept_does_not_lose_them(only, file, monkeypatch):
    def press(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    monkeypatch.setattr("rankfold.cli.bench_run.record_tables", press)
    result = run_bench("--out", "bench.json", *only)
    assert result.exit_code == 130
    assert result.stderr.endswith(f"; the figures of 1 of {1 if only else 8} cases are in {file}.\n")
    assert len(json.loads(Path(file).read_text())["rows"]) == 1


def test_a_run_that_is_cut_short_leaves_the_figures_of_an_earlier_one(monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    run_bench("--out", "bench.json")
    whole = Path("bench.json").read_text()
    monkeypatch.setattr("rankfold.cli.bench.run_case", until("Embedding"))
    run_bench("--out", "bench.json")
    assert Path("bench.json").read_text() == whole
    assert Path("bench.json.part").exists()
    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    assert run_bench("--out", "bench.json").exit_code == 0
    assert not Path("bench.json.part").exists()


def test_a_run_stopped_at_once_keeps_nothing(monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", until(""))
    result = run_bench("--out", "bench.json")
    assert (result.exit_code, result.stderr) == (130, "Stopped before there were any figures.\n")
    assert not list(Path().glob("*.json"))


def test_a_file_of_something_else_is_left_alone():
    Path("README.md").write_text("# Mine")
    result = run_bench("--out", "README.md")
    assert result.exit_code == 2
    assert "README.md is there and holds no figures; name another file" in result.output
    assert Path("README.md").read_text() == "# Mine"


def test_nothing_is_compared_with_a_peer_that_has_none(monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", one_row)
    assert "times faster" not in run_bench("--only", "784").output


SLOW = [
    row("tensorly-torch, reconstructed", "Tucker", 1234.56, 12345.67),
    row(FIXED, "TTM", 0.01, 0.12),
    Row("case", DENSE, "dense", note="5 GB; add --dense-table to time it"),
]
SLOW = [replace(r, parameters=1_296_797_056, extra_bytes=2**33) if r.forward else r for r in SLOW]


def printed(width, rows=SLOW):
    """The table of a case on a console of this width."""
    console = Console(file=io.StringIO(), width=width)
    record = {"bench": "layers", "device": {"name": "x86_64"}, "rows": [asdict(r) for r in rows]}
    console.print(record_tables(record, console))
    return console.file.getvalue()


def test_a_narrow_terminal_shows_every_median_and_every_word():
    wide, narrow = printed(FILE_WIDTH), printed(80)
    assert "12,345.67 [12,345.67 – 12,345.67]" in wide
    assert "tensorly-torch, reconstructed" in wide
    words = ("1,234.56", "12,345.67", "Tucker", "TTM", "reconstructed", "tensorly-torch,", "1,296,797,056", "8,192.0")
    assert all(word in narrow for word in (*words, "5 GB; add --dense-table to time it"))
    assert "–" not in narrow.replace("  –", "")
    assert "…" not in wide + narrow
    assert max(map(len, narrow.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 100, 120])
def test_columns_that_have_no_room_are_named(width):
    timing = Timing(12.0, 11.0, 13.0, 3)
    full = replace(SLOW[1], forward_graph=timing, forward_backward_graph=timing, floor_ms=0.001)
    text = printed(width, [full])
    words, _, named = " ".join(text.split()).partition("in a wider terminal and in the file:")
    assert max(map(len, text.splitlines())) <= width
    for shown, heading in (("120.0×", "over floor"), ("0.001", "floor, ms"), ("8,192.0", "memory, MiB")):
        assert shown in words or heading in named
    assert "12.00" in words
    assert "rankfold," in words
    assert "…" not in words


def test_a_file_gets_whole_lines_whatever_the_terminal(monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", lambda case, **_: [replace(r, case=case.name) for r in SLOW])
    result = CliRunner().invoke(app, ["bench", "layers", "--only", "784"], env={"COLUMNS": "80"})
    assert "1,234.56 [1,234.56 – 1,234.56]" in result.output


def test_the_dense_table_is_left_out_unless_asked_for():
    assert "--dense-table" in embedding_case(4, dense_table=False).contenders[0].skipped
    assert embedding_case(4, dense_table=True).contenders[0].skipped is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--device", "gpu"], "gpu"),
        (["--only", "Transformer"], "Transformer"),
        (["--formats", "CP,PARAFAC"], "PARAFAC"),
        (["--formats", ""], "'' names no format; use CP, Tucker, TT, TTM, or leave it out for all"),
        (["--formats", " , "], "' , ' names no format"),
        (["--repeat", "1"], "--repeat"),
        (["--out", "."], "--out"),
    ],
)
def test_bad_options_are_named(options, named, monkeypatch):
    monkeypatch.setattr("rankfold.cli.bench.run_case", lambda *_, **__: pytest.fail("measured"))
    result = run_bench(*options)
    assert result.exit_code == 2
    assert named in result.output


RESULTS = Path(__file__).parents[2] / "results" / "mnist"
CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("name", "count"), [("layers", -1), ("step", 0), ("layers", CORES + 1), ("step", 999), ("inference", 999)]
)
def test_threads_that_have_no_core_of_their_own_are_refused(name, count, monkeypatch):
    for module in ("bench.run_steps", "bench.run_case", "bench.networks", "bench_run.measure_ceilings"):
        monkeypatch.setattr(f"rankfold.cli.{module}", lambda *_, **__: pytest.fail("measured"))
    before = torch.get_num_threads()
    result = run_bench("--threads", str(count), name=name)
    assert result.exit_code == 2
    message = " ".join(result.output.replace("│", "").split())
    assert f"Invalid value for --threads: expected 1 to {CORES}, the cores of this machine, got {count};" in message
    assert torch.get_num_threads() == before


SMALL = {
    "embedding": ["--only", "2,048 rows, skewed", "--formats", "ttm", "--repeat", "3"],
    "linear": ["--only", "784", "--formats", "CP,tt", "--repeat", "3"],
    "conv": ["--formats", "CP", "--repeat", "3"],
    "step": ["--formats", "TTM", "--repeat", "3"],
    "memory": ["--only", "2,048", "--formats", "TT"],
    "inference": [
        *("--formats", "TT", "--batch", "1", "--threads", "1"),
        *("--repeat", "3", "--no-compile", "--results", str(RESULTS)),
    ],
}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # numpy's word to tensorly-torch, not to us
@pytest.mark.parametrize("name", SMALL)
def test_every_benchmark_prints_what_it_writes_and_says_where(name, monkeypatch):
    monkeypatch.setattr("rankfold.bench.cases.CHANNELS", 16)
    result = run_bench(*SMALL[name], name=name)
    assert result.exit_code == 0, result.output
    file = Path("runs/bench") / f"{name}-cpu.json"
    assert f"All figures are in {file}" in result.output
    record = json.loads(file.read_text())
    assert record["bench"] == name
    assert {"torch", "rankfold", "tensorly-torch"} <= set(record["versions"])
    for grid in sheets(record):
        assert all(heading in result.output for heading in grid.headings)
        assert all(cell in result.output for line in grid.rows for cell in line)
    measured = [row for row in record["rows"] if row["format"] != "dense"]
    assert measured
    assert all(row["parameters"] for row in measured)


def test_found_ranks_that_are_missing_are_asked_for(tmp_path):
    result = run_bench("--results", str(tmp_path), name="inference")
    assert result.exit_code == 2
    assert "rankfold reproduce mnist" in result.output.replace("\n", " ").replace("│", "")


@pytest.mark.parametrize("name", SMALL)
def test_every_benchmark_explains_its_columns(name):
    assert len(run_bench("--help", name=name).output.splitlines()) > 15


@pytest.mark.parametrize(
    ("name", "words"), [("embedding", "It can be below 1×"), ("step", "over floor is explained by")]
)
def test_the_floor_is_explained(name, words):
    assert words in " ".join(run_bench("--help", name=name).output.split())
