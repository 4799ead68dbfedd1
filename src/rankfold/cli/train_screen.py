"""What ``rankfold train`` shows on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rankfold.cli.demo_screen import progress, rank_bars, terms
from rankfold.experiments.progress import Epoch
from rankfold.jobs.job import Job
from rankfold.jobs.preparation import Preparation, counted
from rankfold.jobs.running import JobRun
from rankfold.jobs.targets import Quantity
from rankfold.reporting.cautions import cautions
from rankfold.reporting.wording import one_answer

Record = dict[str, Any]
# More ranks than this get a line per layer instead of a bar each.
_MOST_BARS, _MOST_LAYERS = 16, 14
_MOST_COLUMNS = 20  # of a kind that are named
_MOST_NAMED = 4  # of the layers of which nothing was left


def screen(run: JobRun) -> RenderableType:
    """The whole display after an epoch."""
    spec, now = run.job.spec, run.history[-1]
    title = f"[bold]rankfold train[/] · {escape(run.job.data.name)} · {run.job.model}"
    settings = f"{(spec.format or '').upper()} · {spec.prior} prior · KL weight {spec.kl_weight:g}"
    seconds = sum(record["seconds"] for record in run.history) / len(run.history)
    done = progress(now["epoch"], spec.epochs, spec.warmup, seconds)
    objective = terms(now, run.before, len(run.data.train), "example", ("held back", _score(now)))
    parts = (done, Text(), objective, Text(), _ranks(run, now))
    return Panel(Group(*parts), title=title, subtitle=settings, box=box.ROUNDED, padding=(1, 2), width=96)


def opening(run: JobRun) -> str:
    """What is about to be trained, and on what."""
    spec = run.job.spec
    about = data_line(run.job, run.preparation, len(run.data.train), len(run.data.evaluation))
    first = (
        f"{run.folder}: {about}; model {run.job.model}, {run.before.dense_parameters:,} parameters if it were dense; "
        f"{counted(spec.epochs, 'epoch')}, batches of {spec.batch_size}, KL weight {spec.kl_weight:g}"
    )
    return "\n".join((first, *column_lines(run.job, run.preparation)))


def data_line(job: Job, preparation: Preparation, num_train: int, num_held: int) -> str:
    """What the data are, and what is to be learned of them."""
    target = preparation.target
    what = f"regression of {target.name!r}" if isinstance(target, Quantity) else f"{len(target.names)} classes"
    if preparation.guess is not None and job.options.task is None:
        what += f" ({preparation.guess})"
    remark = "" if preparation.remark is None else f" ({preparation.remark})"
    return (
        f"{preparation.described_as}, {what}: {counted(num_train, 'example')} to train, {num_held:,} held back{remark}"
    )


def column_lines(job: Job, preparation: Preparation) -> Iterator[str]:
    """Of a table, what its columns are taken for, and a line for each of the numbers that looks like an id."""
    columns = preparation.columns(job.options)
    if columns is None:
        return
    values = [f"{name} ({counted(size, 'value')})" for name, size in columns["categories"].items()]
    groups = {"numbers": columns["numbers"], "categories": values, "ignored": columns["ignored"]}
    yield "; ".join(f"{what}: {_listed(names)}" for what, names in groups.items() if names)
    for name, option in columns["ids"].items():
        yield f"note: {name} is taken for a number, but looks like an id; {option}?"


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MOST_COLUMNS} more" if len(names) > _MOST_COLUMNS else ""
    return ", ".join(names[:_MOST_COLUMNS]) + more


def progress_line(run: JobRun) -> str:
    """An epoch, for output that is no terminal."""
    now = run.history[-1]
    layers = list(now["ranks"].values())
    shown = "  ".join("·".join(map(str, ranks)) for ranks in layers[:_MOST_LAYERS])
    return (
        f"epoch {now['epoch']:3d}/{run.job.spec.epochs}  NLL {now['nll']:.3f}  "
        f"KL {now['kl_nats'] / len(run.data.train):.3f} nats per example  "
        f"β {now['beta']:.2f}  {_score(now)}  parameters {now['parameters']:,}  "
        f"ranks {shown}{'  …' if len(layers) > _MOST_LAYERS else ''}"
    )


def dense_line(run: JobRun, epoch: Epoch) -> str:
    """An epoch of the dense network that is trained to compare with."""
    return (
        f"dense, to compare with: epoch {epoch.epoch:3d}/{run.job.spec.epochs}  NLL {epoch.nll:.3f}  "
        f"training accuracy {epoch.accuracy:.1%}"
    )


def result_table(result: Record) -> RenderableType:
    """Sizes, and scores on the examples held back, beside an answer that ignores the inputs."""
    metrics, parameters = result["metrics"], result["parameters"]
    sizes = Table(box=box.SIMPLE_HEAD, header_style="bold")
    sizes.add_column("network")
    dense = result.get("dense_accuracy")
    for heading in ("parameters", "smaller", *(() if dense is None else ("accuracy",))):
        sizes.add_column(heading, justify="right")
    accuracies = ((), ()) if dense is None else ((f"{dense:.1%}",), (f"{metrics['posterior_mean']['accuracy']:.1%}",))
    sizes.add_row("dense", f"{parameters['dense']:,}", "1×", *accuracies[0])
    ratio = parameters["dense"] / parameters["final"]
    sizes.add_row(
        "factors, ranks found", f"{parameters['final']:,}", f"{ratio:.1f}×", *accuracies[1], style="bold green"
    )
    return Group(sizes, _score_table(metrics, result["data"]["num_evaluation"]))


def hints(result: Record) -> Iterator[str]:
    """What a user should know about the result."""
    metrics, spec = result["metrics"], result["spec"]
    useless = _uselessness(metrics)
    if useless is not None:
        lighter = (
            f"With few examples the prior may weigh too much: try --kl-weight {spec['kl_weight'] / 4:.2g}, or more"
        )
        yield f"{useless} {lighter if spec['kl_weight'] > 0 else 'Try more'} --epochs."
    if spec["kl_weight"] == 0 and result["ranks"]["after"] == result["ranks"]["before"]:
        yield (
            "No rank was cut: with --kl-weight 0 the prior counts for nothing, and ranks are not determined. "
            "Leave it out for a weight that suits the number of examples."
        )
    if result["data"]["num_evaluation"] < 100:
        few = counted(result["data"]["num_evaluation"], "example")
        yield f"Scores from {few} are rough; a larger --validation-share helps."
    yield from cautions(result["warnings"], len(result["ranks"]["after"]), _MOST_NAMED)


def _uselessness(metrics: Record) -> str | None:
    """What to say of predictions that are no better than one answer for all."""
    baseline = metrics["baseline"]
    if "nll_nats" not in baseline:
        if metrics["posterior_mean"]["rmse"] < baseline["rmse"]:
            return None
        return f"It is no better than always answering {baseline['answer']!r}."
    # not by accuracy: where one class is frequent, good probabilities may never change the likeliest answer
    nll = min(metrics[name]["nll_nats"] for name in ("posterior_mean", "monte_carlo"))
    if nll < baseline["nll_nats"]:
        return None
    shares = f"the shares of the classes (NLL {nll:.3f} against {baseline['nll_nats']:.3f})"
    return f"It is no better than always answering with {shares}."


def _score_table(metrics: Record, num_evaluation: int) -> Table:
    rows = {
        f"mean of {counted(metrics['monte_carlo']['samples'], 'sample')}": metrics["monte_carlo"],
        "posterior mean": metrics["posterior_mean"],
        one_answer(metrics["baseline"]): metrics["baseline"],
    }
    columns = [key for key in _HEADINGS if key in metrics["monte_carlo"]]
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    table.add_column(f"{counted(num_evaluation, 'example')} held back", no_wrap=True)
    for key in columns:
        table.add_column(_HEADINGS[key][0], justify="right")
    for label, scores in rows.items():
        cells = [format(scores[key], _HEADINGS[key][1]) if key in scores else "" for key in columns]
        table.add_row(escape(label), *cells, style="dim" if scores is metrics["baseline"] else None)
    return table


_HEADINGS = {
    "accuracy": ("accuracy", ".1%"),
    "auc": ("AUC", ".4f"),
    "rmse": ("RMSE", ".4g"),
    "mae": ("error", ".4g"),
    "r2": ("R²", ".3f"),
    "nll_nats": ("NLL", ".3f"),
    "ece": ("calibration error", ".3f"),
    "within_90_percent": ("within 90 %", ".1%"),
}


def _score(now: Record) -> str:
    if "evaluation_accuracy" in now:
        return f"accuracy {now['evaluation_accuracy']:.1%}"
    return f"RMSE {now['evaluation_rmse']:.4g}" if "evaluation_rmse" in now else ""


def _ranks(run: JobRun, now: Record) -> RenderableType:
    starting, ranks = run.starting_ranks, now["ranks"]
    if sum(map(len, ranks.values())) <= _MOST_BARS:
        return rank_bars(ranks, starting)
    grid = Table.grid(padding=(0, 2))
    for name, values in list(ranks.items())[:_MOST_LAYERS]:
        grid.add_row(name, "·".join(map(str, values)), f"[dim]of {'·'.join(map(str, starting[name]))}[/]")
    more = len(ranks) - _MOST_LAYERS
    return Group(grid, Text(f"and {more} more layers", style="dim")) if more > 0 else grid
