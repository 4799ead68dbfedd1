"""Tiny data of every kind, easy to learn."""

import csv

import numpy as np
from data.criteo.fake import fake_lines
from PIL import Image

COLOURS = ("red", "green", "blue")


def images(folder, per_class=12, size=8, labelled=True):
    """Bright stripes on noise: upright ones are called ``up``, others ``flat``."""
    random = np.random.default_rng(0)
    for label in ("up", "flat"):
        place = folder / label if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        for n in range(per_class):
            pixels = random.integers(0, 60, (size, size), dtype=np.uint8)
            stripe = random.integers(size)
            pixels[(slice(None), stripe) if label == "up" else (stripe, slice(None))] += 180
            Image.fromarray(pixels).save(place / f"{label}{n}.png")
    return folder


def rows(size=60, seed=0):
    """Two numbers and a colour; the colour and the sum of the numbers tell ``kind`` and ``price``."""
    random = np.random.default_rng(seed)
    for _ in range(size):
        width, height, colour = random.normal(5, 2), random.normal(100, 10), random.integers(3)
        price = 3 * width + 0.5 * height + 10 * colour + random.normal(0, 0.1)
        yield {
            "width": f"{width:.3f}",
            "height": f"{height:.3f}",
            "colour": COLOURS[colour],
            "kind": "dear" if price > 75 else "cheap",
            "price": f"{price:.3f}",
        }


def table(file, *, drop=(), size=60, seed=0):
    found = [{key: value for key, value in row.items() if key not in drop} for row in rows(size, seed)]
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    return file


def lines(file, size=60, labelled=True):
    random = np.random.default_rng(0)
    words = {"good": ["fine", "great", "lovely"], "bad": ["poor", "dull", "awful"]}
    filler = [f"word{n}" for n in range(200)]
    texts = []
    for n in range(size):
        label = ("good", "bad")[n % 2]
        text = " ".join([*random.choice(filler, 6), *random.choice(words[label], 3)])
        texts.append(f"{label}\t{text}" if labelled else text)
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def clicks(file, size=120, labelled=True):
    found = fake_lines(size)
    file.write_bytes(b"\n".join(line if labelled else line.partition(b"\t")[2] for line in found) + b"\n")
    return file


def planted_clicks(file, size=800):
    """Of six values of category 1, three are clicked by 80 %, the others by 10 %; nothing else says anything.

    Half of the numbers and one category in twenty are missing.
    """
    random = np.random.default_rng(0)
    with file.open("w") as opened:
        for _ in range(size):
            categories = random.integers(2, size=26)
            categories[0] = random.integers(6)
            label = int(random.random() < (0.8 if categories[0] % 2 else 0.1))
            numbers = [str(x) if random.random() < 0.5 else "" for x in random.integers(0, 1000, 13)]
            tokens = [f"{x:08x}" if random.random() < 0.95 else "" for x in categories + 1]
            opened.write("\t".join([str(label), *numbers, *tokens]) + "\n")
    return file
