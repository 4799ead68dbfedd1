"""Where a run of ``rankfold train`` stands, in words: what is kept of it, and how it goes on."""

from __future__ import annotations

from rankfold.experiments.progress import StopAsked
from rankfold.health import NumericalFault
from rankfold.jobs.job import JOB_FILE, default_lr
from rankfold.jobs.preparation import counted
from rankfold.jobs.running import JobRun
from rankfold.reporting.run import RUN_FILE
from rankfold.whole_files import not_written


def is_finished(run: JobRun) -> bool:
    """Whether its result is there."""
    return (run.folder / RUN_FILE).exists()


def how_to_go_on(run: JobRun) -> str:
    """The command, or that there is no need for one."""
    if is_finished(run):
        return f"the run is finished, all of it is in {run.folder}"
    return f"go on with: {run.resume_command}"


def under_way(run: JobRun) -> str:
    """What is said before the first epoch ends."""
    done, total = len(run.history), run.job.spec.epochs
    return f"epoch {done + 1}/{total} is under way" if done < total else "all epochs are done"


def where_it_goes_on(run: JobRun) -> str:
    """What is said of a run that was stopped before."""
    if len(run.history) == run.job.spec.epochs:
        return "All epochs are done." + (" The dense network is trained from its first epoch." if run.job.dense else "")
    if run.checkpoint is not None:
        return f"Going on {_after(*run.checkpoint)}."
    return "The run was stopped before its first checkpoint: it begins again, at epoch 1."


def what_is_kept(run: JobRun, stop: BaseException) -> str:
    """What is not lost of a run that was stopped."""
    done, total = len(run.history), run.job.spec.epochs
    if is_finished(run):
        return f"Stopped, but {how_to_go_on(run)}."
    if isinstance(stop, StopAsked):
        if done == total:
            return "Stopped while the dense network was trained; all epochs of the factors are kept."
        if run.steps_of_epoch:
            return f"Stopped within epoch {done + 1} of {total}; the checkpoint is kept."
        return f"Stopped after {done} of {counted(total, 'epoch')}; the checkpoint is kept."
    if run.checkpoint is None:
        return "Stopped at once, before there was a checkpoint; training begins again at epoch 1."
    return f"Stopped at once; the checkpoint {_after(*run.checkpoint)} is kept."


def why(run: JobRun, error: NumericalFault | OSError) -> str:
    """Why training failed, and what to do."""
    if isinstance(error, OSError):
        if is_finished(run):
            return f"{not_written(run.folder, error)}; {how_to_go_on(run)}"
        has_begun = (run.folder / JOB_FILE).exists()
        return not_written(run.folder, error, f", then {how_to_go_on(run)}" if has_begun else "")
    what = f"training failed at step {run.num_steps}: numbers became NaN or infinite"
    smaller = min(run.job.spec.lr / 4, default_lr(run.preparation))
    return f"{what}; try --lr {smaller:.2g}, in another folder (--out)"


def _after(epochs: int, steps: int) -> str:
    """Where a checkpoint is.

    >>> _after(3, 0)
    'after epoch 3'
    >>> _after(0, 1)
    'after 1 step of epoch 1'
    """
    return f"after {counted(steps, 'step')} of epoch {epochs + 1}" if steps else f"after epoch {epochs}"
