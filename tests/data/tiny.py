"""Data sets like MNIST, but tiny, with checksums of their own."""

import hashlib

import numpy as np

from rankfold.data.idx import encode, write_idx
from rankfold.data.mnist import DataFile, DataSet, Part


def data_file(name, array):
    return DataFile(name, array.shape, hashlib.md5(encode(array)).hexdigest())


def make(name, seed, train=6, test=4):
    """A data set, and its arrays by file: all of it as one table, cut into parts as MNIST is."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = random.permutation(train + test).astype(np.uint8)
    train_part, test_part = slice(0, train), slice(train, train + test)
    parts, arrays = [], {}
    for prefix, rows in (("train", train_part), ("t10k", test_part)):
        images = data_file(f"{prefix}-images-idx3-ubyte", pixels[rows])
        answers = data_file(f"{prefix}-labels-idx1-ubyte", labels[rows])
        parts.append(Part(images, answers, rows.start))
        arrays |= {images: pixels[rows], answers: labels[rows]}
    return DataSet(name, f"{name} at OpenML", tuple(parts)), arrays


def write(folder, arrays, suffix=".gz"):
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in arrays.items():
        write_idx(folder / f"{file.name}{suffix}", array)
