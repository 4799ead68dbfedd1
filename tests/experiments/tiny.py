"""A tiny stand-in for MNIST, and a tiny table of experiments on it."""

import struct
from pathlib import Path

import torch

NUM_TRAIN, NUM_TEST = 384, 96
SETTINGS = "max_rank = 3\nepochs = 2\nfine_tune_epochs = 1\nbatch_size = 64\nlr = 0.01\n"


def write_data(root: Path) -> Path:
    """Files like those of MNIST and Fashion-MNIST: bright stripes, at a height that tells the label."""
    generator = torch.Generator().manual_seed(0)
    for folder, names in (("mnist", ("train", "t10k")), ("fashion-mnist", ("t10k",))):
        (root / folder).mkdir(parents=True)
        for name in names:
            size = NUM_TRAIN if name == "train" else NUM_TEST
            labels = torch.randint(10, (size,), generator=generator, dtype=torch.uint8)
            images = torch.randint(60, (size, 28, 28), generator=generator, dtype=torch.uint8)
            if folder == "mnist":
                for image, label in zip(images, labels, strict=True):
                    image[2 * int(label) + 4 : 2 * int(label) + 6] += 150
            write_idx(root / folder / f"{name}-images-idx3-ubyte", images)
            write_idx(root / folder / f"{name}-labels-idx1-ubyte", labels)
    return root


def write_idx(file: Path, values: torch.Tensor) -> None:
    header = struct.pack(f">BBBB{values.dim()}I", 0, 0, 8, values.dim(), *values.shape)
    file.write_bytes(header + values.numpy().tobytes())


def write_table(experiments: Path, formats=("cp", "tucker", "tt", "ttm")) -> Path:
    """A table called ``tiny`` with every method in every format."""
    folder = experiments / "tiny"
    folder.mkdir(parents=True)
    (folder / "defaults.toml").write_text('task = "mnist"\n')
    (folder / "dense.toml").write_text('method = "dense"\nepochs = 2\nbatch_size = 64\nlr = 0.01\n')
    for name in formats:
        rows = {
            "fr": 'method = "fr"',
            "tc-mr": 'method = "tc-mr"',
            "tc-or": f'method = "tc-or"\noracle = "{name}-ard-lu"',
            "ard-lu": 'method = "ard"',
            "ard-hc": 'method = "ard"\nprior = "half-cauchy"',
            "ard-lu-map": 'method = "ard"\ninference = "map"',
            "ard-hc-map": 'method = "ard"\nprior = "half-cauchy"\ninference = "map"',
        }
        for row, text in rows.items():
            (folder / f"{name}-{row}.toml").write_text(f'{text}\nformat = "{name}"\n{SETTINGS}')
    return folder
