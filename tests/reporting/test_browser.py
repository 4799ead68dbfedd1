"""Pages as Chromium shows them: on a phone and on a desk, in light and dark, on paper.

`make check-report` runs these; they need Chromium, which pip does not install.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from rankfold.reporting.page import make_report
from rankfold.reporting.reading import find_files, read_run
from rankfold.whole_files import write_whole

pytestmark = pytest.mark.browser

RESULTS = Path(__file__).parents[2] / "results"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWS = [(width, scheme) for width in (375, 768, 1280) for scheme in ("light", "dark")]
PAGES = {
    "run": (["mnist/ttm-ard-lu"], ["mnist/dense", "mnist/ttm-fr", "mnist/ttm-tc-mr", "mnist/ttm-tc-or"]),
    "tucker": (["mnist/tucker-ard-lu"], []),
    "compressed": (["mnist/cp-tc-or"], []),
    "planted": (["synthetic/tt-ard-lu"], []),
    "table": ([], ["mnist"]),
}


@pytest.fixture(scope="module")
def browser():
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.fail(f"none of {', '.join(NAMES)} is installed; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found[0], args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, (subject, others) in PAGES.items():
        run = next((read_run(RESULTS / f"{path}-seed0.json") for path in subject), None)
        places = (RESULTS / path if path == "mnist" else RESULTS / f"{path}-seed0.json" for path in others)
        html = make_report(run, [read_run(file) for place in places for file in find_files(place)]).html
        write_whole(folder / f"{name}.html", html)
    write_whole(folder / "everything.html", make_report(_with_everything()).html)
    return folder


def _with_everything():
    """A run that has also noted λ, the evaluation and calibration, with long names."""
    run = read_run(RESULTS / "mnist" / "ttm-ard-lu-seed0.json")
    long = "encoder.layers.11.attention.self.query_projection"
    history = [
        {
            **{key: epoch[key] for key in ("nll", "kl_nats", "beta", "accuracy", "parameters")},
            "evaluation_nll": 1.01 * epoch["nll"],
            "evaluation_accuracy": epoch["accuracy"] - 0.001,
            "ranks": {long: epoch["ranks"]["layer1"]},
            "variances": {
                long: [[0.3 / (k + n) for k in range(1, r + 1)] for n, r in enumerate(epoch["ranks"]["layer1"])]
            },
        }
        for epoch in run.record["history"]
    ]
    bins = {"count": [5, 20, 900], "confidence": [0.3, 0.6, 0.99], "accuracy": [0.2, 0.65, 0.985]}
    metrics = {name: dict(scores) for name, scores in run.record["metrics"].items()}
    metrics["posterior_mean"]["calibration"] = metrics["monte_carlo"]["calibration"] = bins
    ranks = {when: {long: found["layer1"]} for when, found in run.record["ranks"].items()}
    data = {"path": "/home/me/photographs", "classes": [f"a rather long name {n}" for n in range(10)]}
    more = {"history": history, "metrics": metrics, "ranks": ranks, "data": data, "warnings": ["λ was never updated"]}
    return replace(run, record={**run.record, **more})


@pytest.fixture(scope="module", params=[*PAGES, "everything"])
def name(request):
    return request.param


@pytest.fixture(scope="module", params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def view(request, browser, folder, name):
    """A page that is open, and everything it asked for or complained about."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.noticed = []
    page.on("request", lambda request: page.noticed.append(request.url))
    page.on("console", lambda message: page.noticed.append(message.text))
    page.on("pageerror", lambda error: page.noticed.append(str(error)))
    page.goto((folder / f"{name}.html").as_uri())
    if "RANKFOLD_SCREENSHOTS" in os.environ:
        page.screenshot(path=f"{os.environ['RANKFOLD_SCREENSHOTS']}/{name}-{width}-{scheme}.png", full_page=True)
    yield page
    page.close()


