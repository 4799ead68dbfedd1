"""What is drawn is what the result files say."""

from itertools import pairwise

import numpy as np
import pytest
from figures.fake import CIFAR10_RANKS, MNIST_RANKS, NUM_RANKS, SIZES, hard_image, places, write
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from scipy.stats import multivariate_normal

from rankfold.figures.curve import draw_cifar10_curve, draw_mnist_curve, frame
from rankfold.figures.found import MissingResults
from rankfold.figures.hard_digit import draw_hard_digit, pair_density
from rankfold.figures.ranks import draw_cifar10_ranks, draw_mnist_ranks, draw_synthetic_ranks
from rankfold.figures.style import ORANGE, new_figure

PANELS = ("cp", "tt", "ttm", "tucker")


def levels(axes):
    """The heights of all horizontal lines of a panel, collection by collection."""
    return [[segment[0, 1] for segment in lines.get_segments()] for lines in axes.collections]


def heights(axes):
    return [[bar.get_height() for bar in bars] for bars in axes.containers]


def test_bars_of_mnist_are_mean_ranks_below_the_maximum(tmp_path):
    write(tmp_path, "mnist")
    for axes, name in zip(draw_mnist_ranks(places(tmp_path)).axes, PANELS, strict=True):
        before = [rank for ranks in MNIST_RANKS[name].values() for rank in ranks]
        assert levels(axes) == [before]
        means = [rank // 2 - 1 for rank in before]  # over seeds that found 0, 1 and 2 less than half
        assert heights(axes) == [means, means]  # of both priors; rows of MAP are not drawn
        assert [text.get_text() for text in axes.texts] == [str(mean) for mean in means] * 2
        assert len(axes.get_lines()) == 6  # the dots of three seeds, twice


def boxes_of(labels):
    return [label.get_window_extent() for label in labels if label.get_text()]


def test_ranks_of_many_layers_have_names_and_numbers_that_do_not_collide(tmp_path):
    write(tmp_path, "cifar10")
    figure = draw_cifar10_ranks(places(tmp_path))
    figure.canvas.draw()
    for axes, name in zip(figure.axes, PANELS, strict=True):
        layers = CIFAR10_RANKS[name]
        assert [label.get_text() for label in axes.get_xticklabels(minor=True)] == list(layers)
        assert len(axes.get_xticklabels()) == sum(map(len, layers.values()))
        for labels in (axes.get_xticklabels(), axes.get_xticklabels(minor=True)):
            assert all(left.x1 < right.x0 for left, right in pairwise(boxes_of(labels)))
        numbers = boxes_of(axes.texts)
        assert not any(a.overlaps(b) for n, a in enumerate(numbers) for b in numbers[:n])
        assert all(axes.get_window_extent().y1 >= box.y1 for box in numbers)


def test_bars_of_the_synthetic_study_stand_beside_the_planted_rank(tmp_path):
    write(tmp_path, "synthetic")
    for axes, name in zip(draw_synthetic_ranks(places(tmp_path)).axes, PANELS, strict=True):
        count = NUM_RANKS[name]
        assert levels(axes) == [[10] * count, [5] * count]
        assert heights(axes) == [[4] * count] * 2


def test_a_format_without_results_says_so(tmp_path):
    write(tmp_path, "synthetic", seeds=1)
    for file in (tmp_path / "synthetic").glob("tt-*"):
        file.unlink()
    cp, tt, *_ = draw_synthetic_ranks(places(tmp_path)).axes
    assert heights(cp) == [[5], [5]]
    assert not tt.containers
    assert tt.texts[0].get_text() == "no results yet"


def test_the_hard_digit_is_shown_with_its_prediction(tmp_path):
    write(tmp_path, "mnist", seeds=1)
    hard = hard_image()
    image, bars, density = draw_hard_digit(places(tmp_path)).axes
    assert image.images[0].get_array().ravel().tolist() == hard["pixels"]
    errors, drawn = bars.containers
    assert [bar.get_height() for bar in drawn] == pytest.approx(hard["mean"])
    assert [n for n, bar in enumerate(drawn) if to_hex(bar.get_facecolor()) == ORANGE.lower()] == [hard["label"]]
    spans = [segment[1, 1] - segment[0, 1] for segment in errors[2][0].get_segments()]
    assert spans == pytest.approx([2 * std for std in hard["std"]])
    assert density.get_xlabel() == "probability of “2”"
    assert density.get_ylabel() == "probability of “7”"
    assert density.get_lines()[0].get_xdata() == pytest.approx([draw[2] for draw in hard["draws"]])


def test_the_pairwise_density_is_a_mixture_of_normals():
    draws = np.random.default_rng(0).normal((0.5, 0.3), (0.1, 0.05), size=(64, 2))
    grid = np.linspace(-0.5, 1.5, 81)
    density = pair_density(draws, grid)
    assert density.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(1.0, abs=1e-3)
    widths = np.maximum(draws.std(0, ddof=1) / 2, 0.02)  # 64^(-1/6) = 1/2
    expected = np.mean([multivariate_normal(draw, np.diag(widths**2)).pdf((grid[40], grid[30])) for draw in draws])
    assert density[30, 40] == pytest.approx(expected)


def test_the_curve_joins_our_kl_weights_beside_the_papers_points(tmp_path):
    write(tmp_path, "mnist")
    write(tmp_path, "mnist-curve")
    for axes, name in zip(draw_mnist_curve(places(tmp_path)).axes, PANELS, strict=True):
        line, *_ = axes.containers[0]
        weights = np.array([0.5, 1.0, 2.0, 4.0])
        assert line.get_xdata() == pytest.approx(SIZES[name] / np.sqrt(weights))
        assert line.get_ydata() == pytest.approx(98.45 - 0.2 * weights)
        assert [text.get_text() for text in axes.texts] == ["×0.5", "×1", "×2", "×4"]
        points = {
            (float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in axes.get_lines() if len(p.get_xdata()) == 1
        }
        assert len(points) == 5
        if name == "cp":
            assert (7175.0, 98.06) in points


def test_the_curve_of_cifar10_shows_what_is_off_its_axis_as_numbers(tmp_path):
    write(tmp_path, "cifar10", seeds=1)
    cp, _, ttm, tucker = draw_cifar10_curve(places(tmp_path)).axes
    assert [text.get_text() for text in cp.texts] == ["×0.03", "↓ 71.3", "↓ 75.8"]
    assert [text.get_text() for text in ttm.texts] == ["×0.03", "↓ 80.5", "↓ 81.9"]
    assert [text.get_text() for text in tucker.texts] == ["×0.03"]
    ours = [p.get_ydata()[0] for p in cp.get_lines() if p.get_marker() == "D" and p.get_markerfacecolor() == "none"]
    assert ours == pytest.approx([98.394])  # the half-Cauchy row, of KL weight 0.03


@pytest.mark.parametrize("largest", [6_000, 9_000, 27_000, 172_000])
def test_no_size_beside_the_curve_covers_another(largest):
    figure = new_figure(11, 7.2)
    axes = figure.subplots(2, 2)[1, 1]
    axes.plot([3_000, largest], [98.0, 99.0])
    frame(axes, "Tucker")
    figure.canvas.draw()
    low, high = axes.get_xlim()
    shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [label.get_window_extent() for label in shown]
    assert len(boxes) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_the_curve_needs_no_other_weights(tmp_path):
    write(tmp_path, "mnist", seeds=1)
    figure = draw_mnist_curve(places(tmp_path))
    assert isinstance(figure, Figure)
    assert [text.get_text() for text in figure.axes[0].texts] == ["×1"]


@pytest.mark.parametrize("draw", [draw_mnist_ranks, draw_synthetic_ranks, draw_hard_digit, draw_mnist_curve])
def test_missing_results_come_with_the_command_that_makes_them(draw, tmp_path):
    with pytest.raises(MissingResults, match=r"run: rankfold reproduce (mnist|synthetic)"):
        draw(places(tmp_path))
