"""One run as a report sees it: the record that a result file holds, checked and with names for its parts.

The record has the shape of ``results/<table>/<row>-seed<k>.json``. Beyond what every such file holds, a
record may have

- ``layers``: the layers of :meth:`rankfold.counts.Accounting.as_dict`;
- in an epoch of ``history``, ``variances``: λ by layer, one list for each of its ranks; and
  ``evaluation_nll``, ``evaluation_accuracy`` or ``evaluation_rmse``;
- in the scores of a prediction, ``calibration``: lists ``count``, ``confidence`` and ``accuracy`` of bins;
- ``metrics.baseline``: the scores of always giving one ``answer``, of classes with the shares they have in training;
- ``data.classes``: the names of the labels; ``data.path``: where the user's own data are;
- ``dense_accuracy``: that of the dense network of the same task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from rankfold.reporting.wording import DATA_SETS, FORMATS, METHODS, PREDICTIONS, score, score_name
from rankfold.shapes import is_number

Record = Mapping[str, Any]
# Of a run of one's own, and of the demonstration.
RUN_FILE, DEMO_FILE = "run.json", "demo.json"
_NO_SCORES = ("samples", "answer")  # they say of what the scores are


# What may be known after an epoch, as numbers: of the training examples unless the name says otherwise.
QUANTITIES = (
    "nll",
    "evaluation_nll",
    "kl_nats",
    "beta",
    "accuracy",
    "evaluation_accuracy",
    "evaluation_rmse",
    "parameters",
)


@final
@dataclass(frozen=True)
class Epoch:
    """A point of the history.

    Attributes:
        position: 1, 2, … through all stages.
        numbers: those of the ``QUANTITIES`` that the run has noted.
        variances: λ of every layer's ranks.
    """

    position: int
    stage: str
    numbers: Mapping[str, float]
    ranks: Mapping[str, Sequence[int]]
    variances: Mapping[str, Sequence[Sequence[float]]]


@final
@dataclass(frozen=True)
class Cut:
    """Ranks that a layer lost at once; ``epoch`` is the one at whose end they were gone."""

    layer: str
    epoch: int
    before: tuple[int, ...]
    after: tuple[int, ...]


@final
@dataclass(frozen=True)
class Run:
    """A run read from ``file``.

    Attributes:
        dense_accuracy: of the dense network it is compared with, if known.
    """

    file: Path
    record: Record
    dense_accuracy: float | None = None

    @property
    def table(self) -> str:
        return str(self.record["table"])

    @property
    def row(self) -> str:
        return str(self.record["row"])

    @property
    def seed(self) -> int | None:
        return self.record.get("seed")

    @property
    def subject(self) -> str:
        """What it has learned: the name of the data."""
        path = (self.record.get("data") or {}).get("path")
        return Path(path).name if path else DATA_SETS.get(self.table, self.table)

    @property
    def name(self) -> str:
        return self.row if self.seed is None else f"{self.row}, seed {self.seed}"

    @property
    def spec(self) -> Mapping[str, Any]:
        spec: Mapping[str, Any] = self.record["spec"]
        return spec

    @property
    def method(self) -> str:
        """In words: how the weights are stored, and how they were found."""
        format, method = self.spec.get("format"), self.spec.get("method")
        words = [FORMATS.get(str(format), str(format))] if format else []
        words += [METHODS.get(str(method), str(method))] if method else []
        if method == "ard":
            words.append(f"{self.spec.get('prior')} prior")
            words += ["point estimates (MAP)"] if self.spec.get("inference") == "map" else []
        return ", ".join(words)

    # Size -----------------------------------------------------------------------------------------

    @property
    def dense_parameters(self) -> int:
        return int(self.record["parameters"]["dense"])

    @property
    def training_parameters(self) -> int:
        return int(self.record["parameters"]["training"])

    @property
    def final_parameters(self) -> int:
        return int(self.record["parameters"]["final"])

    @property
    def times_smaller(self) -> float:
        """Dense over final parameters."""
        return self.dense_parameters / self.final_parameters

    @property
    def ranks_before(self) -> Mapping[str, Sequence[int]]:
        ranks: Mapping[str, Sequence[int]] = self.record["ranks"]["before"]
        return ranks

    @property
    def ranks_after(self) -> Mapping[str, Sequence[int]]:
        ranks: Mapping[str, Sequence[int]] = self.record["ranks"]["after"]
        return ranks

    # Quality --------------------------------------------------------------------------------------

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The numbers known of each kind of prediction."""
        return {
            prediction: {key: value for key, value in found.items() if is_number(value) and key not in _NO_SCORES}
            for prediction, found in self.record["metrics"].items()
            if prediction in PREDICTIONS
        }

    @property
    def accuracy(self) -> float | None:
        """Of the posterior mean on the evaluation examples."""
        return self.scores.get("posterior_mean", {}).get("accuracy")

    @property
    def main_scores(self) -> list[tuple[str, str]]:
        """Names and values of what says most of the posterior mean: accuracy, RMSE and R², or what there is."""
        scores = self.scores.get("posterior_mean", {})
        keys = [key for key in ("accuracy", "rmse", "nll_nats", *scores) if key in scores][:1]
        keys += ["r2"] if "rmse" in keys and "r2" in scores else []
        return [(score_name(key), score(key, scores[key])) for key in keys]

    # Training -------------------------------------------------------------------------------------

    @cached_property
    def history(self) -> tuple[Epoch, ...]:
        return tuple(_epoch(position, entry) for position, entry in enumerate(self.record["history"], start=1))

    @property
    def cuts(self) -> list[Cut]:
        """What was cut when, in the order of training."""
        found: list[Cut] = []
        now = {name: tuple(ranks) for name, ranks in self.ranks_before.items()}
        for epoch in self.history:
            for layer, ranks in epoch.ranks.items():
                if layer in now and tuple(ranks) != now[layer]:
                    found.append(Cut(layer, epoch.position, now[layer], tuple(ranks)))
                now[layer] = tuple(ranks)
        return found

    def values(self, key: str) -> tuple[list[int], list[float]]:
        """Positions and values of one quantity, where it was noted."""
        known = [(epoch.position, epoch.numbers[key]) for epoch in self.history if key in epoch.numbers]
        return [position for position, _ in known], [value for _, value in known]


def _epoch(position: int, entry: Record) -> Epoch:
    return Epoch(
        position,
        str(entry.get("stage", "train")),
        numbers={key: entry[key] for key in QUANTITIES if entry.get(key) is not None},
        ranks=entry.get("ranks") or {},
        variances=entry.get("variances") or {},
    )
