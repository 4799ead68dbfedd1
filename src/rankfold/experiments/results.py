"""Result files: one run, one JSON, written in one step and never overwritten."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, final

from rankfold.experiments.spec import Spec
from rankfold.whole_files import write_whole

PARTS = {"table": str, "row": str, "spec": dict, "ranks": dict, "parameters": dict, "metrics": dict, "history": list}


class DamagedResult(ValueError):
    """A result file that cannot be used: it is not whole, or not of the run it is named after."""


@final
@dataclass(frozen=True)
class Places:
    """The folders of a command.

    Args:
        experiments: ``<table>/<row>.toml``.
        results: ``<table>/<row>-seed<k>.json``.
        runs: checkpoints, trained models and dense models that several runs share.
        data: the data's root; their own default if left out.
        verify: whether the data must be the published ones.
    """

    experiments: Path = Path("experiments")
    results: Path = Path("results")
    runs: Path = Path("runs")
    data: Path | None = None
    verify: bool = True

    def apart(self, name: str) -> Places:
        """The same with results and runs of a variant, such as ``quick``, in folders of their own."""
        return Places(self.experiments, self.results / name, self.runs / name, self.data, self.verify)


@final
@dataclass(frozen=True)
class Run:
    """One row of a table with one seed, and the task that the table is about."""

    table: str
    row: str
    spec: Spec
    task: str | None = None

    @property
    def task_name(self) -> str:
        """That of the table, if no other is given."""
        return self.task or self.table

    @property
    def name(self) -> str:
        return f"{self.row}-seed{self.spec.seed}"

    def file(self, places: Places) -> Path:
        return places.results / self.table / f"{self.name}.json"

    def folder(self, places: Places) -> Path:
        return places.runs / self.table / self.name


def write_record(file: Path, record: dict[str, Any]) -> None:
    """A result, or another record of a run: the whole file or nothing."""
    write_whole(file, _to_json(record))


def read_result(file: Path) -> dict[str, Any]:
    """A result, if the file holds a whole one."""
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DamagedResult(f"{file} is damaged ({error}); {_REMEDY}") from error
    parts = result if isinstance(result, dict) else {}
    missing = [key for key, kind in PARTS.items() if not isinstance(parts.get(key), kind)]
    if missing:
        raise DamagedResult(f"{file} is no result file: it has no {', '.join(missing)}; {_REMEDY}")
    return dict(result)


def result_of(run: Run, places: Places) -> dict[str, Any] | None:
    """The result of a run, or ``None`` if it has none yet. One made with other settings is refused."""
    file = run.file(places)
    if not file.exists():
        return None
    result = read_result(file)
    wanted = json.loads(json.dumps(run.spec.used()))
    found = {**_DEFAULTS, **result["spec"]}  # a setting that is newer than the result had its default then
    keys = sorted(key for key in wanted if found.get(key) != wanted[key])
    if keys:
        changes = ", ".join(f"{key} {found.get(key)!r} instead of {wanted[key]!r}" for key in keys)
        raise DamagedResult(f"{file} was made with other settings ({changes}); {_REMEDY}")
    return result


_DEFAULTS = {f.name: f.default for f in fields(Spec) if f.default is not MISSING}
_REMEDY = "move it away, and `rankfold reproduce` will run it again"


def _to_json(result: dict[str, Any]) -> str:
    """One key a line at the top, epochs and long lists compact: readable, and small in a diff."""
    lines = []
    for key, value in result.items():
        if key == "history":
            epochs = ",\n".join(f"    {_compact(epoch)}" for epoch in value)
            lines.append(f'  "history": [\n{epochs}\n  ]')
        else:
            lines.append(f"  {json.dumps(key)}: {_compact(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
