"""Line and step charts as SVG: thin axes, few ticks, and labels at the ends of the lines.

Colours and fonts are the page's: elements carry classes, the style sheet says what they look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from rankfold.reporting.markup import Html, Value, element, join
from rankfold.reporting.scales import Scale, scale_of

WIDTH, HEIGHT = 360, 210
LEFT, TOP, BOTTOM = 42, 18, 30
NUM_COLOURS, NUM_DASHES = 4, 4
_RIGHT = 56.0  # room for most labels, so that charts below each other have the same axis
_LETTER = 5.9  # average width of a label's letter
_LINE = 12.5  # height of a label
_MOST_POINTS, _MOST_THIN_POINTS = 400, 50  # more cannot be told apart


@final
@dataclass(frozen=True)
class Series:
    """One line: values ``ys`` at ``xs``, a label for its end, and which colour and dashes it has.

    A ``step`` keeps each value until the next. A ``thin`` line is one of many.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: Literal["line", "step"] = "line"
    colour: int = 0
    dash: int = 0
    thin: bool = False


@final
@dataclass(frozen=True)
class Mark:
    """A stretch of the x axis with a name, such as the warm-up; one without length is a vertical line."""

    label: str
    start: float
    end: float


def line_chart(
    series: Sequence[Series],
    description: str,
    *,
    y_label: str = "",
    log: bool = False,
    zero: bool = True,
    marks: Sequence[Mark] = (),
) -> Html:
    """Lines over epochs. ``zero`` lets a straight y axis begin at 0; its name stands above, at the right."""
    right = max([_RIGHT, *(12 + _LETTER * len(line.label) for line in series)])
    xs, ys = [value for line in series for value in line.xs], [value for line in series for value in line.ys]
    x = Scale(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, LEFT, WIDTH - right)
    y = scale_of(ys, HEIGHT - BOTTOM, TOP, log=log, zero=zero)
    return svg(
        HEIGHT,
        description,
        *(_mark(mark, x) for mark in marks),
        y_axis(y, WIDTH - right),
        x_axis(x, "epoch"),
        label(x.end, TOP - 6, y_label, "mark", "end") if y_label else Html(),
        *(_line(line, x, y) for line in series),
        *_end_labels(series, x, y),
    )


def svg(height: float, description: str, *parts: Html) -> Html:
    """The drawing, with what it shows in words for those who do not see it."""
    attributes: dict[str, Value] = {
        "viewBox": f"0 0 {WIDTH} {height:g}",
        "role": "img",
        "aria-label": description,
    }
    return element("svg", attributes, *parts)


def label(x: float, y: float, text: str, kind: str = "", anchor: str | None = None) -> Html:
    """Text at a place of a drawing."""
    return element("text", {"x": x, "y": y, "class": kind or None, "text-anchor": anchor}, text)


# Axes -------------------------------------------------------------------------------------------------


def y_axis(y: Scale, right: float) -> Html:
    """Pale horizontal lines with their numbers at the left."""
    lines = [element("line", {"x1": LEFT, "x2": right, "y1": y(v), "y2": y(v), "class": "rule"}) for v in y.ticks]
    numbers = [label(LEFT - 6, y(v) + 3.5, short(v), "tick y", "end") for v in y.ticks]
    return join(*lines, *numbers)


def x_axis(x: Scale, name: str, bottom: float = HEIGHT - BOTTOM) -> Html:
    """A thin line with numbers below, and the name of the axis after the last."""
    base = element("line", {"x1": x.start, "x2": x.end, "y1": bottom, "y2": bottom, "class": "axis"})
    ticks = x.ticks
    numbers = [label(x(v), bottom + 14, short(v), "tick x", "middle") for v in ticks]
    return join(base, *numbers, label(x.end, bottom + 27, name, "tick name", "end"))


def short(value: float) -> str:
    """A number for an axis.

    >>> [short(v) for v in (0, 0.25, 20, 1500, 20000.0, 4e6, 1e-6)]
    ['0', '0.25', '20', '1.5 k', '20 k', '4 M', '1e−6']
    """
    size = abs(value)
    for power, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if size >= power:
            return f"{value / power:g}{unit}".replace("-", "−")
    if size and size < 1e-3:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−")
    return f"{value:g}".replace("-", "−")


def _mark(mark: Mark, x: Scale) -> Html:
    start, end = x(mark.start), x(mark.end)
    name = label(start, TOP - 6, mark.label, "mark")
    if start == end:
        return join(
            element("line", {"x1": start, "x2": start, "y1": TOP, "y2": HEIGHT - BOTTOM, "class": "axis"}), name
        )
    band: dict[str, Value] = {"x": start, "y": TOP, "width": end - start, "height": HEIGHT - BOTTOM - TOP}
    return join(element("rect", {**band, "class": "band"}), name)


# Lines ------------------------------------------------------------------------------------------------


def _line(line: Series, x: Scale, y: Scale) -> Html:
    points = list(zip(line.xs, line.ys, strict=True))
    d = (
        step_path(points, x, y)
        if line.kind == "step"
        else line_path(points, x, y, _MOST_THIN_POINTS if line.thin else _MOST_POINTS)
    )
    kind = f"line c{line.colour % NUM_COLOURS} d{line.dash % NUM_DASHES}" + (" thin" if line.thin else "")
    return element("path", {"class": kind, "d": d})


def line_path(points: Sequence[tuple[float, float]], x: Scale, y: Scale, most: int = _MOST_POINTS) -> str:
    """Straight from point to point; every so many of a very long history, and the last."""
    every = -(-len(points) // most)
    shown = [*points[:-1:every], points[-1]]
    return "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in shown)


def step_path(points: Sequence[tuple[float, float]], x: Scale, y: Scale) -> str:
    """Level until the next change, then up or down at once."""
    (first, value), *rest = points
    d = f"M{x(first):.1f} {y(value):.1f}"
    for at, new in rest:
        if new != value:
            d += f"H{x(at):.1f}V{y(new):.1f}"
            value = new
    return d + f"H{x(points[-1][0]):.1f}"


def _end_labels(series: Sequence[Series], x: Scale, y: Scale) -> list[Html]:
    """The name of each line at its end, moved up or down where two would touch."""
    named = [line for line in series if line.label]
    places = spread([y(line.ys[-1]) for line in named], TOP, HEIGHT - BOTTOM)
    return [
        label(x.end + 6, place + 3.5, line.label, f"end c{line.colour % NUM_COLOURS}")
        for line, place in zip(named, places, strict=True)
    ]


def spread(wanted: Sequence[float], low: float, high: float, gap: float = _LINE) -> list[float]:
    """Places as near to the wanted ones as can be, in their order, ``gap`` apart and within ``low … high``.

    >>> spread([50, 51, 90], 0, 100, gap=10)
    [50, 60, 90]
    >>> spread([99, 98], 0, 100, gap=10)
    [100, 90]
    """
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    places = list(wanted)
    floor = low
    for n in order:
        places[n] = max(wanted[n], floor)
        floor = places[n] + gap
    ceiling = high
    for n in reversed(order):
        places[n] = min(places[n], ceiling)
        ceiling = places[n] - gap
    return places
