"""Whether a run of ``rankfold train`` has come to its end; every command that needs a result asks here."""

from __future__ import annotations

from pathlib import Path

from rankfold.data.errors import MissingData
from rankfold.jobs.job import JOB_FILE, Job, check_not_failed
from rankfold.reporting.run import RUN_FILE


def check_finished(folder: Path) -> None:
    """Refuse a folder without a result, and say how to go on."""
    if not (folder / RUN_FILE).exists():
        check_not_failed(folder)
        job = Job.read(folder)
        raise MissingData(f"the run in {folder} is not finished; go on with: {job.resume_command(folder)}")


def check_finished_if_trained(folder: Path) -> None:
    """The same, for a folder that may be of something other than ``rankfold train``."""
    if (folder / JOB_FILE).exists():
        check_finished(folder)
