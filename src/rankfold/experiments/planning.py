"""Which runs a command asks for, what they need, and which of them are still to be done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from rankfold.experiments.results import DamagedResult, Places, Run, result_of
from rankfold.experiments.spec import Spec, read_rows, task_name


@final
@dataclass(frozen=True)
class Request:
    """What a user asks for.

    Args:
        table: the name of a folder of experiments.
        rows: all of them if empty.
        seeds: 0 to ``seeds − 1``.
        quick: few epochs; results are kept apart.
        validation: train on a part of the training images and look at the rest; results are kept apart.
        edition: of other data than the published ones; results are kept apart.
    """

    table: str
    rows: Sequence[str] = ()
    seeds: int = 3
    quick: bool = False
    validation: bool = False
    edition: str | None = None

    def places(self, places: Places) -> Places:
        """Where the results of this request belong."""
        places = self.edition_places(places)
        return places.apart("-".join(self.variant)) if self.variant else places

    def edition_places(self, places: Places) -> Places:
        """Where the results of these data belong, those of all variants."""
        return places.apart(self.edition) if self.edition else places

    @property
    def variant(self) -> tuple[str, ...]:
        """What keeps results apart, by the names of the options."""
        return tuple(name for name, wanted in (("quick", self.quick), ("validation", self.validation)) if wanted)

    def run(self, row: str, spec: Spec, seed: int, task: str | None = None) -> Run:
        spec = replace(spec.quick() if self.quick else spec, seed=seed)
        return Run(self.table, row, replace(spec, split="validation") if self.validation else spec, task)


@final
class Schedule:
    """Hands out runs, each once what it needs is done.

    Attributes:
        finished: runs with a result, old ones included.
        failures: why a run has none, by its name.
    """

    def __init__(self, runs: Sequence[Run], needs: dict[str, list[str]]) -> None:
        self.waiting = list(runs)
        self.needs = needs
        self.running: list[Run] = []
        self.finished: list[Run] = []
        self.failures: dict[str, str] = {}

    def take(self) -> Run | None:
        """The next run that can start, if there is one now."""
        self._give_up_on_hopeless()
        done = {run.name for run in self.finished}
        for run in self.waiting:
            if done.issuperset(self.needs[run.name]):
                self.waiting.remove(run)
                self.running.append(run)
                return run
        return None

    def finish(self, run: Run) -> None:
        self.running.remove(run)
        self.finished.append(run)

    def fail(self, run: Run, why: str) -> None:
        self.running.remove(run)
        self.failures[run.name] = why

    def _give_up_on_hopeless(self) -> None:
        """Runs are in the order of their needs, so one pass finds all."""
        for run in list(self.waiting):
            failed = [name for name in self.needs[run.name] if name in self.failures]
            if failed:
                self.waiting.remove(run)
                self.failures[run.name] = f"needs {', '.join(failed)}, which failed"


def schedule(request: Request, places: Places) -> Schedule:
    """All runs of a request and all they need; those with a result count as finished."""
    folder = places.experiments / request.table
    rows = read_rows(folder)
    wanted = _with_needs(_checked_rows(request, rows, folder), rows)
    task = task_name(folder)
    runs = [request.run(row, rows[row], seed, task) for row in wanted for seed in range(request.seeds)]
    needs = {run.name: [f"{row}-seed{run.spec.seed}" for row in needed_rows(run.row, rows)] for run in runs}
    plan = Schedule([], needs)
    for run in runs:
        try:
            done = result_of(run, request.places(places)) is not None
        except DamagedResult as error:
            plan.failures[run.name] = str(error)
        else:
            (plan.finished if done else plan.waiting).append(run)
    return plan


def needed_rows(row: str, rows: dict[str, Spec]) -> Iterator[str]:
    """The rows that come before this one: the oracle of its ranks, and the dense training it shares."""
    spec = rows[row]
    if spec.oracle is not None:
        yield spec.oracle
    if spec.compresses:
        yield from (name for name, other in rows.items() if other.method == "dense" and other.dense() == spec.dense())


def _with_needs(wanted: Sequence[str], rows: dict[str, Spec]) -> list[str]:
    """The wanted rows with all they need, needed ones first."""
    needed = {name for row in wanted for name in needed_rows(row, rows)}
    names = needed.union(wanted)
    return sorted(names, key=lambda name: (rows[name].compresses, list(rows).index(name)))


def _checked_rows(request: Request, rows: dict[str, Spec], folder: Path) -> Sequence[str]:
    unknown = [row for row in request.rows if row not in rows]
    if unknown:
        raise ValueError(f"{folder} has no row {', '.join(unknown)}; the rows are {', '.join(rows)}")
    return request.rows or list(rows)
