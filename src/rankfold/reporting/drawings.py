"""Drawings of their own kind: squares for sizes, strips of draws, a calibration diagram, a scatter, a picture."""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from rankfold.reporting.charts import HEIGHT, LEFT, TOP, WIDTH, label, spread, svg, x_axis, y_axis
from rankfold.reporting.markup import Html, element, join
from rankfold.reporting.scales import Scale, scale_of
from rankfold.reporting.wording import count
from rankfold.uncertainty import Bins

_LARGEST = 168.0  # side of the largest square


def squares(sizes: Sequence[tuple[str, int]], description: str) -> Html:
    """Squares in one corner, their areas in proportion to the sizes; the last one is filled."""
    largest = max(size for _, size in sizes)
    floor = _LARGEST + 8
    sides = [_LARGEST * math.sqrt(size / largest) for _, size in sizes]
    places = spread([floor - side + 9 for side in sides], 12, floor - 2, gap=34)
    parts = []
    for n, ((name, size), side, place) in enumerate(zip(sizes, sides, places, strict=True)):
        kind = "square final" if n == len(sizes) - 1 else f"square q{n}"
        parts.append(element("rect", {"x": 1, "y": floor - side, "width": side, "height": side, "class": kind}))
        parts.append(
            element("path", {"class": "leader", "d": f"M{side + 2:.1f} {floor - side + 0.5:.1f}L196 {place - 4:.1f}"})
        )
        parts.append(label(202, place, count(size), "size" + (" c0" if n == len(sizes) - 1 else "")))
        parts.append(label(202, place + 13, name, "tick"))
    return svg(floor + 8, description, *parts)


# Strips -----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Strip:
    """A row of values, each a thin stroke; with a mean, a bar reaches up to it and ± std is drawn across."""

    name: str
    values: Sequence[float]
    mean: float | None = None
    std: float = 0.0
    stands_out: bool = False


def strip_chart(strips: Sequence[Strip], description: str, *, x_label: str, log: bool = False) -> Html:
    """One strip below the other over a common axis: from 0 to 1, or over powers of ten."""
    height = 22.0
    bottom = TOP + height * len(strips)
    left = 14 + 6.2 * max(len(strip.name) for strip in strips)
    values = [value for strip in strips for value in strip.values]
    x = scale_of(values, left, WIDTH - 14, log=True) if log else Scale(0.0, 1.0, left, WIDTH - 14)
    rows = [_strip(strip, x, TOP + height * n, height) for n, strip in enumerate(strips)]
    return svg(bottom + 32, description, *rows, x_axis(x, x_label, bottom))


def _strip(strip: Strip, x: Scale, top: float, height: float) -> Html:
    middle, colour = top + height / 2, "c1" if strip.stands_out else "c0"
    strokes = "".join(f"M{x(value):.1f} {top + 3:.1f}v{height - 6:g}" for value in strip.values)
    parts = [label(x.start - 8, middle + 4, strip.name, "tick" + (" out" if strip.stands_out else ""), "end")]
    if strip.mean is not None:
        bar: dict[str, str | float] = {
            "x": x.start,
            "y": top + 5,
            "width": x(strip.mean) - x.start,
            "height": height - 10,
        }
        parts.append(element("rect", {**bar, "class": f"bar {colour}"}))
    if strokes:
        parts.append(
            element("path", {"class": f"strokes {colour}" + ("" if strip.mean is None else " faint"), "d": strokes})
        )
    if strip.mean is not None:
        low, high = (x(min(1.0, max(0.0, strip.mean + side * strip.std))) for side in (-1, 1))
        parts.append(element("path", {"class": "whisker", "d": f"M{low:.1f} {middle:.1f}H{high:.1f}"}))
    return join(*parts)


# Calibration ------------------------------------------------------------------------------------------


