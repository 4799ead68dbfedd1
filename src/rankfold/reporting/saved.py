"""What lies beside a run: the saved model, whose λ and modes it can tell, and exported files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from safetensors import SafetensorError, safe_open

from rankfold.checkpoint import MANIFEST_FILE, TENSORS_FILE, read_manifest
from rankfold.manifest import StoredTensor
from rankfold.reporting.run import DEMO_FILE, RUN_FILE, Run
from rankfold.tensorized_weights import weight_name

_EXPORTS = (".onnx", ".pt2")


@final
@dataclass(frozen=True)
class SavedModel:
    """A checkpoint, without its network.

    Attributes:
        tensors: every factored weight, by the name of its layer.
        bias_sizes: of the layers that have a bias.
        variances: λ at the end, by layer, one list per rank.
    """

    tensors: Mapping[str, StoredTensor]
    bias_sizes: Mapping[str, int]
    variances: Mapping[str, Sequence[Sequence[float]]]

    @property
    def ranks_before(self) -> dict[str, list[int]]:
        return {name: list(tensor.max_ranks) for name, tensor in self.tensors.items()}


def saved_model(folder: Path) -> SavedModel | None:
    """The checkpoint in a folder, or ``None`` if there is none that can be read."""
    if not (folder / MANIFEST_FILE).is_file() or not (folder / TENSORS_FILE).is_file():
        return None
    try:
        tensors = {weight_name(tensor.name): tensor for tensor in read_manifest(folder).tensors}
        return SavedModel(tensors, *_numbers(folder / TENSORS_FILE, tensors))
    except (ValueError, OSError, SafetensorError):
        return None  # a report needs no model


def _numbers(
    file: Path, tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, int], dict[str, Sequence[Sequence[float]]]]:
    """Sizes of the biases, and λ of every rank."""
    with safe_open(file, framework="numpy") as opened:
        names = set(opened.keys())
        sizes = {
            layer: opened.get_slice(key).get_shape()[0]
            for layer in tensors
            if (key := f"{layer}.bias_vector.entries.mean.0") in names
        }
        variances = {
            layer: _split(opened.get_tensor(key).tolist(), tensor.ranks)
            for layer, tensor in tensors.items()
            if (key := f"{tensor.name}.variance") in names
        }
    return sizes, {layer: groups for layer, groups in variances.items() if any(groups)}


def _split(values: list[float], sizes: Sequence[int]) -> list[list[float]]:
    """One list per rank; λ of all ranks are stored one after the other."""
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return [values[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def run_folder(run: Run) -> Path | None:
    """Where a run's model is: its own folder, or ``runs/<table>/<name>`` for ``results/<table>/<name>.json``."""
    if run.file.name in (RUN_FILE, DEMO_FILE):
        return run.file.parent
    parts = list(run.file.resolve().parent.parts)
    if "results" not in parts:
        return None
    last = len(parts) - 1 - parts[::-1].index("results")
    folder = Path(*parts[:last], "runs", *parts[last + 1 :]) / run.file.stem
    return folder if folder.is_dir() else None


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of the saved model and of what was exported from it, by file name."""
    files = [file for place in (folder / "model", folder) if place.is_dir() for file in sorted(place.iterdir())]
    wanted = [file for file in files if file.suffix in _EXPORTS or file.name == TENSORS_FILE]
    return {str(file.relative_to(folder)): file.stat().st_size for file in wanted}
