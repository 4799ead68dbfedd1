"""What stands on the page, read with a strict parser."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_pages import axis, parse, points

from rankfold.reporting.page import make_report
from rankfold.reporting.reading import find_files, read_run
from rankfold.reporting.style import STYLE

RESULTS = Path(__file__).parents[2] / "results"
SECTIONS = ["training", "layers", "quality", "comparison", "facts"]


def result(name, table="mnist"):
    return read_run(RESULTS / table / f"{name}-seed0.json")


TTM = result("ttm-ard-lu")
OTHERS = [result(name) for name in ("dense", "ttm-fr", "ttm-tc-mr", "ttm-tc-or")]


@pytest.fixture(scope="module")
def html():
    return make_report(TTM, OTHERS).html


@pytest.fixture(scope="module")
def page(html):
    return parse(html)


KINDS = {
    "compared": lambda: make_report(TTM, OTHERS),
    **{
        name: lambda name=name: make_report(result(name))
        for name in ("dense", "cp-tc-or", "tt-ard-hc-map", "tucker-fr")
    },
    "planted": lambda: make_report(result("tucker-ard-lu", "synthetic")),
    "table": lambda: make_report(None, [read_run(file) for file in find_files(RESULTS / "mnist")]),
}


@pytest.fixture(scope="module", params=KINDS)
def any_html(request):
    return KINDS[request.param]().html


# Every page -------------------------------------------------------------------------------------------


def test_a_page_is_well_formed_small_and_loads_nothing(any_html):
    page = parse(any_html)
    assert len(any_html.encode()) < 300_000
    assert not page.all("script")
    assert not re.search(r"@import|url\(|<iframe|<object|<embed", any_html)
    references = re.findall(r'(?:src|href)="([^"]*)"', any_html)
    assert references
    assert all(reference.startswith("data:image/") for reference in references)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", any_html)


def test_a_page_can_be_read_without_seeing_it(any_html):
    page = parse(any_html)
    (html,) = page.all("html")
    assert html.attributes["lang"] == "en"
    assert all(svg.attributes["role"] == "img" and len(svg.attributes["aria-label"]) > 10 for svg in page.all("svg"))
    assert all(image.attributes["alt"] for image in page.all("img"))
    assert all(table.all("caption")[0].text for table in page.all("table"))
    assert all(cell.attributes["scope"] in ("row", "col") for cell in page.all("th"))
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("head")[0].all("title")) == 1


def test_ids_are_unique_and_nothing_is_left_unformatted(any_html):
    ids = re.findall(r' id="([^"]*)"', any_html)
    assert len(ids) == len(set(ids))
    text = parse(any_html).all("body")[0].text
    for word in ("None", "nan", "inf ", "{", "}", "Traceback"):
        assert word not in text, word


# One page, number by number ---------------------------------------------------------------------------


def test_the_headline_compares_with_dense(page):
    words = page.all("header")[0].text
    ours, dense = (100 * run.accuracy for run in (TTM, OTHERS[0]))
    smaller = f"{407_050 / TTM.final_parameters:.0f}×"
    accuracy = (f"{ours:.2f} %", f"dense: {dense:.2f} %, {ours - dense:+.2f} points")
    for part in ("ttm-ard-lu, seed 0", smaller, *accuracy, f"{TTM.final_parameters:,}", "407,050", "58,564"):
        assert part in words, part


def test_all_sections_are_there_in_order(page):
    assert [section.attributes["id"] for section in page.all("section")] == SECTIONS


def _chart(page, title):
    return next(f.all("svg")[0] for f in page.all("figure") if f.all("b")[0].text == title)


@pytest.mark.parametrize(
    ("title", "key"),
    [("NLL", "nll"), ("KL between posterior and prior", "kl_nats"), ("β", "beta"), ("Accuracy", "accuracy")],
)
def test_curves_are_the_history(page, title, key):
    chart = _chart(page, title)
    x, y = axis(chart, "x"), axis(chart, "y")
    drawn = [(x(a), y(b)) for a, b in points(chart.all("path", "line")[0].attributes["d"])]
    wanted = [epoch[key] for epoch in TTM.record["history"]]
    assert [a for a, _ in drawn] == pytest.approx(range(1, 101), abs=0.05)
    assert [b for _, b in drawn] == pytest.approx(wanted, abs=2e-3 * max(wanted))


def test_ranks_and_parameters_fall_where_the_history_says(page):
    for title, line, wanted in [
        ("Parameters", 0, [epoch["parameters"] for epoch in TTM.record["history"]]),
        *(("layer1", n, [epoch["ranks"]["layer1"][n] for epoch in TTM.record["history"]]) for n in range(3)),
        ("layer2", 0, [epoch["ranks"]["layer2"][0] for epoch in TTM.record["history"]]),
    ]:
        chart = _chart(page, title)
        x, y = axis(chart, "x"), axis(chart, "y")
        corners = [(x(a), y(b)) for a, b in points(chart.all("path", "line")[line].attributes["d"])]
        at_epoch = [[value for position, value in corners if position <= n + 1.05][-1] for n in range(100)]
        assert at_epoch == pytest.approx(wanted, abs=2e-3 * max(wanted))


def test_the_layers_table_has_modes_ranks_and_counts(page):
    rows = [[cell.text for cell in row.children] for row in page.by_id("layers").all("tr")]
    (a, b, c), (d,) = TTM.ranks_after["layer1"], TTM.ranks_after["layer2"]
    left = 4 * 4 * a + a * 7 * 4 * b + b * 4 * 8 * c + c * 7 * 4 + 512, 16 * 2 * d + d * 32 * 5 + 10
    ranks, counts = f"20·20·20 → {a}·{b}·{c}", f"25,392 → {left[0]:,}"
    shapes = (
        f"1×4×4×{a}, {a}×7×4×{b}, {b}×4×8×{c}, {c}×7×4×1",
        f"1×16×2×{d}, {d}×32×5×1",
    )
    assert rows[1][:5] == ["layer1", f"TTM 4·7·4·7 × 4·4·8·4{shapes[0]}", ranks, counts, "401,920"]
    assert rows[2] == [
        "layer2",
        f"TTM 16·32 × 2·5{shapes[1]}",
        f"20 → {d}",
        f"3,850 → {left[1]:,}",
        "5,130",
        f"{5_130 / left[1]:.1f}×",
    ]
    assert float(rows[1][5].removesuffix("×")) == pytest.approx(401_920 / left[0], rel=0.05)
    assert rows[3][:5] == ["total", "", "", f"29,242 → {sum(left):,}", "407,050"]  # nothing stays dense
    assert len(rows) == 4


def test_what_stays_dense_is_counted_beside_the_layers():
    """The first convolution of CIFAR-10's network, batch norms and the last layer."""
    run = result("ttm-ard-lu", "cifar10")
    rows = [[cell.text for cell in row.children] for row in parse(make_report(run).html).by_id("layers").all("tr")]
    *layers, other, total = rows[1:]
    listed = sum(int(row[3].split("→")[-1].replace(",", "")) for row in layers)
    assert len(layers) == len(run.ranks_after)
    assert other == [
        "stay dense",
        "",
        "",
        f"{run.final_parameters - listed:,}",
        f"{run.final_parameters - listed:,}",
        "1.0×",
    ]
    assert total[3].endswith(f"→ {run.final_parameters:,}")
    assert total[4:] == [f"{run.dense_parameters:,}", f"{run.dense_parameters / run.final_parameters:.0f}×"]


