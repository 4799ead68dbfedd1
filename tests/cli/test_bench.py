"""The benchmark measures what it says it measures."""

import json
import time

import pytest
import tensorly
import torch
from typer.testing import CliRunner

from rankfold.bench import tensorly_peer
from rankfold.bench.cases import Sizes, all_cases, conv_case, embedding_case
from rankfold.bench.contender import DENSE, FIXED, TENSORLY, Case, Contender
from rankfold.bench.layers import Row, run_case, speedups
from rankfold.bench.measure import Timing, peak_memory, time_calls
from rankfold.cli.main import app

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def backend():
    """tensorly-torch sets tensorly's backend for the whole process; other tests want theirs back."""
    before = tensorly.get_backend()
    yield
    tensorly.set_backend(before)


def run_bench(*options):
    return CliRunner().invoke(app, ["bench", "layers", *options], env={"COLUMNS": "160"})


def test_calls_take_turns_and_slow_ones_look_slow():
    order = []

    def call(name, seconds):
        return lambda: (order.append(name), time.sleep(seconds))

    timings = time_calls({"slow": call("slow", 0.02), "fast": call("fast", 0.002)}, CPU, repeat=4)
    assert order == ["slow"] * 2 + ["fast"] * 2 + ["slow", "fast"] * 4
    assert timings["slow"].median_ms >= 20.0 > timings["fast"].median_ms >= 2.0
    assert timings["slow"].lower_ms <= timings["slow"].median_ms <= timings["slow"].upper_ms
    assert timings["slow"].rounds == 4


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


def test_a_peer_that_fails_is_listed_with_the_reason_and_our_failure_is_one():
    def fail():
        raise TypeError("no such index\nsecond line")

    def case(library):
        return Case("case", lambda device: torch.ones(1), (Contender(library, "CP", fail),))

    (listed,) = run_case(case(TENSORLY), CPU, repeat=3)
    assert listed.note == "fails: TypeError: no such index"
    with pytest.raises(TypeError, match="no such index"):
        list(run_case(case(FIXED), CPU, repeat=3))


def test_the_command_prints_and_writes_every_row(tmp_path):
    file = tmp_path / "figures" / "bench.json"
    result = run_bench("--only", "784", "--repeat", "3", "--json", str(file))
    assert result.exit_code == 0, result.output
    rows = json.loads(file.read_text())["rows"]
    assert {(r["library"], r["format"]) for r in rows} == {
        (DENSE, "dense"),
        *((f"{TENSORLY}, {how}", f) for how in tensorly_peer.IMPLEMENTATIONS for f in ("CP", "Tucker", "TTM")),
        *((f"rankfold, {mode}", f) for mode in ("fixed rank", "Bayesian") for f in ("CP", "Tucker", "TT", "TTM")),
    }
    assert all(f"{r['parameters']:,}" in result.output for r in rows)
    assert all(r["forward"]["median_ms"] < r["forward_backward"]["upper_ms"] for r in rows)


def test_without_the_peer_its_rows_say_how_to_get_it(monkeypatch):
    monkeypatch.setattr(tensorly_peer, "is_installed", lambda: False)
    result = run_bench("--only", "784", "--repeat", "3")
    assert result.exit_code == 0, result.output
    assert "pip install 'rankfold[bench]'" in result.output


def test_the_dense_table_is_left_out_unless_asked_for():
    assert "--dense-table" in embedding_case(4, dense_table=False).contenders[0].skipped
    assert embedding_case(4, dense_table=True).contenders[0].skipped is None


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--device", "gpu"], "gpu"), (["--only", "Transformer"], "Transformer"), (["--repeat", "1"], "--repeat")],
)
def test_bad_options_are_named(options, named):
    result = run_bench(*options)
    assert result.exit_code == 2
    assert named in result.output
