"""What other libraries took for the same work, measured once, each in its own build.

One NVIDIA H200, float32 with TF32 off, medians of 30, forward + backward, skewed indices. They are shown only beside
figures of the same kind of device. FBTT-Embedding's times include its optimizer, which is part of its backward. The
dense layer was timed beside them: small layers wait for the host, and hosts differ.
"""

from __future__ import annotations

from dataclasses import dataclass

DEVICE = "H200"
AUTHORS, FBTT, T3NSOR, TENSORLY = "the authors' code", "FBTT-Embedding", "t3nsor", "tensorly-torch 0.5.0"
DENSE_THERE = "torch.nn there"

_ROWS = "Embedding 10,131,227 × 128, {} rows, skewed"
_FEW_ROWS, _MANY_ROWS = _ROWS.format("2,048"), _ROWS.format("65,536")
_SMALL = "Linear 784 → 512, batch 128"
_LARGE = "Linear 1024 → 4096, batch 4096"
_SQUARE = "Linear 4096 → 4096, batch 4096"


@dataclass(frozen=True)
class Figure:
    """One peer in one case."""

    case: str
    format: str
    peer: str
    ms: float
    extra_mib: int | None = None


FIGURES = (
    Figure(_FEW_ROWS, "dense", DENSE_THERE, 0.37),
    Figure(_MANY_ROWS, "dense", DENSE_THERE, 0.41, 33),
    Figure(_SMALL, "dense", DENSE_THERE, 0.21),
    Figure(_LARGE, "dense", DENSE_THERE, 2.21),
    Figure(_SQUARE, "dense", DENSE_THERE, 8.30),
    Figure(_FEW_ROWS, "TTM", AUTHORS, 1.31),
    Figure(_FEW_ROWS, "TT", AUTHORS, 1.42),
    Figure(_FEW_ROWS, "CP", AUTHORS, 1.40),
    Figure(_FEW_ROWS, "Tucker", AUTHORS, 1.67),
    Figure(_FEW_ROWS, "TTM", FBTT, 0.92),
    Figure(_FEW_ROWS, "TTM", T3NSOR, 18.9),
    Figure(_MANY_ROWS, "TTM", AUTHORS, 2.64, 641),
    Figure(_MANY_ROWS, "TT", AUTHORS, 5.83, 488),
    Figure(_MANY_ROWS, "CP", AUTHORS, 11.8, 649),
    Figure(_MANY_ROWS, "Tucker", AUTHORS, 37.3, 6153),
    Figure(_MANY_ROWS, "TTM", FBTT, 9.43, 72),
    Figure(_MANY_ROWS, "TTM", T3NSOR, 19.3, 10818),
    Figure(_SMALL, "TTM", AUTHORS, 0.52),
    Figure(_SMALL, "TT", AUTHORS, 0.80),
    Figure(_SMALL, "CP", AUTHORS, 0.88),
    Figure(_SMALL, "Tucker", AUTHORS, 1.16),
    Figure(_SMALL, "TTM", TENSORLY, 2.75),
    Figure(_SMALL, "CP", TENSORLY, 3.65),
    Figure(_SMALL, "Tucker", TENSORLY, 5.38),
    Figure(_LARGE, "TTM", AUTHORS, 2.66),
    Figure(_LARGE, "TT", AUTHORS, 2.59),
    Figure(_LARGE, "CP", AUTHORS, 2.74),
    Figure(_LARGE, "Tucker", AUTHORS, 2.92),
    Figure(_LARGE, "TTM", TENSORLY, 3.85),
    Figure(_LARGE, "CP", TENSORLY, 4.51),
    Figure(_LARGE, "Tucker", TENSORLY, 5.68),
    Figure(_SQUARE, "TTM", AUTHORS, 8.91),
    Figure(_SQUARE, "TT", AUTHORS, 8.72),
    Figure(_SQUARE, "CP", AUTHORS, 8.93),
    Figure(_SQUARE, "Tucker", AUTHORS, 8.96),
    Figure(_SQUARE, "TTM", TENSORLY, 20.8, 4161),
    Figure(_SQUARE, "CP", TENSORLY, 4.40),
    Figure(_SQUARE, "Tucker", TENSORLY, 5.43),
)


def fastest(case: str, format: str) -> Figure | None:
    """The fastest peer of a case and format.

    >>> fastest("Linear 4096 → 4096, batch 4096", "CP").ms
    4.4
    """
    return min(_of(case, format), key=lambda figure: figure.ms, default=None)


def smallest(case: str, format: str) -> Figure | None:
    """The peer that needs the least extra memory, where that was measured."""
    measured = [figure for figure in _of(case, format) if figure.extra_mib is not None]
    return min(measured, key=lambda figure: figure.extra_mib or 0, default=None)


def _of(case: str, format: str) -> list[Figure]:
    return [figure for figure in FIGURES if (figure.case, figure.format) == (case, format)]
