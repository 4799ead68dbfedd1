"""Folders of images: pixels, standardised per channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.data.errors import MissingData
from rankfold.data.folder import ImageFolder, ImageShape, common_shape, pixels, read_folder
from rankfold.jobs.preparation import DataOptions, Encoded, Learned, ModelName, Network, Preparation, divide
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
        preparation = cls(target, shape, tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))
        return Learned(preparation, preparation._encode(folder, values), train, validation)

    def read(self, path: Path) -> Encoded:
        if not path.exists():
            raise MissingData(f"there is no {path}; give an image, a folder of images, or one with a folder per class")
        folder = read_folder(path) if path.is_dir() else ImageFolder(path.parent, (path,), None)
        return self._encode(folder, pixels(folder.files, self.shape))

    def network(self, model: ModelName) -> Network:
        if model == "mlp":
            return Network(ImageMLP, {**asdict(self.shape), "num_classes": len(self.target.names)})
        return Network(ImageCNN, {"channels": self.shape.channels, "num_classes": len(self.target.names)})

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        target, shape = Classes(tuple(content["target"]["names"])), ImageShape(**content["shape"])
        return cls(target, shape, tuple(content["mean"]), tuple(content["std"]))

    def _encode(self, folder: ImageFolder, values: NDArray[np.uint8]) -> Encoded:
        names = tuple(folder.name(n) for n in range(len(folder)))
        labels = None
        if folder.labels is not None:
            labels = self.target.encode(folder.labels, lambda n: str(folder.files[n]))
        return Encoded((self._standardised(values),), labels, names)

    def _standardised(self, values: NDArray[np.uint8]) -> Tensor:
        mean, std = (torch.tensor(x, dtype=torch.float32)[:, None, None] for x in (self.mean, self.std))
        return torch.from_numpy(values).float().sub_(mean).div_(std)