def test_no_sum_is_told_where_the_layers_are_not_known():
    page = parse(make_report(_with(table="nobody knows")).html)
    assert [row.children[0].text for row in page.by_id("layers").all("tr")] == ["layer", "layer1", "layer2"]


def test_what_was_cut_is_listed_with_its_epoch(page):
    items = [item.text for item in page.by_id("layers").all("li")]
    assert len(items) == len(TTM.cuts)
    first = next(epoch for epoch in TTM.record["history"] if epoch["ranks"]["layer1"] != [20, 20, 20])
    ranks = "·".join(map(str, first["ranks"]["layer1"]))
    assert items[0] == f"epoch {first['epoch']}20·20·20 → {ranks}"


def test_scores_of_both_predictions_are_listed(page):
    words = page.by_id("quality").text
    metrics = TTM.record["metrics"]
    for prediction in ("posterior_mean", "monte_carlo"):
        assert f"{metrics[prediction]['nll_nats']:.4g}" in words
        assert f"{100 * metrics[prediction]['ece']:.2f} %" in words
    assert "32 samples of the posterior" in words


def test_the_hardest_example_is_shown_with_its_spread(page):
    section = page.by_id("quality")
    hard = TTM.record["metrics"]["hard_image"]
    assert section.all("img")[0].attributes["alt"] == f"Example {hard['index']}, a “{hard['label']}”"
    label = section.all("svg")[-1].attributes["aria-label"]
    likely = max(range(10), key=hard["mean"].__getitem__)
    assert f"“{likely}” {100 * hard['mean'][likely]:.0f}% ± {100 * hard['std'][likely]:.0f}%" in label
    strokes = section.all("path", "strokes")
    assert strokes[0].attributes["d"].count("M") == 200


