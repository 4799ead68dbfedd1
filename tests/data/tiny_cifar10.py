"""CIFAR-10, but tiny: six batches of a few random images, as the archive or as mosaics."""

import io
import tarfile

import numpy as np
from PIL import Image

from rankfold.data.cifar10 import ARCHIVE, BATCHES, LABELS

ROWS, COLUMNS = 2, 3  # tiles of a mosaic
COUNT = ROWS * COLUMNS


def make_records(count=COUNT):
    """Records (count, 3073) of every batch, by its name."""
    random = np.random.default_rng(0)
    made = {batch.name: random.integers(0, 256, (count, 3073), dtype=np.uint8) for batch in BATCHES}
    for array in made.values():
        array[:, 0] %= 10
    return made


def write_archive(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / ARCHIVE, "w:gz") as archive:
        for name, array in records.items():
            content = array.tobytes()
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_mosaics(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in records.items():
        picture = np.zeros((32 * ROWS, 32 * COLUMNS, 3), np.uint8)
        for n, record in enumerate(array):
            row, column = divmod(n, COLUMNS)
            tile = np.stack(np.split(record[1:], 3), axis=-1).reshape(32, 32, 3)
            picture[32 * row : 32 * row + 32, 32 * column : 32 * column + 32] = tile
        Image.fromarray(picture).save(folder / f"{name}.webp", lossless=True, exact=True)
    labels = {name: array[:, 0] for name, array in records.items()}
    train = np.concatenate([label for name, label in labels.items() if name != "test_batch"])
    np.savez(folder / LABELS, train=train, test=labels["test_batch"])
