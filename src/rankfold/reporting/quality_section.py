"""How good the predictions are and how well the model knows it: scores, calibration, its hardest example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankfold.reporting.drawings import Strip, calibration_diagram, picture, strip_chart
from rankfold.reporting.layers_section import Column, table
from rankfold.reporting.markup import Html, element, join, section
from rankfold.reporting.run import Run
from rankfold.reporting.training_section import figure
from rankfold.reporting.wording import PREDICTIONS, SCORES, count, one_answer, percent, score, score_name
from rankfold.uncertainty import Bins

_LEAST_SHOWN = 0.005  # of probability, in any draw; a label below it is left out
_MOST_SHOWN = 12
_LONGEST_NAME = 16


def quality(run: Run, bins: Mapping[str, Bins]) -> Html | None:
    """Scores and drawings, those that the run has."""
    parts = [_score_table(run), _drawings(run, bins)]
    if not any(parts):
        return None
    return section("quality", "Predictions and their uncertainty", *parts)


def _score_table(run: Run) -> Html | None:
    """A row per score, a column per kind of prediction."""
    scores = {name: found for name, found in run.scores.items() if found}
    if not scores:
        return None
    keys = list(dict.fromkeys(key for found in scores.values() for key in found))
    keys.sort(key=lambda key: list(SCORES).index(key) if key in SCORES else len(SCORES))
    columns: list[Column] = [("score", ""), *((_prediction(run, name), "n") for name in scores), ("", "about")]
    rows = [
        [score_name(key), *(score(key, found[key]) if key in found else "–" for found in scores.values()), _about(key)]
        for key in keys
    ]
    return table(columns, rows, f"Scores {_where(run)}")


def _prediction(run: Run, name: str) -> str:
    found = run.record["metrics"][name]
    samples = found.get("samples")
    if name == "baseline":
        return one_answer(found)
    return f"{samples} samples of the posterior" if samples else PREDICTIONS[name]


def _where(run: Run) -> str:
    examples = (run.record.get("data") or {}).get("num_evaluation")
    split = run.spec.get("split", "test")
    return f"on {count(examples)} {split} examples" if examples else f"on the {split} examples"


def _about(key: str) -> str:
    return SCORES[key][1] if key in SCORES else ""


def _drawings(run: Run, bins: Mapping[str, Bins]) -> Html | None:
    figures = [_calibration(run, name, found) for name, found in bins.items()]
    hard = run.record["metrics"].get("hard_image")
    figures += [_hard_example(run, hard)] if isinstance(hard, dict) and hard.get("mean") else []
    return element("div", {"class": "grid"}, *figures) if figures else None


def _calibration(run: Run, name: str, bins: Bins) -> Html:
    title = f"Calibration, {_prediction(run, name)}"
    words = "; ".join(
        f"{count(n)} examples at {confidence:.0%} confidence are right in {accuracy:.0%}"
        for n, confidence, accuracy in zip(bins.count, bins.confidence, bins.accuracy, strict=True)
        if n
    )
    note = f"off by {percent(bins.error)} on average; dotted: never off. The more examples, the larger the dot."
    return figure(title, calibration_diagram(bins, f"{title}. {words}"), note)


def _hard_example(run: Run, hard: Mapping[str, Any]) -> Html:
    """What samples of the weights say of the example they disagree about most."""
    names = _class_names(run, len(hard["mean"]))
    truth = int(hard["label"])
    shown = _labels_to_show(hard, truth)
    draws = hard.get("draws") or []
    strips = [
        Strip(names[n], [draw[n] for draw in draws], hard["mean"][n], hard["std"][n], stands_out=n == truth)
        for n in shown
    ]
    said = ", ".join(f"{names[n]} {hard['mean'][n]:.0%} ± {hard['std'][n]:.0%}" for n in shown)
    drawing = strip_chart(strips, f"Probabilities of the labels: {said}", x_label="probability")
    title = f"The hardest example, number {count(hard['index'])}"
    image = picture(hard["pixels"], f"Example {hard['index']}, a {names[truth]}") if hard.get("pixels") else None
    spread = f"{len(draws)} draws of the weights as strokes, " if draws else ""
    note = f"Truth: {names[truth]} (orange). {spread}mean as a bar, ± one standard deviation across."
    return element("div", {"class": "hard"}, figure(title, join(image, drawing), note))


def _labels_to_show(hard: Mapping[str, Any], truth: int) -> list[int]:
    """The truth, and the likeliest of the labels that any draw takes for possible."""
    possible = [n for n in range(len(hard["mean"])) if n != truth and _reach(hard, n) >= _LEAST_SHOWN]
    likeliest = sorted(possible, key=lambda n: -hard["mean"][n])[: _MOST_SHOWN - 1]
    return sorted([truth, *likeliest])


def _reach(hard: Mapping[str, Any], label: int) -> float:
    """The largest probability that any draw gives a label."""
    return max(float(values[label]) for values in (hard["mean"], *(hard.get("draws") or ())))


def _class_names(run: Run, number: int) -> Sequence[str]:
    names = (run.record.get("data") or {}).get("classes")
    if isinstance(names, list) and len(names) == number:
        return [_short(str(name)) for name in names]
    return [f"“{n}”" for n in range(number)]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
