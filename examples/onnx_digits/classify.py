"""Classify handwritten digits with an exported model: numpy and onnxruntime, no torch, no rankfold.

python classify.py model.onnx
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime

BRIGHTEST = 16.0  # pixels are counts from 0 to 16; the model wants them from 0 to 1
SHADES = " .:-=+*#%"
PIXELS, CLASSES = 64, 10


def main() -> None:
    """Read the model and the digits, and print what it takes each of them for."""
    parser = argparse.ArgumentParser(description="Classify handwritten digits with an exported model.")
    parser.add_argument("model", type=Path, help="what `rankfold demo` and `rankfold export runs/demo` have written")
    parser.add_argument("--digits", type=Path, default=Path(__file__).with_name("digits.csv"))
    options = parser.parse_args()
    labels, pixels = read(options.digits)
    probabilities = classify(options.model, pixels)
    print(drawing(pixels[0]))
    for label, row in zip(labels, probabilities, strict=True):
        mark = "" if row.argmax() == label else "  <- wrong"
        print(f"a {label}, taken for a {row.argmax()} with probability {row.max():.2f}{mark}")
    right = int((probabilities.argmax(1) == labels).sum())
    print(f"{right} of {len(labels)} right, by a file of {options.model.stat().st_size:,} bytes")


def read(digits: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) and pixels (N, 64) of a file."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of a file without lines, which is looked at below
            table = np.loadtxt(digits, delimiter=",", skiprows=1, ndmin=2)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read the digits in {digits}: {one_line(error)}")
    if table.shape[1] != 1 + PIXELS or len(table) == 0:
        sys.exit(f"{digits} must have a label and {PIXELS} pixels in every line below its heading, got {table.shape}")
    return table[:, 0].astype(int), table[:, 1:]


def classify(model: Path, pixels: np.ndarray) -> np.ndarray:
    """The probabilities (N, 10) of images (N, 64)."""
    images = (pixels / BRIGHTEST).astype(np.float32)
    try:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (logits,) = session.run(None, {session.get_inputs()[0].name: images})
    except Exception as error:  # those of onnxruntime have nothing else in common
        sys.exit(f"cannot classify digits with {model}: {one_line(error)}")
    if logits.shape != (len(images), CLASSES):
        sys.exit(f"{model} must answer with {CLASSES} scores for every digit, got an array of shape {logits.shape}")
    scores = np.exp(logits - logits.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def one_line(error: Exception) -> str:
    """What went wrong, without breaks."""
    return " ".join(str(error).split())


def drawing(pixels: np.ndarray) -> str:
    """An image (64,) in eight lines of text."""
    shades = (pixels / BRIGHTEST * (len(SHADES) - 1)).round().astype(int).reshape(8, 8)
    return "\n".join("".join(2 * SHADES[shade] for shade in line) for line in shades)


if __name__ == "__main__":
    main()
