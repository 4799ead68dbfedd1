"""Classify handwritten digits with an exported model: numpy and onnxruntime, no torch, no rankfold.

python classify.py model.onnx
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime

BRIGHTEST = 16.0  # pixels are counts from 0 to 16; the model wants them from 0 to 1
SHADES = " .:-=+*#%"


def main() -> None:
    """Read the model and the digits, and print what it takes each of them for."""
    parser = argparse.ArgumentParser(description="Classify handwritten digits with an exported model.")
    parser.add_argument("model", type=Path, help="what `rankfold demo` and `rankfold export runs/demo` have written")
    parser.add_argument("--digits", type=Path, default=Path(__file__).with_name("digits.csv"))
    options = parser.parse_args()
    table = np.loadtxt(options.digits, delimiter=",", skiprows=1)
    labels, pixels = table[:, 0].astype(int), table[:, 1:]
    probabilities = classify(options.model, pixels)
    print(drawing(pixels[0]))
    for label, row in zip(labels, probabilities, strict=True):
        mark = "" if row.argmax() == label else "  <- wrong"
        print(f"a {label}, taken for a {row.argmax()} with probability {row.max():.2f}{mark}")
    right = int((probabilities.argmax(1) == labels).sum())
    print(f"{right} of {len(labels)} right, by a file of {options.model.stat().st_size:,} bytes")


def classify(model: Path, pixels: np.ndarray) -> np.ndarray:
    """The probabilities (N, 10) of images (N, 64)."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    images = (pixels / BRIGHTEST).astype(np.float32)
    (logits,) = session.run(None, {session.get_inputs()[0].name: images})
    scores = np.exp(logits - logits.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def drawing(pixels: np.ndarray) -> str:
    """An image (64,) in eight lines of text."""
    shades = (pixels / BRIGHTEST * (len(SHADES) - 1)).round().astype(int).reshape(8, 8)
    return "\n".join("".join(2 * SHADES[shade] for shade in line) for line in shades)


if __name__ == "__main__":
    main()