def test_rows_are_compared(page):
    section = page.by_id("comparison")
    rows = {row.children[0].text: [c.text for c in row.children[1:]] for row in section.all("tr")[1:]}
    assert set(rows) == {"ttm-ard-lu", "dense", "ttm-fr", "ttm-tc-mr", "ttm-tc-or"}
    assert rows["dense"][1:4] == ["98.28 %", "407,050", "1.0×"]
    assert [row.children[0].text for row in section.all("tr", "chosen")] == ["ttm-ard-lu"]
    assert len(section.all("circle")) == 5


def test_seeds_of_a_row_are_averaged():
    seeds = [read_run(RESULTS / "mnist" / f"{row}-seed{k}.json") for row in ("cp-fr", "cp-ard-lu") for k in range(3)]
    rows = parse(make_report(None, seeds).html).by_id("comparison").all("tr")
    accuracies = [100 * seeds[k].accuracy for k in range(3)]
    mean = sum(accuracies) / 3
    std = (sum((a - mean) ** 2 for a in accuracies) / 2) ** 0.5
    assert [c.text for c in rows[1].children][:3] == ["cp-fr", "3", f"{mean:.2f} ± {std:.2f} %"]


def test_regressions_are_compared_by_their_own_scores():
    runs = []
    for row, rmse in (("cp-fr", 0.5), ("cp-ard-lu", 0.25)):
        run = read_run(RESULTS / "mnist" / f"{row}-seed0.json")
        metrics = {"posterior_mean": {"rmse": rmse, "r2": 1 - rmse**2, "nll_nats": 0.7}}
        runs.append(replace(run, record=run.record | {"metrics": metrics}))
    header, *rows = ([c.text for c in row.children] for row in parse(make_report(None, runs).html).all("tr"))
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)}
    assert (found["cp-ard-lu"]["RMSE"], found["cp-ard-lu"]["R²"]) == ("0.25", "0.9375")
    assert "accuracy" not in header


def test_circumstances_are_told():
    parts = {
        "device": {"type": "cuda", "name": "NVIDIA H200", "threads": 1},
        "versions": {**TTM.record["versions"], "torch": "2.11.0+cu130"},
        "peak_memory": {"device_bytes": 3 * 2**29, "process_bytes": 5 * 2**29},
        "timing": {**TTM.record["timing"], "training_seconds": 193.0},
    }
    words = parse(make_report(_with(**parts)).html).by_id("facts").text
    told = (
        "NVIDIA H200",
        "2.11.0+cu130",
        TTM.record["commit"]["hash"][:12],
        "1.5 GiB",
        "2.5 GiB",
        "3 min 13 s",
        "60,000",
    )
    for part in told:
        assert part in words, part


# What a run may have beyond that ----------------------------------------------------------------------


def _with(**parts):
    return replace(TTM, record={**TTM.record, **parts})


def test_lambdas_over_training_are_drawn_where_a_run_has_it():
    history = [
        {**epoch, "variances": {"layer2": [[0.5 / k for k in range(1, epoch["ranks"]["layer2"][0] + 1)]]}}
        for epoch in TTM.record["history"]
    ]
    page = parse(make_report(_with(history=history)).html)
    figure = next(f for f in page.all("figure") if "sorted by size" in f.text)
    chart = figure.all("svg")[0]
    x, y = axis(chart, "x"), axis(chart, "y")
    lines = [[(x(a), y(b)) for a, b in points(p.attributes["d"])] for p in chart.all("path", "line")]
    assert len(lines) == 20
    assert [line[0][1] for line in lines] == pytest.approx([0.5 / k for k in range(1, 21)], rel=0.02)
    assert sum(line[-1][0] > 99.9 for line in lines) == TTM.ranks_after["layer2"][0]


