"""What a table is about: its data, the dense network, and how each format folds the network's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from rankfold.config import CP, TT, TTM, Inference, TensorConfig, Tucker
from rankfold.experiments.spec import FormatName, Spec
from rankfold.priors import HalfCauchy, LogUniform

_Dims = tuple[int, ...]
CONFIGS: dict[FormatName, type[TensorConfig]] = {"cp": CP, "tucker": Tucker, "tt": TT, "ttm": TTM}


@final
@dataclass(frozen=True)
class Planted:
    """A model that made the labels.

    Attributes:
        ranks: of every layer, as a run reports those it found.
        accuracy: how often the model itself is right about the labels it made for the evaluation images.
        label_shares: of every class among the training labels.
    """

    ranks: dict[str, list[int]]
    accuracy: float
    label_shares: list[float]


@dataclass(frozen=True)
class Examples:
    """Images (N, 784), standardised, and labels (N,), all on one device."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """What to train on, what to look at, and images of something else, if there are any.

    ``planted`` is what made the labels, where a model did.
    """

    train: Examples
    evaluation: Examples
    unfamiliar: Tensor | None
    planted: Planted | None = None


@dataclass(frozen=True)
class Folding:
    """The rank a format starts from, and the modes (inputs, outputs) of every layer by its name."""

    max_rank: int
    layers: Mapping[str, tuple[_Dims, _Dims]]


def keep_labels(data: Data, spec: Spec) -> Data:
    """The images with the labels they came with."""
    return data


@final
@dataclass(frozen=True)
class Task:
    """What the runs of a table have in common.

    Args:
        network: makes the dense network.
        foldings: of its layers, format by format.
        prepare: makes a run's own data of MNIST.
    """

    network: Callable[[], nn.Module]
    foldings: Mapping[FormatName, Folding]
    prepare: Callable[[Data, Spec], Data] = keep_labels

    def tensor_configs(
        self, spec: Spec, inference: Inference, ranks: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, TensorConfig]:
        """The config of each layer, at the maximum rank or at the given ``ranks`` of each layer."""
        assert spec.format is not None
        folding = self.foldings[spec.format]
        prior = HalfCauchy() if spec.prior == "half-cauchy" else LogUniform()
        return {
            name: CONFIGS[spec.format](
                tuple(ranks[name]) if ranks is not None else spec.max_rank or folding.max_rank,
                in_dims=in_dims,
                out_dims=out_dims,
                prior=prior,
                inference=inference,
            )
            for name, (in_dims, out_dims) in folding.layers.items()
        }
