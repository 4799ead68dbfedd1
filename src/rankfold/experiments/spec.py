"""What one run is: a frozen set of settings, read from a file that lists only what differs.

``experiments/<table>/<row>.toml`` names the method and the format of one row; everything else has the
default given here, the same for all formats and priors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, final, get_args

from rankfold.shapes import is_number, is_positive_integer

Method = Literal["dense", "fr", "tc-mr", "tc-or", "ard"]
FormatName = Literal["cp", "tucker", "tt", "ttm"]
PriorName = Literal["log-uniform", "half-cauchy"]
Split = Literal["test", "validation"]

# These stand beside the rows: the numbers of the paper, and what we want to reach.
PAPER_FILE, TARGETS_FILE = "paper.toml", "targets.toml"
# What all rows of a table share: settings, and the task if it is not named like the table.
DEFAULTS_FILE = "defaults.toml"
_GIVEN_BY_THE_COMMAND = {"seed": "--seeds", "split": "--validation"}


@final
@dataclass(frozen=True)
class Spec:
    """All settings of one run.

    Args:
        method: ``dense``; ``fr``, tensorized training at a fixed rank; ``tc-mr`` and ``tc-or``, dense
            training, decomposition at the maximum or the oracle's rank, and fine-tuning; ``ard``,
            tensorized training that finds its ranks.
        format: of the weights; none for ``dense``.
        prior, inference, kl_weight, warmup: of ``ard`` alone; ``warmup`` is the share of the steps over
            which β rises to its highest.
        oracle: the row whose ranks ``tc-or`` takes.
        max_rank: the rank to start from; the task's own for the format if left out.
        epochs: of training, or of the dense training of ``tc-mr`` and ``tc-or``.
        lr: Adam's learning rate, which falls linearly to 0 over the last ``decay`` of the steps.
        log_std_lr: learning rate of the log-stds, as a multiple of ``lr``.
        weight_decay: of the layers that are dense, decoupled as in AdamW.
        precision: of the forward pass; with ``bfloat16`` by autocast.
        split: ``test`` trains on all training images; ``validation`` holds some back and looks at those
            instead of the test images.

    >>> Spec("ard", "ttm").epochs
    100
    """

    method: Method
    format: FormatName | None = None
    prior: PriorName = "log-uniform"
    inference: Literal["bayes", "map"] = "bayes"
    kl_weight: float = 1.0
    warmup: float = 0.3
    oracle: str | None = None
    max_rank: int | None = None
    epochs: int = 100
    fine_tune_epochs: int = 20
    batch_size: int = 128
    lr: float = 2e-3
    log_std_lr: float = 1.0
    decay: float = 0.3
    weight_decay: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0
    split: Split = "test"

    def __post_init__(self) -> None:
        for key, (expectation, holds) in _RULES.items():
            value = getattr(self, key)
            if not holds(value):
                raise ValueError(f"{key} must be {expectation}, got {value!r}")
        if (self.format is None) != (self.method == "dense"):
            raise ValueError(
                f"format must be left out for method 'dense' and one of {', '.join(_FORMATS)} otherwise, "
                f"got {self.format!r} for method {self.method!r}"
            )
        if (self.oracle is None) == (self.method == "tc-or"):
            raise ValueError(
                f"oracle must be the name of a row for method 'tc-or' and left out otherwise, "
                f"got {self.oracle!r} for method {self.method!r}"
            )

    @property
    def compresses(self) -> bool:
        """Whether it trains a dense model first."""
        return self.method in ("tc-mr", "tc-or")

    def dense(self) -> Spec:
        """The dense training that ``tc-mr`` and ``tc-or`` start from, the same for all formats."""
        return Spec(
            "dense",
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            decay=self.decay,
            weight_decay=self.weight_decay,
            precision=self.precision,
            seed=self.seed,
            split=self.split,
        )

    def quick(self) -> Spec:
        """The same run with few epochs, to see the trend on a CPU within a minute or two."""
        return replace(self, epochs=min(10, self.epochs), fine_tune_epochs=min(2, self.fine_tune_epochs))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def used(self) -> dict[str, Any]:
        """The settings that the method looks at: without rank determination, none of those that it alone has."""
        unused = () if self.method == "ard" else OF_RANK_DETERMINATION
        return {name: value for name, value in self.as_dict().items() if name not in unused}


# What the method 'ard' alone looks at.
OF_RANK_DETERMINATION = ("prior", "inference", "kl_weight", "warmup", "log_std_lr")
_METHODS, _FORMATS = get_args(Method), get_args(FormatName)
_Rule = tuple[str, Callable[[Any], bool]]


def _one_of(*names: str) -> _Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


_COUNT: _Rule = ("a positive integer", is_positive_integer)
_POSITIVE: _Rule = ("a positive number", lambda value: is_number(value) and 0 < value < float("inf"))
_SHARE: _Rule = ("a number above 0 and at most 1", lambda value: is_number(value) and 0 < value <= 1)
_RULES: dict[str, _Rule] = {
    "method": _one_of(*_METHODS),
    "format": ("one of " + ", ".join(_FORMATS), lambda value: value is None or value in _FORMATS),
    "prior": _one_of(*get_args(PriorName)),
    "inference": _one_of("bayes", "map"),
    "kl_weight": ("a number of at least 0", lambda value: is_number(value) and 0 <= value < float("inf")),
    "warmup": _SHARE,
    "oracle": ("the name of a row", lambda value: value is None or (isinstance(value, str) and value != "")),
    "max_rank": ("a positive integer", lambda value: value is None or is_positive_integer(value)),
    "epochs": _COUNT,
    "fine_tune_epochs": _COUNT,
    "batch_size": _COUNT,
    "lr": _POSITIVE,
    "log_std_lr": _POSITIVE,
    "decay": _SHARE,
    "weight_decay": ("a number of at least 0", lambda value: is_number(value) and 0 <= value < float("inf")),
    "precision": _one_of("float32", "bfloat16"),
    "seed": ("an integer of at least 0", lambda value: type(value) is int and value >= 0),
    "split": _one_of(*get_args(Split)),
}


# Files ----------------------------------------------------------------------------------------------


def read_spec(file: Path) -> Spec:
    """The settings in a TOML file, over those that its table shares.

    Anything wrong is named with the file, the key and what was expected.
    """
    row = read_toml(file)
    shared = read_defaults(file.parent)
    table = {**{key: value for key, value in shared.items() if key != "task"}, **row}
    known = [field.name for field in fields(Spec) if field.name not in _GIVEN_BY_THE_COMMAND]
    for key in table:
        if key in _GIVEN_BY_THE_COMMAND:
            raise ValueError(
                f"{file}: {key} is no setting of a row; the command gives it, by {_GIVEN_BY_THE_COMMAND[key]}"
            )
        if key not in known:
            raise ValueError(f"{file}: unknown key {key!r}; the keys are {', '.join(known)}")
    if "method" not in table:
        raise ValueError(f"{file}: the key method is missing; it must be one of {', '.join(_METHODS)}")
    try:
        return Spec(**table)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def read_defaults(folder: Path) -> dict[str, Any]:
    """What the rows of a table share."""
    file = folder / DEFAULTS_FILE
    return read_toml(file) if file.exists() else {}


def task_name(folder: Path) -> str:
    """The task of a table: that of its name, unless its defaults say otherwise."""
    return str(read_defaults(folder).get("task", folder.name))


def read_rows(folder: Path) -> dict[str, Spec]:
    """All rows of a table by name: every TOML file of its folder that is a spec."""
    if not folder.is_dir():
        tables = sorted(path.name for path in folder.parent.glob("*/")) if folder.parent.is_dir() else []
        known = f"the tables there are {', '.join(tables)}" if tables else f"{folder.parent} holds no tables"
        remedy = "another place is given by" if tables else "run it in a clone of the repository, or give"
        raise FileNotFoundError(f"no experiments in {folder}: {known}; {remedy} --experiments")
    beside = (PAPER_FILE, TARGETS_FILE, DEFAULTS_FILE)
    rows = {file.stem: read_spec(file) for file in sorted(folder.glob("*.toml")) if file.name not in beside}
    if not rows:
        raise FileNotFoundError(f"{folder} holds no rows, <row>.toml; add one, or choose another table")
    for name, spec in rows.items():
        if spec.oracle is not None and (spec.oracle not in rows or rows[spec.oracle].method != "ard"):
            raise ValueError(f"{folder / name}.toml: oracle must be a row of method 'ard', got {spec.oracle!r}")
    return rows


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file, or an error with its name."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not valid TOML: {error}") from error
