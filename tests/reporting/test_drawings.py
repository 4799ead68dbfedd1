import io
import math

import pytest
import torch
from PIL import Image
from report_pages import axis, parse, points

from rankfold.reporting.drawings import (
    Bins,
    Dot,
    Strip,
    calibration_diagram,
    picture,
    png,
    scatter,
    squares,
    strip_chart,
)
from rankfold.uncertainty import calibration_bins, calibration_error


def test_areas_of_squares_are_in_proportion():
    svg = parse(squares([("dense", 407_050), ("training", 58_564), ("final", 4_070)], "words")).all("svg")[0]
    areas = [float(r.attributes["width"]) * float(r.attributes["height"]) for r in svg.all("rect")]
    assert [area / areas[0] for area in areas] == pytest.approx([1, 58_564 / 407_050, 4_070 / 407_050], rel=2e-3)
    assert [text.text for text in svg.all("text", "size")] == ["407,050", "58,564", "4,070"]


def test_strips_show_draws_mean_and_spread():
    draws = [0.1, 0.25, 0.9]
    svg = parse(strip_chart([Strip("“0”", draws, 0.4, 0.3, stands_out=True)], "words", x_label="p")).all("svg")[0]
    x = axis(svg, "x")
    strokes = [x(float(part.split()[0])) for part in svg.all("path", "strokes")[0].attributes["d"].split("M")[1:]]
    (low, _), (high, _) = points(svg.all("path", "whisker")[0].attributes["d"])
    bar = svg.all("rect", "bar")[0].attributes
    assert strokes == pytest.approx(draws, abs=1e-3)
    assert (x(low), x(high)) == pytest.approx((0.1, 0.7), abs=1e-3)
    assert x(float(bar["x"]) + float(bar["width"])) == pytest.approx(0.4, abs=1e-3)


def test_spread_stays_between_0_and_1():
    svg = parse(strip_chart([Strip("a", [], 0.9, 0.4)], "words", x_label="p")).all("svg")[0]
    (low, _), (high, _) = points(svg.all("path", "whisker")[0].attributes["d"])
    x = axis(svg, "x")
    assert (x(low), x(high)) == pytest.approx((0.5, 1.0), abs=1e-3)


def test_bins_have_the_calibration_error_of_torchmetrics():
    logits = 2.0 * torch.randn(500, 7)
    labels = torch.randint(7, (500,))
    labels[:300] = logits[:300].argmax(1)
    bins = calibration_bins(logits.softmax(1), labels)
    assert sum(bins.count) == 500
    assert bins.error == pytest.approx(calibration_error(logits.softmax(1), labels), abs=1e-6)
    right = (logits.argmax(1) == labels).double()
    total = sum(n * a for n, a in zip(bins.count, bins.accuracy, strict=True))
    assert total == pytest.approx(float(right.sum()))


def test_certainty_of_exactly_1_is_in_the_last_bin():
    bins = calibration_bins(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    assert (bins.count[-1], bins.confidence[-1], bins.accuracy[-1]) == (1, 1.0, 0.0)


def test_the_calibration_diagram_shows_bins_with_examples():
    bins = Bins([10, 0, 40], [0.3, 0.0, 0.9], [0.5, 0.0, 0.85])
    svg = parse(calibration_diagram(bins, "words")).all("svg")[0]
    x, y = axis(svg, "x"), axis(svg, "y")
    dots = [c.attributes for c in svg.all("circle")]
    found = [(x(float(c["cx"])), y(float(c["cy"]))) for c in dots]
    assert [v for pair in found for v in pair] == pytest.approx([0.3, 0.5, 0.9, 0.85], abs=2e-3)
    assert float(dots[1]["r"]) > float(dots[0]["r"])


def test_the_scatter_is_logarithmic_in_size():
    rows = [("a", 4_070, 0.985), ("dense", 407_050, 0.983)]
    svg = parse(scatter([Dot(*row, 0, True) for row in rows], "words", x_label="size", y_label="%")).all("svg")[0]
    x, y = axis(svg, "x"), axis(svg, "y")
    for circle, (_, size, quality) in zip(svg.all("circle"), rows, strict=True):
        assert math.log(x(float(circle.attributes["cx"]))) == pytest.approx(math.log(size), abs=0.01)
        assert y(float(circle.attributes["cy"])) == pytest.approx(100 * quality, abs=0.01)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_png_files_of_their_pixels(channels):
    pixels = torch.randint(256, (channels, 8, 8))
    image = Image.open(io.BytesIO(png(pixels.flatten().tolist(), 8, channels)))
    found = torch.tensor(list(image.tobytes())).view(8, 8, channels).permute(2, 0, 1)
    assert torch.equal(found, pixels)


def test_what_is_no_square_is_no_picture():
    assert picture([0] * 10, "words") is None
