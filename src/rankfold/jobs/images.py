"""Folders of images: pixels, standardised per channel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.errors import MissingData
from rankfold.data.folder import ImageFolder, ImageShape, common_shape, pixels, read_folder
from rankfold.jobs.preparation import DataOptions, Encoded, Learned, ModelName, Network, Preparation, counted, divide
from rankfold.jobs.targets import Classes
from rankfold.models.cnn import ImageCNN
from rankfold.models.mlp import ImageMLP


@final
@dataclass(frozen=True)
class Images(Preparation):
    """Images of one shape, less the mean of each channel and divided by its standard deviation."""

    kind: ClassVar[str] = "images"
    described_as: ClassVar[str] = "a folder of images"
    models: ClassVar[tuple[ModelName, ...]] = ("cnn", "mlp")
    name_of_examples: ClassVar[str] = "file"
    options: ClassVar[tuple[str, ...]] = ("image_size",)

    target: Classes
    shape: ImageShape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def learn(cls, path: Path, options: DataOptions) -> Learned:
        folder = read_folder(path)
        if folder.labels is None:
            raise MissingData(f"{path} has images but no sub-folders; make one for every class, named after it")
        target, shape = Classes.of(folder.labels, path), common_shape(folder)
        if options.image_size is not None:
            shape = replace(shape, height=options.image_size, width=options.image_size)
        train, validation = divide(np.array(folder.labels), len(folder), options.validation_share, path)
        values = pixels(folder.files, shape)  # (N, C, H, W)
        chosen = values[train].astype(np.float64)
        mean, std = chosen.mean((0, 2, 3)), chosen.std((0, 2, 3))
        scales = tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
        preparation = cls(target, shape, *scales, folder.left_out)
        return Learned(preparation, preparation._encode(folder, values), train, validation)

    def read(self, path: Path) -> Encoded:
        if not path.exists():
            raise MissingData(f"there is no {path}; give an image, a folder of images, or one with a folder per class")
        folder = read_folder(path) if path.is_dir() else ImageFolder(path.parent, (path,), None)
        return self._encode(folder, pixels(folder.files, self.shape))

    @property
    def remark(self) -> str | None:
        return _left_out(self.left_out) if self.left_out else None

    def notes(self, examples: Encoded) -> Iterator[str]:
        if examples.left_out:
            yield f"{_left_out(examples.left_out)}; give a folder without sub-folders to predict for them"

    def network(self, model: ModelName) -> Network:
        if model == "mlp":
            return Network(ImageMLP, {**asdict(self.shape), "num_classes": len(self.target.names)})
        return Network(ImageCNN, {"channels": self.shape.channels, "num_classes": len(self.target.names)})

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        target, shape = Classes(tuple(content["target"]["names"])), ImageShape(**content["shape"])
        left_out = tuple(content.get("left_out", ()))  # older runs do not say
        return cls(target, shape, tuple(content["mean"]), tuple(content["std"]), left_out)

    def _encode(self, folder: ImageFolder, values: NDArray[np.uint8]) -> Encoded:
        names = tuple(folder.name(n) for n in range(len(folder)))
        labels = None
        if folder.labels is not None:
            labels = self.target.encode(folder.labels, lambda n: str(folder.files[n]))
        return Encoded((self._standardised(values),), labels, names, left_out=folder.left_out)

    def _standardised(self, values: NDArray[np.uint8]) -> Tensor:
        mean, std = (torch.tensor(x, dtype=torch.float32)[:, None, None] for x in (self.mean, self.std))
        return torch.from_numpy(values).float().sub_(mean).div_(std)


def _left_out(names: Sequence[str]) -> str:
    """Which images no class has.

    >>> _left_out(["a.png", "b.png"])
    "left out, as they are in no sub-folder: 2 images, the first is 'a.png'"
    """
    if len(names) == 1:
        return f"left out, as it is in no sub-folder: {names[0]!r}"
    return f"left out, as they are in no sub-folder: {counted(len(names), 'image')}, the first is {names[0]!r}"
