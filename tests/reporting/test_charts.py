"""The points drawn are the numbers, read back through the axes' own labels."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import axis, parse, points

from rankfold.reporting.charts import Mark, Series, line_chart, spread
from rankfold.reporting.scales import linear_ticks, scale_of

values = st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 3)), min_size=2, max_size=30)


def drawn(svg):
    (chart,) = parse(svg).all("svg")
    x, y = axis(chart, "x"), axis(chart, "y")
    return [[(x(a), y(b)) for a, b in points(line.attributes["d"])] for line in chart.all("path", "line")]


@given(values)
def test_lines_go_through_their_points(ys):
    xs = list(range(1, len(ys) + 1))
    (line,) = drawn(line_chart([Series("end", xs, ys)], "words", zero=False))
    height = 2 * (max(ys) - min(ys)) or max(1.0, abs(ys[0]))
    assert [a for a, _ in line] == pytest.approx(xs, abs=0.02 * len(xs))
    assert [b for _, b in line] == pytest.approx(ys, abs=2e-3 * height + 1e-9)


def test_powers_of_ten_are_evenly_apart():
    ys = [3e-7, 2e-4, 0.5, 40.0]
    (line,) = drawn(line_chart([Series("", [1, 2, 3, 4], ys)], "words", log=True))
    assert [b for _, b in line] == pytest.approx(ys, rel=0.02)


def test_steps_stay_level_until_the_next_value():
    (line,) = drawn(line_chart([Series("5", [1, 2, 3, 4, 9], [20, 20, 8, 8, 5], "step")], "words"))
    corners = [(1, 20), (3, 20), (3, 8), (9, 8), (9, 5), (9, 5)]
    assert [round(v, 1) for corner in line for v in corner] == pytest.approx([v for c in corners for v in c], abs=0.1)


def test_of_a_very_long_history_every_so_many_and_the_last_are_drawn():
    ys = [float(n % 7) for n in range(5000)]
    (line,) = drawn(line_chart([Series("", range(5000), ys)], "words"))
    assert len(line) <= 401
    assert line[-1] == pytest.approx((4999, ys[-1]), abs=20)


def test_a_chart_says_in_words_what_it_shows():
    chart = parse(line_chart([Series("a < b", [1, 2], [3, 4])], 'from "3" to 4')).all("svg")[0]
    assert chart.attributes["aria-label"] == 'from "3" to 4'
    assert chart.attributes["role"] == "img"
    assert "a < b" in [text.text for text in chart.all("text", "end")]


def test_marks_cover_their_epochs():
    svg = line_chart([Series("", range(101), range(101))], "words", marks=[Mark("warm-up", 0, 50)])
    chart = parse(svg).all("svg")[0]
    x = axis(chart, "x")
    (band,) = chart.all("rect", "band")
    start, width = float(band.attributes["x"]), float(band.attributes["width"])
    assert (x(start), x(start + width)) == pytest.approx((0, 50), abs=0.1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=7))
def test_labels_do_not_touch(wanted):
    places = spread(wanted, 0, 100, gap=12)
    ordered = sorted(places)
    assert all(b - a >= 12 - 1e-9 for a, b in pairwise(ordered))
    assert ordered[0] >= -1e-9
    assert ordered[-1] <= 100 + 1e-9


@given(st.floats(-1e5, 1e5), st.floats(1e-3, 1e5))
def test_ticks_are_few_and_within_the_range(low, span):
    ticks = linear_ticks(low, low + span)
    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-6 * span <= tick <= low + 1.000001 * span for tick in ticks)


@given(values)
def test_scales_have_room_for_all_values(ys):
    scale = scale_of(ys, 100.0, 0.0)
    assert all(-1e-6 <= scale(y) <= 100 + 1e-6 for y in ys)


@pytest.mark.parametrize("constant", [0.0, 1.0, -3.0])
def test_a_constant_has_a_scale_too(constant):
    assert 0 <= scale_of([constant, constant], 100.0, 0.0)(constant) <= 100
