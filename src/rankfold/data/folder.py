"""A folder of images, one sub-folder per class; or, to predict, a folder of images alone.

Images are read by Pillow: pip install 'rankfold[experiments]'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from rankfold.data.errors import DamagedData, MissingData

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Images that are larger, or not all of one size, become squares of so many pixels.
LARGEST = 64
# Smaller ones are enlarged: a network that halves an image three times needs so many pixels.
SMALLEST = 8
_GRAY = ("1", "L", "LA", "I", "I;16", "F")


@final
@dataclass(frozen=True)
class ImageFolder:
    """Where images are, and the class of each: the name of its folder.

    Attributes:
        path: of the folder.
        files: of all images, in the order of their names.
        labels: one for each file; ``None`` if they lie in the folder itself.
        left_out: names of images that lie beside the folders of the classes.
    """

    path: Path
    files: tuple[Path, ...]
    labels: tuple[str, ...] | None
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """Of an image, below the folder."""
        return self.files[index].relative_to(self.path).as_posix()


@final
@dataclass(frozen=True)
class ImageShape:
    """What images are brought to: channels (1 gray, 3 colour), height and width."""

    channels: int
    height: int
    width: int


def read_folder(path: Path) -> ImageFolder:
    """The images in the sub-folders of a folder, or in the folder itself if it has none."""
    if not path.is_dir():
        raise MissingData(f"{path} is no folder; give a folder with one sub-folder of images per class")
    classes = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        return ImageFolder(path, _images(path, path), None)
    files = [(file, folder.name) for folder in classes for file in _images(folder, path)]
    loose = tuple(sorted(entry.name for entry in path.iterdir() if _is_image(entry)))
    return ImageFolder(path, tuple(file for file, _ in files), tuple(name for _, name in files), loose)


def _images(folder: Path, root: Path) -> tuple[Path, ...]:
    found = tuple(sorted(filter(_is_image, folder.rglob("*"))))
    if not found:
        hint = "remove it, or put images into it" if folder != root else "put a sub-folder per class into it"
        raise MissingData(f"{folder} has no images ({', '.join(ENDINGS)}); {hint}")
    return found


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in ENDINGS and not file.name.startswith(".") and file.is_file()


def common_shape(folder: ImageFolder) -> ImageShape:
    """The size all images have, if it is one and small; otherwise a square. Gray if all of them are."""
    sizes, modes = Counter[tuple[int, int]](), set[str]()
    for file in folder.files:
        size, mode = _header(file)
        sizes[size] += 1
        modes.add(mode)
    width, height = next(iter(sizes)) if len(sizes) == 1 else (LARGEST, LARGEST)
    if max(width, height) > LARGEST:
        width = height = LARGEST
    return ImageShape(1 if modes.issubset(_GRAY) else 3, max(height, SMALLEST), max(width, SMALLEST))


def pixels(files: Sequence[Path], shape: ImageShape) -> NDArray[np.uint8]:
    """All images as (N, channels, height, width), resized where they have another size."""
    result = np.empty((len(files), shape.channels, shape.height, shape.width), np.uint8)
    for n, file in enumerate(files):
        result[n] = _pixels(file, shape)
    return result


def _pixels(file: Path, shape: ImageShape) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file) as image:
            converted = image.convert("L" if shape.channels == 1 else "RGB")
            resized = converted.resize((shape.width, shape.height), Image.Resampling.BILINEAR)
            values = np.asarray(resized, np.uint8).reshape(shape.height, shape.width, shape.channels)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _damaged(file, error) from error
    return values.transpose(2, 0, 1)


def _header(file: Path) -> tuple[tuple[int, int], str]:
    """Size (width, height) and mode, without reading the pixels."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image.size, image.mode
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> DamagedData:
    return DamagedData(f"{file} cannot be read as an image ({error}); replace it, or move it out of the folder")