# Every text on the page with its box, its size on the screen, its colour and the colour behind it.
TEXTS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    const head = parent.closest('thead'), hidden = head && getComputedStyle(head).position === 'absolute';
    if (!node.data.trim() || hidden || parent.closest('title')) continue;
    const range = document.createRange(); range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    const style = getComputedStyle(parent), svg = parent.closest('svg');
    let ground = parent;
    while (ground && getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
    found.push({text: node.data, left: box.left, right: box.right, top: box.top + scrollY, bottom: box.bottom + scrollY,
      size: parseFloat(style.fontSize) * (svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1),
      colour: svg ? style.fill : style.color, ground: getComputedStyle(ground).backgroundColor,
      svg: svg ? [...document.querySelectorAll('svg')].indexOf(svg) : -1});
  }
  return found;
}"""


def test_nothing_is_wider_than_the_screen(view):
    width = view.viewport_size["width"]
    assert view.evaluate("document.documentElement.scrollWidth") == width
    outside = [t["text"] for t in view.evaluate(TEXTS) if t["left"] < 0 or t["right"] > width]
    assert outside == []


def test_nothing_is_loaded_and_nothing_complained_of(view):
    assert [url for url in view.noticed if not url.startswith("data:")] == [view.url]


def test_labels_of_a_drawing_do_not_cover_each_other(view):
    texts = [text for text in view.evaluate(TEXTS) if text["svg"] >= 0]
    covered = [
        (a["text"], b["text"])
        for n, a in enumerate(texts)
        for b in texts[n + 1 :]
        if a["svg"] == b["svg"]
        and min(a["right"], b["right"]) - max(a["left"], b["left"]) > 1
        and min(a["bottom"], b["bottom"]) - max(a["top"], b["top"]) > 3  # boxes have air above and below
    ]
    assert covered == []


def test_text_is_large_enough_and_stands_out(view):
    texts = view.evaluate(TEXTS)
    assert len(texts) > 40
    assert min(text["size"] for text in texts) >= 8.5
    faint = [text["text"] for text in texts if _contrast(text["colour"], text["ground"]) < 4.5]
    assert faint == []


def _contrast(*colours):
    """The ratio that WCAG 2 defines, of two colours as browsers write them."""
    luminances = []
    for colour in colours:
        channels = [float(c) / 255 for c in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_lines_stay_within_their_drawings(view):
    outside = view.evaluate(
        """() => [...document.querySelectorAll('svg path, svg rect, svg circle')].filter(mark => {
          const a = mark.getBoundingClientRect(), b = mark.ownerSVGElement.getBoundingClientRect();
          return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
        }).length"""
    )
    assert outside == 0


@pytest.fixture
def opened(browser, folder):
    """The page of a run on a phone."""
    page = browser.new_page(viewport={"width": 375, "height": 800})
    page.goto((folder / "run.html").as_uri())
    yield page
    page.close()


def test_what_matters_is_seen_first(opened):
    run = read_run(RESULTS / "mnist" / "ttm-ard-lu-seed0.json")  # results are made anew now and then
    assert opened.locator(".big strong").inner_text() == f"{run.times_smaller:.0f}×"
    assert opened.locator(".big strong").bounding_box()["y"] < 400
    gain = 100 * (run.accuracy - run.dense_accuracy)
    assert opened.locator(".hero dl").inner_text().replace("\xa0", " ").split("\n")[:3] == [
        "Accuracy",
        f"{100 * run.accuracy:.2f} %",
        f"dense: {100 * run.dense_accuracy:.2f} %, {gain:+.2f} points".replace("-", "−"),
    ]


def test_rows_are_cards_on_a_phone_and_rows_on_a_desk(opened):
    cells = opened.locator("#layers tbody tr").first.locator("td")
    boxes = [cells.nth(n).bounding_box() for n in range(cells.count())]
    assert [box["y"] for box in boxes] == sorted({box["y"] for box in boxes})
    opened.set_viewport_size({"width": 1280, "height": 800})
    boxes = [cells.nth(n).bounding_box() for n in range(cells.count())]
    assert len({round(box["y"]) for box in boxes}) == 1


def test_dark_is_dark(opened):
    backgrounds = []
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        backgrounds.append(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert _contrast(*backgrounds) > 15


def test_lists_of_cuts_open_and_close(opened):
    cuts = opened.locator("details").first
    item = cuts.locator("li").first
    assert item.is_visible()
    cuts.locator("summary").click()
    assert not item.is_visible()


def test_paper_is_white_and_holds_the_page(opened):
    opened.emulate_media(media="print", color_scheme="dark")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert (
        _contrast(opened.evaluate("getComputedStyle(document.querySelector('.big strong')).color"), "rgb(255,255,255)")
        > 4.5
    )
    paper = opened.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert 2 <= paper.count(b"/Type /Page\n") <= 8
