"""What is run, in which order, and what a failure does to the rest."""

import json
import os
import signal
import threading

import pytest
import torch

from rankfold.experiments import runner
from rankfold.experiments.interrupts import STOP_SIGNALS, ignored_by_new_processes
from rankfold.experiments.planning import Request, schedule
from rankfold.experiments.progress import StopAsked
from rankfold.experiments.results import DamagedResult, read_result, write_record
from rankfold.experiments.runner import Event, execute

CPU = torch.device("cpu")


@pytest.fixture
def performed(monkeypatch, places):
    """Runs that only leave their file; the names of those that were asked for, in order."""
    names = []

    def perform(run, places, device, progress):
        names.append(run.name)
        if run.row == "cp-ard-lu" and run.spec.seed == 1:
            raise FloatingPointError("NaN everywhere")
        result = {key: {} for key in ("ranks", "parameters", "metrics")} | {"history": [], "spec": run.spec.as_dict()}
        write_record(run.file(places), {"table": run.table, "row": run.row, **result})
        return result

    monkeypatch.setattr(runner, "perform", perform)
    return names


def execute_here(plan, places):
    execute(plan, places, CPU, 1, lambda event: None)
    return plan


def test_needed_rows_come_along_and_come_first(places, performed):
    plan = execute_here(schedule(Request("tiny", ["cp-tc-or"], seeds=1), places), places)
    assert performed == ["cp-ard-lu-seed0", "dense-seed0", "cp-tc-or-seed0"]
    assert plan.failures == {}


def test_what_has_a_result_is_not_run_again(places, performed):
    execute_here(schedule(Request("tiny", ["cp-fr", "dense"], seeds=2), places), places)
    assert sorted(performed) == ["cp-fr-seed0", "cp-fr-seed1", "dense-seed0", "dense-seed1"]
    performed.clear()
    plan = execute_here(schedule(Request("tiny", ["cp-fr", "tt-fr"], seeds=2), places), places)
    assert performed == ["tt-fr-seed0", "tt-fr-seed1"]
    assert len(plan.finished) == 4


def test_a_failure_stops_only_what_needs_it(places, performed):
    plan = execute_here(schedule(Request("tiny", ["cp-tc-or", "cp-fr"], seeds=2), places), places)
    assert set(plan.failures) == {"cp-ard-lu-seed1", "cp-tc-or-seed1"}
    assert "NaN everywhere" in plan.failures["cp-ard-lu-seed1"]
    assert "needs cp-ard-lu-seed1" in plan.failures["cp-tc-or-seed1"]
    assert {run.name for run in plan.finished} >= {"cp-tc-or-seed0", "cp-fr-seed1"}
    assert "FloatingPointError" in (places.runs / "tiny" / "cp-ard-lu-seed1" / "error.txt").read_text()


@pytest.mark.parametrize("content", ["", '{"row": "cp-fr"', "[1, 2]", '{"row": "cp-fr"}'])
def test_a_damaged_result_is_named_and_left_alone(content, places, performed):
    file = places.results / "tiny" / "cp-fr-seed0.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    plan = execute_here(schedule(Request("tiny", ["cp-fr"], seeds=1), places), places)
    assert performed == []
    assert str(file) in plan.failures["cp-fr-seed0"]
    assert "move it away" in plan.failures["cp-fr-seed0"]
    assert file.read_text() == content
    with pytest.raises(DamagedResult, match=r"cp-fr-seed0\.json"):
        read_result(file)


def test_a_result_of_other_settings_is_named(places, performed):
    execute_here(schedule(Request("tiny", ["cp-fr"], seeds=1), places), places)
    spec = places.experiments / "tiny" / "cp-fr.toml"
    spec.write_text(spec.read_text().replace("epochs = 2", "epochs = 7", 1))
    plan = schedule(Request("tiny", ["cp-fr"], seeds=1), places)
    assert "epochs 2 instead of 7" in plan.failures["cp-fr-seed0"]


