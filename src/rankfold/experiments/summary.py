"""The results of a table, averaged over seeds, beside the paper's numbers and our targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

from rankfold.experiments.clicks import compare
from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places, result_of
from rankfold.experiments.spec import PAPER_FILE, TARGETS_FILE, Spec, read_rows, read_toml

Result = dict[str, Any]


@final
@dataclass(frozen=True)
class Average:
    """Mean and standard deviation (n − 1) over seeds; no deviation for a single one."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Average:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@final
@dataclass(frozen=True)
class Row:
    """All results of one row.

    Attributes:
        paper: the paper's numbers, if it has this row: ``training``, ``final``, ``accuracy``, ``correction``.
    """

    name: str
    spec: Spec
    results: tuple[Result, ...]
    paper: Mapping[str, Any]

    @property
    def by_seed(self) -> dict[int, Result]:
        return {result["spec"]["seed"]: result for result in self.results}

    def average(self, value: Callable[[Result], float | None]) -> Average | None:
        """Over the seeds; ``None`` where there are no results, or none with this value."""
        values = [found for found in map(value, self.results) if found is not None]
        return Average.of(values) if values else None

    @property
    def accuracy(self) -> Average | None:
        """Of the posterior mean, in percent."""
        return self.average(lambda result: 100.0 * result["metrics"]["posterior_mean"]["accuracy"])

    @property
    def final(self) -> Average | None:
        """Parameters of the final model."""
        return self.average(lambda result: result["parameters"]["final"])

    def score(self, prediction: str, name: str) -> Average | None:
        """A score of the ``posterior_mean`` or of ``monte_carlo``."""
        return self.average(lambda result: result["metrics"].get(prediction, {}).get(name))


@final
@dataclass(frozen=True)
class Target:
    """Something to reach: what, by which row, what was found, and whether it is enough."""

    row: str
    wanted: str
    found: str
    met: bool


@final
@dataclass(frozen=True)
class Summary:
    """A whole table."""

    rows: tuple[Row, ...]
    targets: tuple[Target, ...]


def summarize(request: Request, places: Places) -> Summary:
    """Read everything there is about a table. Damaged results, and those of other settings, are errors.

    Targets are for full training: a quick request has none.
    """
    folder = places.experiments / request.table
    paper = read_toml(folder / PAPER_FILE) if (folder / PAPER_FILE).exists() else {}
    specs = read_rows(folder)
    rows = {
        name: Row(name, specs[name], _results(request, places, name, specs[name]), paper.get(name, {}))
        for name in specs
    }
    has_targets = not request.quick and (folder / TARGETS_FILE).exists()
    wanted = read_toml(folder / TARGETS_FILE) if has_targets else {}
    in_order = tuple(rows[name] for name in sorted(rows, key=lambda name: _place(rows[name])))
    return Summary(in_order, tuple(_targets(in_order, wanted)))


def _results(request: Request, places: Places, row: str, spec: Spec) -> tuple[Result, ...]:
    """Those of all seeds there are."""
    apart = request.places(places)
    files = (apart.results / request.table).glob(f"{row}-seed*.json")
    seeds = sorted(int(seed) for file in files if (seed := file.stem.removeprefix(f"{row}-seed")).isdecimal())
    found = [result_of(request.run(row, spec, seed), apart) for seed in seeds]
    return tuple(result for result in found if result is not None)


def _place(row: Row) -> tuple[int, ...]:
    """Format by format as in the paper, and within a format method by method."""
    spec = row.spec
    return (
        ("", "cp", "tucker", "tt", "ttm").index(spec.format or ""),
        ("dense", "fr", "tc-mr", "tc-or", "ard").index(spec.method),
        ("bayes", "map").index(spec.inference),
        ("log-uniform", "half-cauchy").index(spec.prior),
    )


# Targets ----------------------------------------------------------------------------------------------


def _targets(rows: Sequence[Row], wanted: Mapping[str, Any]) -> list[Target]:
    """Those of all Bayesian rows with results, and of the dense row where others are held against it."""
    found = [row for row in rows if row.spec.method == "ard" and row.spec.inference == "bayes" and row.results]
    fixed = {row.spec.format: row for row in rows if row.spec.method == "fr"}
    dense = next((row.accuracy.mean for row in rows if row.spec.method == "dense" and row.accuracy), None)
    targets, higher = [], 0.0
    if "dense" in wanted and dense is not None:
        least = wanted["dense"]["accuracy"]
        targets.append(Target("dense", f"≥ {_percent(least)} %", f"{dense:.2f} %", dense >= least))
        # wanted accuracies are distances to a dense network of the least accuracy; a better one lifts them
        higher = max(0.0, dense - least)
    for row in found:
        for level, point in wanted.get(row.spec.format or "", {}).items():
            targets.append(_size_target(row, level, point, higher))
    if "accuracy" in wanted and dense is not None:
        targets += [_accuracy_target(row, dense, wanted["accuracy"]["below_dense"]) for row in found]
    targets += [_rank_target(row, wanted["ranks"][row.spec.format]) for row in found if "ranks" in wanted]
    for row in found:
        targets += _auc_targets(row, rows, wanted.get("auc", {}))
        targets += _uncertainty_targets(row, fixed.get(row.spec.format), wanted.get("uncertainty", {}))
    return targets


