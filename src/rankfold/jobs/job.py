"""What a user asks for, and the folder it is kept in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any, final

from rankfold.data.clicks import LABELLED, UNLABELLED
from rankfold.data.errors import DamagedData, DataError, MissingData
from rankfold.data.first_lines import are_labelled_texts, first_lines, usual_tabs
from rankfold.data.table import is_called_table
from rankfold.experiments.results import write_record
from rankfold.experiments.spec import FormatName, Spec
from rankfold.jobs.criteo import Impressions
from rankfold.jobs.images import Images
from rankfold.jobs.networks import makes_smaller
from rankfold.jobs.preparation import LARGEST_BATCH, STEPS, DataOptions, Learned, ModelName, Preparation
from rankfold.jobs.tables import Tabular
from rankfold.jobs.texts import Texts

JOB_FILE, PREPARATION_FILE = "job.json", "preprocessing.json"
FAILURE_FILE = "failure.json"
MODEL_FOLDER, CHECKPOINT_FOLDER = "model", "train"
_KINDS: tuple[type[Images | Tabular | Texts | Impressions], ...] = (Images, Tabular, Texts, Impressions)

_FEWEST_EPOCHS = 3
# Batches are smaller where an epoch would have fewer steps than this.
_STEPS_OF_AN_EPOCH = 8
# From so many examples on the KL weight is 1. With fewer it is √(N / 10,000): the full one finds no network of
# this size worth its cost (for 398 rows with 10 columns R² is 0 instead of 0.5). With fewer epochs than the default it
# falls by the square root of their share: otherwise ranks die before anything is learned (for 300 rows with 6 columns
# and 40 epochs instead of 300, accuracy is that of a constant answer instead of 0.84, with all of three seeds).
FULL_WEIGHT_FROM = 10_000


@final
@dataclass(frozen=True)
class Job:
    """A training that was asked for.

    Args:
        data: where the data are.
        model: the network.
        spec: how it is trained.
        options: what the user said about the data.
        fingerprint: of the data as they were read.
        dense: whether the dense network is trained too, to compare with.
    """

    data: Path
    model: ModelName
    spec: Spec
    options: DataOptions
    fingerprint: str
    dense: bool = False

    def write(self, folder: Path) -> None:
        content = {**asdict(self), "data": str(self.data)}
        write_record(folder / JOB_FILE, content)

    def resume_command(self, folder: Path) -> str:
        """How to go on with the run in ``folder`` once it was stopped."""
        return f"rankfold train {quote(str(self.data))} --out {quote(str(folder))} --resume"

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job of a run folder."""
        content = read_json(folder / JOB_FILE)
        try:
            return cls(
                Path(content["data"]),
                content["model"],
                Spec(**content["spec"]),
                DataOptions(**content["options"]),
                content["fingerprint"],
                bool(content.get("dense", False)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedData(
                f"{folder / JOB_FILE} is damaged ({error}); start the run anew, in another folder"
            ) from error


# The kind of data -------------------------------------------------------------------------------------


def learn(data: Path, model: ModelName | None, options: DataOptions) -> tuple[ModelName, Learned]:
    """Read the data, and the model that suits them unless one is given."""
    kind = kind_of(data, model, options)
    if model is not None and model not in kind.models:
        fitting = " or ".join(kind.models)
        raise ValueError(f"--model {model} does not suit {data}, which is {kind.described_as}; use --model {fitting}")
    kind.check_options(data, options)
    return model or kind.models[0], kind.learn(data, options)


def learn_again(data: Path, job: Job, folder: Path) -> Learned:
    """The data, read as those of the job in a folder were; other data may not suit its model and options."""
    try:
        return learn(data, job.model, job.options)[1]
    except (DataError, ValueError) as error:
        if data.resolve() == job.data.resolve() or not data.exists():
            raise
        what = f"{folder} was trained on {job.data}, got {data}"
        raise ValueError(f"{what}; name the data it was trained on, or start anew with --out") from error


def kind_of(data: Path, model: ModelName | None, options: DataOptions) -> type[Images | Tabular | Texts | Impressions]:
    """What kind of data are in a file or folder."""
    if not data.exists():
        raise MissingData(f"there is no {data}; give a folder of images, a table, a text file or a Criteo file")
    if data.is_dir():
        return Images
    if model == "text":
        return Texts
    is_table = is_called_table(data)
    if model == "mlp" or (is_table and model != "dlrm"):
        return Tabular
    lines = first_lines(data)
    first = lines[0] if lines else b""
    if model == "dlrm":
        return Tabular if is_table and first.count(b"\t") < UNLABELLED else Impressions
    if first.count(b"\t") == LABELLED and first[:2] in (b"0\t", b"1\t"):
        return Impressions
    if options.target is not None and not are_labelled_texts(lines, {options.target}):
        return Tabular
    _check_texts(data, lines)
    return Texts


def _check_texts(data: Path, lines: Sequence[bytes]) -> None:
    """Refuse lines of another kind: texts may hold tabs, but not most of them as many."""
    fields = (usual_tabs(lines) or 0) + 1
    if fields > 2:
        raise DamagedData(
            f"{data}: most lines have {fields} fields with tabs between them; a label and a text are 2, clicks are "
            f"{LABELLED + 1}, the first of them 0 or 1. Mend the file, or say what it is: a table, whose first row "
            f"names its columns, with --target; clicks with --model dlrm; texts that hold tabs with --model text"
        )


def make_spec(preparation: Preparation, model: ModelName, num_train: int, given: Mapping[str, Any]) -> Spec:
    """The settings of a training: those ``given``, and defaults for a network and a number of examples."""
    settings = dict(preparation.settings)
    settings |= {key: value for key, value in given.items() if value is not None}
    settings["max_rank"] = _starting_rank(preparation, model, settings["format"], settings.get("max_rank"))
    settings.setdefault("batch_size", _batch_size(num_train))
    if settings["batch_size"] > num_train:
        raise ValueError(f"--batch-size must be at most the number of training examples, {num_train}")
    enough = preparation.settings.get("epochs") or _epochs(preparation, num_train // settings["batch_size"])
    settings.setdefault("epochs", enough)
    settings.setdefault("kl_weight", _kl_weight(num_train, settings["epochs"] / enough))
    try:
        return Spec("ard", split="validation", **settings)
    except ValueError as error:
        raise ValueError(as_option(error)) from error


def default_lr(preparation: Preparation) -> float:
    """The learning rate of a training that is not asked for another."""
    return float(preparation.settings.get("lr", Spec.lr))


def as_option(error: ValueError) -> str:
    """What is wrong with a setting, in the words of the command line: ``kl_weight must …`` is that of --kl-weight.

    >>> as_option(ValueError("batch_size must be a positive integer, got 0"))
    '--batch-size must be a positive integer, got 0'
    """
    name, _, rest = str(error).partition(" ")
    return f"--{name.replace('_', '-')} {rest}"


def _starting_rank(preparation: Preparation, model: ModelName, format: FormatName, wanted: int | None) -> int:
    """The rank asked for, or the default; half of it, and so on, where no layer would become smaller."""
    network, rank = preparation.network(model), wanted or preparation.max_ranks[format]
    while rank > 0 and not makes_smaller(network, format, rank):
        rank //= 2
    if rank == 0:
        raise ValueError(f"no layer of this network becomes smaller as {format} factors, it is so small already")
    if wanted not in (None, rank):
        raise ValueError(f"--max-rank {wanted} makes no layer smaller than it is dense; {rank} does")
    return rank


def _epochs(preparation: Preparation, steps: int) -> int:
    """So many that there are enough steps, within limits."""
    return min(preparation.most_epochs, max(_FEWEST_EPOCHS, round(STEPS / steps)))


def _kl_weight(num_train: int, share: float) -> float:
    """To two digits; ``share`` is that of the epochs that would be enough.

    >>> _kl_weight(1_000_000, 1.0), _kl_weight(400, 2.0), _kl_weight(400, 0.25)
    (1.0, 0.2, 0.1)
    """
    # w = √(min(1, N / 10,000) · min(1, share))
    return float(f"{(min(1.0, num_train / FULL_WEIGHT_FROM) * min(1.0, share)) ** 0.5:.2g}")


def _batch_size(num_train: int) -> int:
    """The largest power of two that is not too large.

    >>> _batch_size(100_000), _batch_size(300), _batch_size(9)
    (128, 32, 1)
    """
    most = max(1, min(LARGEST_BATCH, num_train // _STEPS_OF_AN_EPOCH))
    return 1 << (most.bit_length() - 1)


# Files ------------------------------------------------------------------------------------------------


def write_preparation(preparation: Preparation, folder: Path) -> None:
    """Keep how data become tensors."""
    write_record(folder / PREPARATION_FILE, preparation.as_dict())


def read_preparation(folder: Path) -> Preparation:
    """What :func:`write_preparation` kept."""
    content = read_json(folder / PREPARATION_FILE)
    kinds = {kind.kind: kind for kind in _KINDS}
    try:
        return kinds[content["kind"]].from_dict(content)
    except (KeyError, TypeError) as error:
        raise DamagedData(f"{folder / PREPARATION_FILE} is damaged ({error!r}); train again") from error


def write_failure(folder: Path, step: int, error: Exception) -> None:
    """Keep that training failed: going on would only fail again."""
    write_record(folder / FAILURE_FILE, {"step": step, "error": str(error)})


def check_not_failed(folder: Path) -> None:
    """Refuse the folder of a run that failed."""
    if (folder / FAILURE_FILE).exists():
        step = read_json(folder / FAILURE_FILE).get("step")
        raise MissingData(f"the run in {folder} failed at step {step}; choose another --out, or delete the folder")


def read_json(file: Path) -> dict[str, Any]:
    """A file of a run folder."""
    if not file.exists():
        folder = file.parent
        found = f"{folder} is no folder of a run: it has no {file.name}"
        if not folder.is_dir():
            found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise MissingData(f"{found}; name the folder of a run, as `rankfold train` leaves it")
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:  # no JSON, no text, or no object
        raise DamagedData(f"{file} is damaged ({error}); start the run anew, in another folder") from error