def test_settings_of_rank_determination_matter_to_its_own_rows_alone(places, performed):
    rows = ["cp-fr", "cp-ard-lu"]
    execute_here(schedule(Request("tiny", rows, seeds=1), places), places)
    for row in rows:
        spec = places.experiments / "tiny" / f"{row}.toml"
        spec.write_text(spec.read_text() + "\nkl_weight = 0.25\n")
    plan = schedule(Request("tiny", rows, seeds=1), places)
    assert set(plan.failures) == {"cp-ard-lu-seed0"}
    assert "kl_weight 1.0 instead of 0.25" in plan.failures["cp-ard-lu-seed0"]


def test_an_unknown_row_is_named(places):
    with pytest.raises(ValueError, match="has no row cp-xx; the rows are cp-ard-hc"):
        schedule(Request("tiny", ["cp-xx"]), places)


def test_quick_results_are_kept_apart(places, performed):
    request = Request("tiny", ["cp-fr"], seeds=1, quick=True)
    plan = schedule(request, places)
    assert plan.waiting[0].spec.epochs < 20
    execute_here(plan, request.places(places))
    assert (places.results / "quick" / "tiny" / "cp-fr-seed0.json").exists()
    assert not (places.results / "tiny").exists()


def test_a_write_that_fails_leaves_nothing(tmp_path):
    file = tmp_path / "row-seed0.json"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(file, {"metrics": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_runs_side_by_side_leave_what_runs_in_a_row_leave(places, tmp_path):
    request = Request("tiny", ["cp-tc-or", "cp-fr"], seeds=1)
    events = []
    execute(schedule(request, places), places, CPU, 2, events.append)
    assert sorted(event.run.name for event in events if event.result) == sorted(
        ["dense-seed0", "cp-ard-lu-seed0", "cp-tc-or-seed0", "cp-fr-seed0"]
    )
    alone = type(places)(places.experiments, tmp_path / "alone", tmp_path / "alone-runs", places.data, verify=False)
    execute(schedule(request, alone), alone, CPU, 1, lambda event: None)
    for file in (places.results / "tiny").iterdir():
        ours, theirs = read_result(file), read_result(alone.results / "tiny" / file.name)
        assert json.dumps(ours["metrics"]) == json.dumps(theirs["metrics"])


def test_a_process_that_dies_is_a_failed_run(places):
    plan = schedule(Request("tiny", ["cp-fr"], seeds=1), places)
    worker = runner._Worker(places, CPU, 2)
    worker.run = plan.take()
    worker.process.kill()
    event = worker.receive()
    worker.stop()
    assert event.failure == "its process ended with exit code -9"
    assert worker.run is None


def test_signals_to_the_whole_group_leave_the_workers_to_their_parent(places):
    """A worker that heard them itself would end without a checkpoint, and count as a failure."""
    plan = schedule(Request("tiny", ["cp-fr"], seeds=1), places)
    worker = runner._Worker(places, CPU, 2)
    for number in STOP_SIGNALS:
        os.kill(worker.process.pid, number)
    worker.start(plan.take())
    while not (event := worker.receive()).ends:
        pass
    worker.stop()
    assert event.failure is None


def test_the_parent_listens_again_once_a_process_has_started():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with ignored_by_new_processes():
        assert {signal.getsignal(number) for number in STOP_SIGNALS} == {signal.SIG_IGN}
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


class Stopping:
    """A worker that sends these events before its run has ended."""

    def __init__(self, run, *events):
        self.run, self.stopping, self.events = run, threading.Event(), iter(events)

    def receive(self):
        event = next(self.events)
        self.run = None if event.ends else self.run
        return event


def test_what_ends_while_all_are_stopping_is_booked(places):
    plan = schedule(Request("tiny", ["cp-fr"], seeds=3), places)
    runs, told = [plan.take() for _ in range(3)], []

    def report(event):
        told.append(event)
        if not event.ends:
            raise StopAsked

    endings = [{"failure": "no luck"}, {"result": {}}, {"is_kept": True}]
    events = [(Event(run), Event(run, **ending)) for run, ending in zip(runs, endings, strict=True)]
    workers = [Stopping(run, *pair) for run, pair in zip(runs, events, strict=True)]
    runner._stop_together(workers, lambda event: runner._note(plan, event, report))
    assert all(worker.stopping.is_set() for worker in workers)
    assert told == [event for pair in events for event in pair]
    assert plan.failures == {"cp-fr-seed0": "no luck"}
    assert plan.finished == [runs[1]]