def test_the_calibration_diagram_is_drawn_where_a_run_has_it():
    bins = {"count": [0, 100, 900], "confidence": [0.0, 0.5, 0.95], "accuracy": [0.0, 0.6, 0.95]}
    metrics = {**TTM.record["metrics"], "posterior_mean": {"accuracy": 0.9, "calibration": bins}}
    page = parse(make_report(_with(metrics=metrics)).html)
    figure = next(f for f in page.all("figure") if "Calibration" in f.text)
    assert "off by 1.00 %" in figure.text
    assert len(figure.all("circle")) == 2


def test_curves_of_the_evaluation_are_drawn_beside_those_of_training():
    history = [{**epoch, "evaluation_nll": 0.2 + 1 / epoch["epoch"]} for epoch in TTM.record["history"]]
    chart = _chart(parse(make_report(_with(history=history)).html), "NLL")
    y = axis(chart, "y")
    training, evaluation = ([y(b) for _, b in points(p.attributes["d"])] for p in chart.all("path", "line"))
    assert training == pytest.approx([epoch["nll"] for epoch in history], abs=5e-3)
    assert evaluation == pytest.approx([epoch["evaluation_nll"] for epoch in history], abs=5e-3)


def test_a_run_without_dense_is_compared_with_a_constant_answer():
    metrics = {**TTM.record["metrics"], "baseline": {"answer": "cat", "accuracy": 0.25}}
    page = parse(
        make_report(replace(_with(metrics=metrics, data={"path": "/home/me/photos"}), dense_accuracy=None)).html
    )
    assert "one answer for all: 25.00 %" in page.all("header")[0].text
    assert "photos ·" in page.all("header")[0].text
    assert "always cat" in page.by_id("quality").text
    metrics["baseline"] |= {"nll_nats": 1.375}
    page = parse(make_report(replace(_with(metrics=metrics), dense_accuracy=None)).html)
    nll = f"{metrics['monte_carlo']['nll_nats']:.4g}"
    assert f"one answer for all: 25.00 %; NLL {nll}, for that 1.375" in page.all("header")[0].text
    assert "class shares, so always cat" in page.by_id("quality").text


def test_a_page_of_many_layers_and_epochs_stays_small():
    names = [f"features.{n}.conv" for n in range(24)]
    ranks = {name: [20, 20, 20] for name in names}
    variances = {name: [[0.1 + 0.01 * k for k in range(20)]] * 3 for name in names}
    epoch = {"nll": 0.123456, "kl_nats": 1234.5, "beta": 0.5, "accuracy": 0.98765, "parameters": 123456}
    history = [{**epoch, "ranks": ranks, "variances": variances} for _ in range(300)]
    html = make_report(_with(history=history, ranks={"before": ranks, "after": ranks}, table="other")).html
    page = parse(html)
    assert len(page.all("svg")) > 48
    folded = [details for details in page.by_id("training").all("details") if "open" not in details.attributes]
    assert [len(details.all("svg")) for details in folded] == [18, 18]  # ranks and λ of all but 6
    assert len(html.encode()) < 300_000


def test_of_many_labels_the_likeliest_and_the_truth_are_shown():
    mean = [0.0] * 1000
    mean[7], mean[500:520] = 0.001, [0.04 + 0.0001 * k for k in range(20)]
    hard = {"index": 3, "label": 7, "mean": mean, "std": [0.01] * 1000}
    data = {"classes": [f"a label with a long name, {n}" for n in range(1000)]}
    page = parse(make_report(_with(metrics={"posterior_mean": {}, "hard_image": hard}, data=data)).html)
    strips = page.by_id("quality").all("rect", "bar")
    assert len(strips) == 12
    assert len(page.by_id("quality").all("text", "out")) == 1