def calibration_diagram(bins: Bins, description: str) -> Html:
    """Accuracy over confidence, a dot per bin with an area by its examples; the diagonal is perfect."""
    x, y = Scale(0.0, 1.0, LEFT, LEFT + 220), Scale(0.0, 1.0, 250, 30)
    diagonal = element("path", {"class": "diagonal", "d": f"M{x(0):g} {y(0):g}L{x(1):g} {y(1):g}"})
    parts, most = [], max(bins.count)
    for number, confidence, accuracy in zip(bins.count, bins.confidence, bins.accuracy, strict=True):
        if number:
            at = {"cx": x(confidence), "cy": y(accuracy), "r": 3 + 7 * math.sqrt(number / most)}
            title = element("title", None, f"{count(number)} examples: {confidence:.1%} sure, {accuracy:.1%} right")
            parts.append(element("path", {"class": "gap", "d": f"M{at['cx']:.1f} {at['cy']:.1f}V{y(confidence):.1f}"}))
            parts.append(element("g", None, title, element("circle", {**at, "class": "dot c0"})))
    side = label(LEFT - 34, 14, "share of right answers", "tick")
    return svg(292, description, y_axis(y, x.end), x_axis(x, "confidence", 250), diagonal, *parts, side)


# Scatter ----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Dot:
    """A row of a comparison: how large it is, how good, and whether to name it beside the dot."""

    name: str
    size: float
    quality: float
    colour: int
    named: bool


def scatter(dots: Sequence[Dot], description: str, *, x_label: str, y_label: str) -> Html:
    """Quality over size, the sizes by logarithms: up and to the left is better."""
    left = LEFT + 8
    x = scale_of([dot.size for dot in dots], left, WIDTH - 20, log=True)
    y = scale_of([100 * dot.quality for dot in dots], HEIGHT + 30, TOP + 14)
    marks = [
        element(
            "g",
            None,
            element("title", None, f"{dot.name}: {100 * dot.quality:.2f} %, {count(dot.size)}"),
            element("circle", {"cx": x(dot.size), "cy": y(100 * dot.quality), "r": 4, "class": f"dot c{dot.colour}"}),
        )
        for dot in dots
    ]
    name = label(4, 12, y_label, "tick")
    bottom = HEIGHT + 30
    return svg(
        bottom + 32, description, y_axis(y, x.end), x_axis(x, x_label, bottom), name, *marks, *_names(dots, x, y)
    )


def _names(dots: Sequence[Dot], x: Scale, y: Scale) -> list[Html]:
    """Names beside their dots, at the left of those that stand far to the right."""
    named = [dot for dot in dots if dot.named]
    places = spread([y(100 * dot.quality) for dot in named], TOP, HEIGHT + 24)
    turned = [x(dot.size) + 8 + 6 * len(dot.name) > WIDTH for dot in named]
    return [
        label(x(dot.size) + (-8 if turn else 8), place + 4, dot.name, f"end c{dot.colour}", "end" if turn else None)
        for dot, place, turn in zip(named, places, turned, strict=True)
    ]


# Pictures ---------------------------------------------------------------------------------------------


def picture(pixels: Sequence[int], description: str) -> Html | None:
    """A square picture of bytes, grey (H·W) or in colour (3·H·W); ``None`` if the number of pixels fits neither."""
    for channels in (1, 3):
        side = math.isqrt(len(pixels) // channels)
        if side and side * side * channels == len(pixels):
            data = b64encode(png(pixels, side, channels)).decode("ascii")
            attributes = {"class": "picture", "src": f"data:image/png;base64,{data}", "alt": description}
            return element("img", {**attributes, "width": side, "height": side})
    return None


def png(pixels: Sequence[int], side: int, channels: int) -> bytes:
    """A PNG file of bytes (channels, side, side)."""
    area = side * side
    rows = [
        bytes([0, *(min(255, max(0, pixels[c * area + r * side + k])) for k in range(side) for c in range(channels))])
        for r in range(side)
    ]
    header = struct.pack(">IIBBBBB", side, side, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
