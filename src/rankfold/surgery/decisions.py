"""What becomes of every layer of a model: tensorized, kept dense, or refused, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from rankfold.config import TensorConfig
from rankfold.counts import training_parameters
from rankfold.formats import TensorFormat
from rankfold.surgery.dense_layers import DenseLayer, Matrix, obstacle
from rankfold.surgery.selection import Choice, LayerFilter, Overrides, choose
from rankfold.surgery.tying import Tie, find_ties
from rankfold.wrapping import unwrapped


@dataclass(frozen=True)
class Decision:
    """What becomes of one layer.

    Attributes:
        config: what it is tensorized with; ``None`` if it stays dense.
        tie: the layers it shares its weight with, or ``None``.
        formats: one per matrix of the layer; those of the lender for a layer that borrows its tensor.
        note: why it stays dense, or what to look at.
        refusal: why it cannot be tensorized although it should.
    """

    layer: DenseLayer
    config: TensorConfig | None = None
    tie: Tie | None = None
    formats: tuple[TensorFormat, ...] = ()
    note: str = ""
    refusal: str = ""

    @property
    def lender(self) -> DenseLayer:
        """The layer whose tensor it uses: itself, or the leader of its tie."""
        return self.layer if self.tie is None else self.tie.leader


def decide(
    model: nn.Module, config: TensorConfig | None, filter_fn: LayerFilter | None, overrides: Overrides | None
) -> list[Decision]:
    """One decision for every layer that has a tensorized twin."""
    choices = {choice.layer: choice for choice in choose(model, config, filter_fn, overrides)}
    ties = find_ties(unwrapped(model), choices)
    return [_decide(choice, ties.get(choice.layer), choices) for choice in choices.values()]


def _decide(choice: Choice, tie: Tie | None, choices: Mapping[DenseLayer, Choice]) -> Decision:
    layer, config = choice.layer, choice.config
    if config is None:
        return Decision(layer, note=f"stays dense: {choice.reason}")
    is_empty = not (_is_lazy(layer) or all(matrix.in_size * matrix.out_size for matrix in layer.matrices))
    if is_empty and choice.by_default:
        return Decision(layer, note="stays dense: it has no weights")
    members = (layer,) if tie is None else tie.members
    formats, misfit = _build(members[0].matrices, config)
    if formats and all(choices[member].by_default for member in members):
        before, after = _sizes(members[0].matrices, formats)
        if after >= before:
            return Decision(layer, note=f"stays dense: would grow from {before:,} to {after:,} weights")
    untied = "" if tie is None else tie.problem({member: choices[member].config for member in members})
    refusal = "it has no weights" if is_empty else obstacle(layer) or untied or misfit
    if refusal:
        return Decision(layer, note=f"refused: {refusal}", refusal=refusal)
    return Decision(layer, config, tie, formats, note="; ".join(_notes(layer, tie, formats, config)))


def _is_lazy(layer: DenseLayer) -> bool:
    """Whether its sizes are not known yet."""
    return any(map(is_lazy, layer.module.parameters()))


def _build(matrices: Iterable[Matrix], config: TensorConfig) -> tuple[tuple[TensorFormat, ...], str]:
    """The formats of the matrices, or why there are none."""
    try:
        return tuple(matrix.build(config) for matrix in matrices), ""
    except ValueError as error:
        return (), str(error)


def _sizes(matrices: Iterable[Matrix], formats: Iterable[TensorFormat]) -> tuple[int, int]:
    """Weights before and after."""
    before = sum(matrix.in_size * matrix.kernel_size * matrix.out_size for matrix in matrices)
    return before, sum(format.num_entries for format in formats)


def _notes(
    layer: DenseLayer, tie: Tie | None, formats: tuple[TensorFormat, ...], config: TensorConfig
) -> Iterator[str]:
    if len(layer.names) > 1:
        yield f"also used as {', '.join(layer.names[1:])}"
    if tie is not None and tie.leader is not layer:
        yield f"shares the tensor of {tie.leader.name}" + (", transposed" if tie.is_transposed(layer) else "")
        return
    if tie is not None and tie.frees_padding(layer):
        yield "padding_idx no longer holds its row at zero, because another layer shares it"
    before, after = _sizes(layer.matrices, formats)
    if after >= before:
        yield f"grows from {before:,} to {after:,} weights"
    else:
        yield from _growth_in_training(layer, formats, config)
    for format in formats:
        yield from _useless_ranks(format)


def _growth_in_training(layer: DenseLayer, formats: tuple[TensorFormat, ...], config: TensorConfig) -> Iterator[str]:
    """A remark if the layer ends up smaller, but training holds more than the dense layer has."""
    dense = sum(p.numel() for p in layer.module.parameters())
    biases = [matrix.out_size if matrix.bias else 0 for matrix in layer.matrices]
    pairs = zip(formats, biases, strict=True)
    training = sum(training_parameters(format, config.inference, bias) for format, bias in pairs)
    if training > dense:
        yield f"grows in training: {training:,} against {dense:,} dense"


def _useless_ranks(format: TensorFormat) -> Iterator[str]:
    """One remark for every rank that is larger than its modes can use; allowed, but it adds nothing."""
    for n, (rank, useful) in enumerate(zip(format.ranks, format.useful_ranks, strict=True), start=1):
        if rank > useful:
            yield f"rank {n} of {len(format.ranks)}: {rank} exceeds what its modes can use ({useful})"
