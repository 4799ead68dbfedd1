"""Runs what is scheduled: one after the other here, or side by side in processes that share the device."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any, final

import torch

from rankfold.experiments.interrupts import ignored_by_new_processes
from rankfold.experiments.planning import Schedule
from rankfold.experiments.progress import Epoch, Listener, Moment, StopAsked
from rankfold.experiments.provenance import available_cores
from rankfold.experiments.results import Places, Run
from rankfold.experiments.run import perform
from rankfold.whole_files import write_whole

_ERROR_FILE = "error.txt"


@final
@dataclass(frozen=True)
class Event:
    """What happened to a run: it started, came further within an epoch, an epoch ended; it finished, failed or stopped.

    Attributes:
        is_kept: of a run that was stopped, whether what it has trained is in a checkpoint.
    """

    run: Run
    moment: Moment | None = None
    epoch: Epoch | None = None
    result: dict[str, Any] | None = None
    failure: str | None = None
    is_kept: bool | None = None

    @property
    def ends(self) -> bool:
        return self.result is not None or self.failure is not None or self.is_kept is not None


Report = Callable[[Event], None]


def execute(schedule: Schedule, places: Places, device: torch.device, jobs: int, report: Report) -> None:
    """Do all runs of the schedule, ``jobs`` at a time, and report what happens.

    A run that fails does not stop the others. Where ``report`` raises :class:`StopAsked`, every run under way writes
    a checkpoint, from which it goes on next time; :class:`KeyboardInterrupt` stops all at once.
    """
    if jobs == 1:
        _execute_here(schedule, places, device, report)
    else:
        _execute_side_by_side(schedule, places, device, jobs, report)


def _execute_here(schedule: Schedule, places: Places, device: torch.device, report: Report) -> None:
    while (run := schedule.take()) is not None:
        _note(schedule, _attempt(run, places, device, report), report)


def _attempt(run: Run, places: Places, device: torch.device, report: Report) -> Event:
    """One run, to its result or to the reason why there is none; that it was stopped is reported and raised."""
    listener = Listener(
        epoch=lambda epoch: report(Event(run, epoch=epoch)),
        moment=lambda moment: report(Event(run, moment=moment)),
    )
    try:
        report(Event(run))
        return Event(run, result=perform(run, places, device, listener))
    except StopAsked as stop:
        report(Event(run, is_kept=stop.is_kept))
        raise
    except Exception as error:
        return Event(run, failure=f"{type(error).__name__}: {error}{_kept(run.folder(places) / _ERROR_FILE)}")


def _kept(file: Path) -> str:
    """Keep the error under way in a file, if the disk has room for it; where it is."""
    try:
        write_whole(file, traceback.format_exc())
    except OSError:
        return ""
    return f" (all of it in {file})"


def _note(schedule: Schedule, event: Event, report: Report) -> None:
    if event.failure is not None:
        schedule.fail(event.run, event.failure)
    elif event.result is not None:
        schedule.finish(event.run)
    report(event)


# Side by side ---------------------------------------------------------------------------------------


@final
class _Worker:
    """A process that does one run after the other; loading torch and the data is paid once."""

    def __init__(self, places: Places, device: torch.device, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.connection, theirs = context.Pipe()
        self.run: Run | None = None
        with ignored_by_new_processes():  # multiprocessing starts one of its own for the event
            self.stopping = context.Event()
            arguments = (theirs, self.stopping, places, device, jobs)
            self.process: BaseProcess = context.Process(target=_work, args=arguments, daemon=True)
            self.process.start()
        theirs.close()

    def start(self, run: Run) -> None:
        self.run = run
        self.connection.send(run)

    def receive(self) -> Event:
        """The next event; if the process has died, that of a failure."""
        assert self.run is not None
        try:
            event: Event = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            event = Event(self.run, failure=f"its process ended with exit code {self.process.exitcode}")
        if event.ends:
            self.run = None
        return event

    def stop(self) -> None:
        self.process.kill()  # it does not listen to anything milder
        self.process.join()
        self.connection.close()


def _execute_side_by_side(schedule: Schedule, places: Places, device: torch.device, jobs: int, report: Report) -> None:
    workers: list[_Worker] = []
    try:
        while True:
            _hand_out(schedule, workers, lambda: _Worker(places, device, jobs), jobs)
            busy = {worker.connection: worker for worker in workers if worker.run is not None}
            if not busy:
                return
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker = busy[connection]
                _note(schedule, worker.receive(), report)
                if not worker.process.is_alive():
                    workers.remove(worker)
    except StopAsked:
        _stop_together(workers, lambda event: _note(schedule, event, report))
        raise
    finally:
        for worker in workers:
            worker.stop()


def _stop_together(workers: list[_Worker], note: Report) -> None:
    """Let every run come to its next checkpoint, or to its result; a second Ctrl-C ends the wait."""
    busy = [worker for worker in workers if worker.run is not None]
    for worker in busy:
        worker.stopping.set()
    for worker in busy:
        while worker.run is not None:
            with suppress(StopAsked):  # it has been asked already
                note(worker.receive())


def _hand_out(schedule: Schedule, workers: list[_Worker], new: Callable[[], _Worker], jobs: int) -> None:
    """Give every idle worker a run, and make workers as long as there are fewer than ``jobs``."""
    while len(idle := [worker for worker in workers if worker.run is None]) + jobs - len(workers) > 0:
        run = schedule.take()
        if run is None:
            return
        if not idle:
            workers.append(new())
        (idle or workers)[-1].start(run)


def _work(connection: Connection, stopping: Flag, places: Places, device: torch.device, jobs: int) -> None:
    """What a worker's process does, until there is nothing more to do or the parent asks to stop."""

    def report(event: Event) -> None:
        connection.send(event)
        if stopping.is_set() and not event.ends:
            raise StopAsked

    torch.set_num_threads(max(1, available_cores() // jobs))
    while True:
        try:
            run: Run = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_attempt(run, places, device, report))
        except StopAsked:
            return