def test_names_from_a_file_are_text_and_never_markup():
    evil = "<script>alert(1)</script>\"'&"
    spec = {**TTM.record["spec"], "note": evil}
    ranks = {"before": {evil: [3]}, "after": {evil: [2]}}
    run = _with(row=evil, table=evil, spec=spec, ranks=ranks, warnings=[evil], history=[])
    html = make_report(run, [result("dense")]).html
    page = parse(html)
    assert not page.all("script")
    assert page.all("h1")[0].text == f"{evil}, seed 0"
    assert evil in page.by_id("facts").text


def test_a_run_with_little_in_it_still_has_a_page():
    run = _with(history=[], metrics={}, ranks={"before": {}, "after": {}})
    page = parse(make_report(run).html)
    assert [section.attributes["id"] for section in page.all("section")] == ["facts"]


def test_a_regression_shows_its_own_score():
    scores = {"rmse": 0.5123, "nll_nats": 0.7, "r2": 0.8125}
    page = parse(make_report(_with(metrics={"posterior_mean": scores})).html)
    assert "RMSE0.5123R² 0.8125" in page.all("header")[0].text


def test_the_axis_of_a_density_need_not_reach_zero():
    """The NLL of a quantity depends on its unit; that of classes begins at 0."""
    history = [{**epoch, "nll": 12 - 0.01 * n} for n, epoch in enumerate(TTM.record["history"])]
    charts = {}
    for metrics in (TTM.record["metrics"], {"posterior_mean": {"rmse": 0.5}}):
        chart = _chart(parse(make_report(_with(metrics=metrics, history=history)).html), "NLL")
        charts["rmse" in metrics["posterior_mean"]] = [float(t.text) for t in chart.all("text", "y")]
    assert min(charts[False]) == 0
    assert min(charts[True]) >= 10


def _regression(**parts):
    """A run of ``rankfold train`` that has learned a quantity."""
    epochs = [{**epoch, "evaluation_nll": 9 - 0.01 * n} for n, epoch in enumerate(TTM.record["history"])]
    metrics = {"posterior_mean": {"rmse": 0.5, "nll_nats": 7.371}}
    return _with(**{"table": "train", "metrics": metrics, "history": epochs, **parts})


def test_a_regression_says_that_its_noise_is_fitted_once_more():
    figure = next(f for f in parse(make_report(_regression()).html).all("figure") if f.all("b")[0].text == "NLL")
    (below,) = figure.all("p")
    assert "the noise is fitted once more" in below.text
    assert "from 8.01 to the 7.371" in below.text
    accurate = {"posterior_mean": {"accuracy": 0.9, "nll_nats": 7.371}}
    for run in (TTM, _regression(metrics=accurate), _regression(table="a loop of one's own")):
        assert "the noise is fitted" not in make_report(run).html


def test_the_kl_has_its_units(page):
    figure = next(f for f in page.all("figure") if f.all("b")[0].text == "KL between posterior and prior")
    last = TTM.record["history"][-1]["kl_nats"]
    assert "nats, whole model" in [label.text for label in figure.all("text", "mark")]
    assert figure.all("p")[0].text == f"At the end {last / 60_000:.4g} nats per training example."


def test_layers_that_collapsed_are_named_in_one_warning():
    names = list(TTM.ranks_after)
    collapsed = [f"{name}.tensor collapsed: by SNR, all ranks of group {n} are dead" for name in names for n in (1, 2)]
    page = parse(make_report(_with(warnings=[*collapsed, "stopped early"])).html)
    assert [item.text for item in page.by_id("facts").all("li")] == [
        f"The data have shown no use for {', '.join(names)} ({len(names)} of {len(names)} layers of factors); they are "
        f"cut to rank 1. A smaller KL weight (--kl-weight), or more data, may keep more of them.",
        "stopped early",
    ]


# Colours ----------------------------------------------------------------------------------------------


def _luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    digits = colour if len(colour) == 6 else "".join(2 * c for c in colour)
    channels = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("name", ["ink", "soft", "c0", "c1", "c2", "c3"])
@pytest.mark.parametrize("ground", ["paper", "pale", "tint", "warn"])
def test_text_stands_out_from_its_ground(scheme, name, ground):
    colours = dict(re.findall(r"--(\w+):#([0-9a-f]+)", STYLE.split(":root{")[scheme + 1]))
    light, dark = sorted((_luminance(colours[ground]), _luminance(colours[name])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5
