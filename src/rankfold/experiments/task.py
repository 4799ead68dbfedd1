"""What a table is about: its data, the dense network, and how each format folds the network's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankfold.config import CP, TT, TTM, Inference, TensorConfig, Tucker
from rankfold.experiments.spec import FormatName, PriorName, Spec, Split
from rankfold.priors import HalfCauchy, LogUniform, ShrinkagePrior

_Dims = tuple[int, ...]
CONFIGS: dict[FormatName, type[TensorConfig]] = {"cp": CP, "tucker": Tucker, "tt": TT, "ttm": TTM}
PRIORS: dict[PriorName, ShrinkagePrior] = {"log-uniform": LogUniform(), "half-cauchy": HalfCauchy()}


def format_label(format: FormatName | None, without: str = "") -> str:
    """A format as the paper calls it, or what stands where there is none."""
    return without if format is None else CONFIGS[format].__name__


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
    """What a network takes, one tensor (N, …) per argument, and labels (N,), all on one device."""

    inputs: tuple[Tensor, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the examples ``index`` (B,)."""
        return tuple(values[index] for values in self.inputs)


@dataclass(frozen=True)
class Data:
    """What to train on, what to look at, and inputs of another kind, if there are any.

    ``planted`` is what made the labels, where a model did; ``files`` are where the examples are from, where those are
    files of anybody's own.
    """

    train: Examples
    evaluation: Examples
    unfamiliar: tuple[Tensor, ...] | None = None
    planted: Planted | None = None
    files: Sequence[Path] = ()


@dataclass(frozen=True)
class Folding:
    """How a format starts.

    Attributes:
        max_rank: for all layers, or each by name.
        layers: the modes (inputs, outputs) of every layer.
        init_std: of the weights; each layer's own if left out.
        equal_rows: whether all rows of a table start equal.
    """

    max_rank: int | Mapping[str, int | _Dims]
    layers: Mapping[str, tuple[_Dims, _Dims]]
    init_std: float | None = None
    equal_rows: bool = False

    def rank_of(self, layer: str) -> int | _Dims:
        return self.max_rank if isinstance(self.max_rank, int) else self.max_rank[layer]

    def configs(
        self,
        format: FormatName,
        inference: Inference,
        ranks: Mapping[str, Sequence[int]] | None = None,
        *,
        max_rank: int | None = None,
        prior: ShrinkagePrior | None = None,
    ) -> dict[str, TensorConfig]:
        """The config of each layer in a format, at its own maximum rank, at another, or at the given ``ranks``."""
        return {
            name: CONFIGS[format](
                tuple(ranks[name]) if ranks is not None else max_rank or self.rank_of(name),
                in_dims=in_dims,
                out_dims=out_dims,
                prior=prior or LogUniform(),
                inference=inference,
                init_std=self.init_std,
                equal_rows=self.equal_rows,
            )
            for name, (in_dims, out_dims) in self.layers.items()
        }


def keep_labels(data: Data, spec: Spec) -> Data:
    """The examples with the labels they came with."""
    return data


def num_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """How many outputs agree with their labels: the largest of several logits, or the sign of a single one."""
    guesses = outputs > 0 if outputs.dim() == 1 else outputs.argmax(1)
    return (guesses == labels).sum()


@final
@dataclass(frozen=True)
class Task:
    """What the runs of a table have in common.

    Args:
        network: makes the dense network.
        foldings: of its layers, format by format.
        load: reads the data for a split onto a device, from a folder, with checksums if asked to.
        loss: mean NLL in nats of outputs, given labels.
        evaluate: scores of a trained model, with a seed for what is drawn; those of a classifier if left out.
        augment: makes a batch's inputs of its examples, on the device.
        settle: brings a trained model in order before it is evaluated, such as its batch norms.
        prepare: makes a run's own data of what was loaded.
        counted: what the numbers of parameters are of: the whole network, or the layers with foldings alone.
        too_large: whether a dense network is too much for the memory of most machines. It is then made only where
            the method is to train it, and never saved.
        find: raises an error if the data are not in the folder.
        edition: what sets the data in a folder, verified or not, apart from the published ones, as a name; ``None`` if
            nothing does.
        needs: what a run asks of the machine, where that is more than most have.
        remark: what to know before a result is held beside the paper's, by what it says of its data; ``None`` if there
            is nothing.
    """

    network: Callable[[], nn.Module]
    foldings: Mapping[FormatName, Folding]
    load: Callable[[Split, torch.device, Path | None, bool], Data]
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    evaluate: Callable[[nn.Module, Data, int], dict[str, Any]] | None = None
    augment: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None
    settle: Callable[[nn.Module, Data], None] | None = None
    prepare: Callable[[Data, Spec], Data] = keep_labels
    counted: Literal["network", "layers"] = "network"
    too_large: bool = False
    find: Callable[[Path | None], object] | None = None
    edition: Callable[[Path | None, bool], str | None] | None = None
    needs: str | None = None
    remark: Callable[[Mapping[str, Any]], str | None] | None = None

    def network_on_meta(self) -> nn.Module:
        """The dense network without its memory."""
        with torch.device("meta"):
            return self.network()

    def tensor_configs(
        self, spec: Spec, inference: Inference, ranks: Mapping[str, Sequence[int]] | None = None
    ) -> dict[str, TensorConfig]:
        """The config of each layer, at the maximum rank or at the given ``ranks`` of each layer."""
        assert spec.format is not None
        folding = self.foldings[spec.format]
        return folding.configs(spec.format, inference, ranks, max_rank=spec.max_rank, prior=PRIORS[spec.prior])
