"""How training went: ranks, size and objective over the epochs, and λ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from rankfold.reporting.charts import Mark, Series, line_chart
from rankfold.reporting.drawings import Strip, strip_chart
from rankfold.reporting.markup import Html, element, join, section
from rankfold.reporting.run import Run
from rankfold.reporting.wording import count, modes, number, percent, ranks_change

_STAGES = {"fine-tune": "fine-tuning", "dense": "dense training", "train": "training"}
# A quantity that spans more than this is drawn by logarithms.
_WIDE = 30.0
_MOST_LAMBDA_LINES = 150  # on a page
# Of more layers than this, the charts of the largest few are open and the others folded.
_MOST_LAYERS, _OPEN_LAYERS = 8, 6


def figure(title: str, drawing: Html, note: str = "", below: str = "") -> Html:
    """A drawing with its title, a note on how to read it, and what there is to say of it below."""
    caption = element("figcaption", None, element("b", None, title), element("span", None, note) if note else None)
    return element("figure", None, caption, drawing, element("p", {"class": "below"}, below) if below else None)


def training(
    run: Run, saved_variances: Mapping[str, Sequence[Sequence[float]]], sizes: Mapping[str, int]
) -> Html | None:
    """All plots over the epochs, or nothing for a run that kept no history; ``sizes`` are those of the layers."""
    if not run.history:
        return None
    marks = _marks(run)
    groups = [
        _group("Ranks", _of_layers(_rank_charts(run, marks), sizes)),
        _group("Size and objective", _grid([*_size_chart(run, marks), *_objective_charts(run, marks)])),
        _group("λ, the prior variance of each rank", _of_layers(_lambda_charts(run, saved_variances, marks), sizes)),
    ]
    return section("training", "Training", *groups)


def _group(title: str, content: Html | None) -> Html | None:
    return None if content is None else join(element("h3", None, title), content)


def _grid(figures: Sequence[Html]) -> Html | None:
    return element("div", {"class": "grid"}, *figures) if figures else None


def _of_layers(charts: Mapping[str, Html], sizes: Mapping[str, int]) -> Html | None:
    """The chart of every layer; of many, those of the largest few are open."""
    if len(charts) <= _MOST_LAYERS:
        return _grid(list(charts.values()))
    largest = sorted(charts, key=lambda layer: -sizes.get(layer, 0))[:_OPEN_LAYERS]
    folded = [chart for layer, chart in charts.items() if layer not in largest]
    return join(
        _grid([chart for layer, chart in charts.items() if layer in largest]),
        element(
            "details",
            {"class": "more"},
            element("summary", None, f"{len(folded)} more layers; those above are the largest"),
            _grid(folded),
        ),
    )


def _marks(run: Run) -> list[Mark]:
    """The warm-up of β, and where another stage begins."""
    marks = []
    positions, betas = run.values("beta")
    if betas and max(betas) > 0:
        full = next(p for p, beta in zip(positions, betas, strict=True) if beta >= 0.999 * max(betas))
        if full > positions[0]:
            marks.append(Mark("warm-up", positions[0], full))
    for previous, epoch in zip(run.history, run.history[1:], strict=False):
        if epoch.stage != previous.stage:
            marks.append(Mark(_STAGES.get(epoch.stage, epoch.stage), epoch.position, epoch.position))
    return marks


# Ranks ------------------------------------------------------------------------------------------------


def _rank_charts(run: Run, marks: Sequence[Mark]) -> dict[str, Html]:
    """A chart per layer, a line per rank."""
    charts = {}
    for layer, before in run.ranks_before.items():
        points = [(epoch.position, epoch.ranks[layer]) for epoch in run.history if layer in epoch.ranks]
        if not points:
            continue
        xs = [position for position, _ in points]
        lines = [
            Series(_rank_label(n, ranks[-1], len(before)), xs, ranks, "step", n, n)
            for n, ranks in enumerate(zip(*(ranks for _, ranks in points), strict=True))
        ]
        after = run.ranks_after[layer]
        words = f"{layer}: ranks {modes(before)} at the start, {modes(after)} at the end of {len(run.history)} epochs"
        charts[layer] = figure(layer, line_chart(lines, words, marks=marks), ranks_change(before, after))
    return charts


def _rank_label(n: int, rank: int, of: int) -> str:
    return f"{rank}" if of == 1 else f"R{subscript(n + 1)} = {rank}"


def subscript(n: int) -> str:
    """Digits below the line.

    >>> subscript(12)
    '₁₂'
    """
    return str(n).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


# Size and objective -----------------------------------------------------------------------------------


def _size_chart(run: Run, marks: Sequence[Mark]) -> list[Html]:
    xs, sizes = run.values("parameters")
    if not xs:
        return []
    words = f"parameters of the posterior mean: {count(sizes[0])} after epoch 1, {count(sizes[-1])} at the end"
    line = Series(count(sizes[-1]), xs, sizes, "step")
    wide = max(sizes) > 10 * min(sizes)
    return [figure("Parameters", line_chart([line], words, log=wide, marks=marks), "of the posterior mean")]


@final
@dataclass(frozen=True)
class _Quantity:
    """One chart of the objective: its lines by name, how their values are written, and the axis."""

    title: str
    note: str
    lines: Mapping[str, str]
    text: Callable[[float], str] = number
    colour: int = 0
    axis: str = ""


_OBJECTIVE = (
    _Quantity("NLL", "nats per example", {"nll": "training", "evaluation_nll": "evaluation"}, colour=1),
    _Quantity("KL between posterior and prior", "", {"kl_nats": ""}, colour=2, axis="nats, whole model"),
    _Quantity("β", "weight of the KL", {"beta": ""}, colour=3),
    _Quantity("Accuracy", "", {"accuracy": "training", "evaluation_accuracy": "evaluation"}, percent),
    _Quantity("RMSE", "on the evaluation examples", {"evaluation_rmse": ""}),
)


def _objective_charts(run: Run, marks: Sequence[Mark]) -> list[Html]:
    """NLL, KL, β and scores over training, those that the run has."""
    return [chart for kind in _OBJECTIVE if (chart := _objective_chart(run, kind, marks)) is not None]


def _objective_chart(run: Run, kind: _Quantity, marks: Sequence[Mark]) -> Html | None:
    found = {name: run.values(key) for key, name in kind.lines.items()}
    found = {name: (xs, ys) for name, (xs, ys) in found.items() if any(ys)}
    if not found:
        return None
    lines = [
        Series(kind.text(ys[-1]), xs, ys, colour=kind.colour + n, dash=n) for n, (xs, ys) in enumerate(found.values())
    ]
    changes = [
        f"{name} {kind.text(ys[0])} in epoch 1, {kind.text(ys[-1])} in the last" for name, (_, ys) in found.items()
    ]
    values = [value for _, ys in found.values() for value in ys]
    wide = kind.title == "NLL" and min(values) > 0 and max(values) > _WIDE * min(values)
    words = f"{kind.title} {kind.note or kind.axis}: {'; '.join(changes)}".replace("  ", " ")
    chart = line_chart(lines, words, y_label=kind.axis, log=wide, zero=_has_zero(run, kind), marks=marks)
    return figure(kind.title, chart, _note(kind, list(found)), _what_follows(run, kind))


def _has_zero(run: Run, kind: _Quantity) -> bool:
    """Whether 0 means something: not among accuracies near 1, nor for the NLL of a density, which has a unit."""
    return kind.title != "Accuracy" and (kind.title != "NLL" or run.accuracy is not None)


def _note(kind: _Quantity, names: Sequence[str]) -> str:
    """What is measured, and on which examples; of two lines the second is dashed."""
    which = f"{names[0]}; dashed: {names[1]}" if len(names) > 1 else names[0]
    return ", ".join(part for part in (kind.note, which) if part)


def _what_follows(run: Run, kind: _Quantity) -> str:
    """What a reader needs to find the end of a line again elsewhere."""
    match kind.title:
        case "NLL":
            return _noise_is_fitted_again(run)
        case "KL between posterior and prior":
            return _per_example(run)
    return ""


def _per_example(run: Run) -> str:
    """The KL as the screen of ``rankfold train`` tells it."""
    _, values = run.values("kl_nats")
    examples = (run.record.get("data") or {}).get("num_train")
    return f"At the end {number(values[-1] / examples)} nats per training example." if examples else ""


def _noise_is_fitted_again(run: Run) -> str:
    """``rankfold train`` fits the noise of a quantity after the last epoch: the score is not the end of the line."""
    after = run.scores.get("posterior_mean", {}).get("nll_nats")
    _, curve = run.values("evaluation_nll")
    if run.table != "train" or run.accuracy is not None or after is None or not curve:
        return ""
    return (
        "When training is over, the noise is fitted once more, to what the posterior mean misses of the training "
        f"examples. This takes the NLL of the evaluation from {number(curve[-1])} to the {number(after)} that stands "
        "in the table of scores."
    )


# λ ----------------------------------------------------------------------------------------------------


def _lambda_charts(run: Run, saved: Mapping[str, Sequence[Sequence[float]]], marks: Sequence[Mark]) -> dict[str, Html]:
    """By layer, λ over training if the run noted it, else those of the saved model."""
    if any(epoch.variances for epoch in run.history):
        charts = {layer: _lambda_lines(run, layer, marks) for layer in run.ranks_after}
        return {layer: chart for layer, chart in charts.items() if chart is not None}
    return {layer: _lambda_strips(layer, groups) for layer, groups in saved.items()}


def _lambda_lines(run: Run, layer: str, marks: Sequence[Mark]) -> Html | None:
    """The largest λ of each rank at every epoch, the second largest, …: a line ends where its rank is cut."""
    noted = [(e.position, e.variances[layer]) for e in run.history if e.variances.get(layer)]
    if not noted:
        return None
    lines = []
    for n in range(len(noted[0][1])):
        ordered = [(position, sorted(groups[n], reverse=True)) for position, groups in noted if n < len(groups)]
        for k in range(max(len(values) for _, values in ordered)):
            points = [(position, values[k]) for position, values in ordered if k < len(values) and values[k] > 0]
            if points:
                xs, ys = zip(*points, strict=True)
                name = f"R{subscript(n + 1)}" if k == 0 else ""
                lines.append(Series(name, xs, ys, colour=n, thin=True))
    words = f"λ of {layer} over training, {len(lines)} lines, on a logarithmic axis"
    note = "each line a λ, sorted by size; a line ends where its rank is cut"
    return figure(layer, line_chart(_thinned(lines, len(run.ranks_after)), words, log=True, marks=marks), note)


def _thinned(lines: list[Series], num_layers: int) -> list[Series]:
    """Every so many of very many lines, and those with a name."""
    every = -(-len(lines) * num_layers // _MOST_LAMBDA_LINES)
    return [line for n, line in enumerate(lines) if line.label or n % every == 0]


def _lambda_strips(layer: str, groups: Sequence[Sequence[float]]) -> Html:
    strips = [Strip(f"R{subscript(n + 1)}", values) for n, values in enumerate(groups)]
    values = [value for group in groups for value in group]
    words = f"λ of {layer} in the saved model: {len(values)} values from {min(values):.1e} to {max(values):.1e}"
    drawing = strip_chart(strips, words, x_label="λ at the end", log=True)
    return figure(layer, drawing, "one stroke per rank that was kept")