def _size_target(row: Row, level: str, point: Mapping[str, float], higher: float) -> Target:
    accuracy, final = row.accuracy, row.final
    assert accuracy is not None
    assert final is not None
    if "accuracy" not in point:
        wish, found = f"{level}: ≤ {point['parameters']:,} parameters", f"{final.mean:,.0f}"
        return Target(row.name, wish, found, final.mean <= point["parameters"])
    least = round(point["accuracy"] + higher, 4)
    return Target(
        row.name,
        f"{level}: ≥ {_percent(least)} % at ≤ {point['parameters']:,}",
        f"{accuracy.mean:.2f} % at {final.mean:,.0f}",
        accuracy.mean >= least and final.mean <= point["parameters"],
    )


def _accuracy_target(row: Row, dense: float, most: float) -> Target:
    assert row.accuracy is not None
    below = dense - row.accuracy.mean
    return Target(row.name, f"accuracy at most {most:g} % below that of dense", f"{below:.2f} %", below <= most)


def _percent(accuracy: float) -> str:
    """One decimal, or as many as were given."""
    return f"{accuracy:.1f}" if round(accuracy, 1) == accuracy else f"{accuracy:g}"


def _auc_targets(row: Row, rows: Sequence[Row], wanted: Mapping[str, Any]) -> list[Target]:
    """AUC not below that of other rows, by a paired bootstrap, and at most so far below that of the planted model."""
    methods = wanted.get("not_below", ())
    others = [o for o in rows if o.spec.method in methods and o.spec.format in (None, row.spec.format) and o.results]
    targets = []
    for other in others:
        seeds = sorted(row.by_seed.keys() & other.by_seed.keys())
        if not seeds:
            continue
        found = compare([row.by_seed[seed] for seed in seeds], [other.by_seed[seed] for seed in seeds])
        text = f"{found.difference:+.5f} ({found.low:+.5f} to {found.high:+.5f})"
        targets.append(Target(row.name, f"AUC not below that of {other.name}", text, found.high >= 0.0))
    if "below_planted" in wanted:
        auc, planted = row.score("posterior_mean", "auc"), row.score("planted", "auc")
        assert auc is not None
        assert planted is not None
        most, below = wanted["below_planted"], planted.mean - auc.mean
        wish = f"AUC at most {most:g} below that of the planted model"
        targets.append(Target(row.name, wish, f"{below:.4f}", below <= most))
    return targets


def _rank_target(row: Row, wanted: Mapping[str, float]) -> Target:
    """How far the found ranks are from the planted ones: each on average over the seeds, and the largest of all."""
    planted = list(chain.from_iterable(planted_ranks(row.results[0])))
    found = [list(chain.from_iterable(found_ranks(result))) for result in row.results]
    means = [statistics.fmean(seeds) for seeds in zip(*found, strict=True)]
    away = max(abs(mean - truth) for mean, truth in zip(means, planted, strict=True))
    highest = max(map(max, found))
    return Target(
        row.name,
        f"ranks within {wanted['within']:g} of the planted on average, at most {wanted['at_most']:g}",
        f"{away:.2g} away, at most {highest}",
        away <= wanted["within"] and highest <= wanted["at_most"],
    )


def planted_ranks(result: Result) -> list[list[int]]:
    """Those of every layer of the model that made the labels; none if no model did."""
    planted = result.get("data", {}).get("planted")
    return [] if planted is None else list(planted["ranks"].values())


def found_ranks(result: Result) -> list[list[int]]:
    """Those of every layer of the trained model."""
    return list(result["ranks"]["after"].values())


def _uncertainty_targets(row: Row, fixed: Row | None, wanted: Mapping[str, float]) -> list[Target]:
    targets = []
    reference = fixed.score("posterior_mean", "nll_nats") if fixed is not None else None
    for prediction, how in (("posterior_mean", "posterior mean"), ("monte_carlo", "Monte Carlo")):
        ece, nll = row.score(prediction, "ece"), row.score(prediction, "nll_nats")
        if "ece" in wanted and ece is not None:
            limit = wanted["ece"]
            targets.append(Target(row.name, f"{how}: ECE ≤ {limit:g}", f"{ece.mean:.4f}", ece.mean <= limit))
        if "nll_of_fixed_rank" in wanted and nll is not None and reference is not None:
            limit = wanted["nll_of_fixed_rank"] * reference.mean
            targets.append(Target(row.name, f"{how}: NLL ≤ {limit:.4f}", f"{nll.mean:.4f}", nll.mean <= limit))
    measures = [row.score("monte_carlo", name) for name in ("auroc_entropy", "auroc_mutual_information")]
    best = max((measure.mean for measure in measures if measure is not None), default=None)
    if "auroc" in wanted and best is not None:
        targets.append(
            Target(row.name, f"Monte Carlo: AUROC ≥ {wanted['auroc']:g}", f"{best:.4f}", best >= wanted["auroc"])
        )
    return targets
