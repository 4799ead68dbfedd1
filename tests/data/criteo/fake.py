"""Lines like those of Criteo, made up."""

import numpy as np


def fake_lines(num_lines: int, seed: int = 0, values: int = 40) -> list[bytes]:
    """Lines of the format with missing fields; integer 1 and category 1, of 40 values, tell the label."""
    random = np.random.default_rng(seed)
    return [_line(random, values) for _ in range(num_lines)]


def _line(random: np.random.Generator, values: int) -> bytes:
    label = int(random.random() < 0.3)
    integers = [b"%d" % x if random.random() < 0.8 else b"" for x in random.integers(-2, 5000, 13)]
    categories = [b"%08x" % (x * 7919 % 2**32) if random.random() < 0.9 else b"" for x in random.zipf(1.3, 26) % values]
    integers[0], categories[0] = b"%d" % (1 + 10**6 * label), b"%08x" % (1000 * label + random.integers(20))
    return b"\t".join([b"%d" % label, *integers, *categories])
