"""The top of the page: how much smaller, how good, at a glance."""

from __future__ import annotations

from rankfold.reporting.comparison import best_score
from rankfold.reporting.drawings import squares
from rankfold.reporting.markup import Html, element, header, join
from rankfold.reporting.run import Run
from rankfold.reporting.wording import count, duration, number, percent, points, times


def headline(run: Run) -> Html:
    """Title, the one number, and a few beside it."""
    epochs = f"{len(run.history)} epochs" if run.history else ""
    about = " · ".join(part for part in (run.subject, run.method, epochs) if part)
    hero = element("div", {"class": "hero"}, _main_number(run), _size_drawing(run), element("dl", None, *_tiles(run)))
    return header(run.name, about, hero)


def _main_number(run: Run) -> Html:
    """How many times smaller; a dense network is only counted."""
    if run.final_parameters >= run.dense_parameters:
        big, small = count(run.final_parameters), "parameters, as many as the dense network has"
    else:
        big, small = times(run.times_smaller), "smaller than the dense network"
    return element("p", {"class": "big"}, element("strong", None, big), " ", element("span", None, small))


def _size_drawing(run: Run) -> Html | None:
    if run.final_parameters >= run.dense_parameters:
        return None
    sizes = [
        ("dense network", run.dense_parameters),
        ("numbers held in training", run.training_parameters),
        ("final parameters", run.final_parameters),
    ]
    if run.training_parameters in (run.dense_parameters, run.final_parameters):
        del sizes[1]
    words = "Squares with areas in proportion: " + ", ".join(f"{name} {count(size)}" for name, size in sizes)
    return element("div", {"class": "squares"}, squares(sizes, words))


def _tiles(run: Run) -> list[Html]:
    """The few numbers that everybody asks for."""
    tiles = [_quality_tile(run)]
    tiles.append(_tile("Parameters", count(run.final_parameters), f"dense: {count(run.dense_parameters)}"))
    ranks = [rank for values in run.ranks_before.values() for rank in values]
    if ranks:
        left = sum(rank for values in run.ranks_after.values() for rank in values)
        tiles.append(
            _tile("Ranks in all", f"{left}", f"of {sum(ranks)} at the start" if left != sum(ranks) else "none was cut")
        )
    seconds = (run.record.get("timing") or {}).get("training_seconds")
    if seconds is not None:
        device = (run.record.get("device") or {}).get("name") or ""
        tiles.append(_tile("Training", duration(seconds), f"on {device}" if device else ""))
    return [tile for tile in tiles if tile is not None]


def _quality_tile(run: Run) -> Html | None:
    """Accuracy against dense; for a run without it the first score there is."""
    if run.accuracy is not None:
        return _tile("Accuracy", percent(run.accuracy), _against_dense(run))
    if not run.main_scores:
        return None
    first, *others = run.main_scores
    return _tile(*first, ", ".join(map(" ".join, others)))


def _against_dense(run: Run) -> str:
    """What the accuracy is to be compared with."""
    if run.accuracy is None or run.dense_accuracy is None:
        return _against_one_answer(run)
    return f"dense: {percent(run.dense_accuracy)}, {points(run.accuracy - run.dense_accuracy)}"


def _against_one_answer(run: Run) -> str:
    """The accuracy of always saying the same; the NLL too, which tells better whether anything was learned."""
    baseline, nll = run.scores.get("baseline", {}), best_score(run, "nll_nats")
    said = f"one answer for all: {percent(baseline['accuracy'])}" if "accuracy" in baseline else ""
    if "nll_nats" in baseline and nll is not None:
        said += f"; NLL {number(nll)}, for that {number(baseline['nll_nats'])}"
    return said


def _tile(name: str, value: str, note: str) -> Html:
    details = join(element("strong", None, value), element("small", None, note) if note else None)
    return element("div", None, element("dt", None, name), element("dd", None, details))
