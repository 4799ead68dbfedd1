"""The whole page, and the file it is written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import rankfold
from rankfold.reporting.calibration import bins_of
from rankfold.reporting.comparison import Row, comparison, extremes, rows_of
from rankfold.reporting.facts_section import facts
from rankfold.reporting.headline import headline
from rankfold.reporting.layers import Layer, layers_of
from rankfold.reporting.layers_section import layers
from rankfold.reporting.markup import Html, element, header, join
from rankfold.reporting.quality_section import quality
from rankfold.reporting.run import Run
from rankfold.reporting.saved import file_sizes, run_folder, saved_model
from rankfold.reporting.style import STYLE
from rankfold.reporting.training_section import training
from rankfold.reporting.wording import count

_ICON = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Cpath fill='%23bcd' d='M0 0h8v8H0z'/%3E%3Cpath fill='%230072b2' d='M0 5h3v3H0z'/%3E%3C/svg%3E"  # noqa: E501


@final
@dataclass(frozen=True)
class Report:
    """A page before it is written.

    Attributes:
        subject: the run it is about, if it is about one.
        rows: all runs that were named, by row.
    """

    subject: Run | None
    layers: tuple[Layer, ...]
    rows: tuple[Row, ...]
    html: str

    def summary(self) -> dict[str, Any]:
        """The numbers of the page, as plain values."""
        rows = [{"row": r.name, "runs": len(r.runs), "accuracy": r.accuracy, "parameters": r.size} for r in self.rows]
        compared: dict[str, Any] = {"comparison": rows} if len(rows) > 1 else {}
        return compared if self.subject is None else {**_summary_of(self.subject), **compared}


def _summary_of(run: Run) -> dict[str, Any]:
    return {
        "run": str(run.file),
        "name": run.name,
        "table": run.table,
        "accuracy": run.accuracy,
        "dense_accuracy": run.dense_accuracy,
        "parameters": dict(run.record["parameters"]),
        "times_smaller": run.times_smaller,
        "ranks": {"before": dict(run.ranks_before), "after": dict(run.ranks_after)},
        "scores": run.scores,
        "cuts": [{"epoch": c.epoch, "layer": c.layer, "before": c.before, "after": c.after} for c in run.cuts],
    }


def make_report(subject: Run | None, others: Sequence[Run] = ()) -> Report:
    """The page of a run, beside others; without a subject it compares the others alone."""
    named = [*([subject] if subject is not None else []), *others]
    rows = rows_of(list({run.file.resolve(): run for run in named[::-1]}.values())[::-1])
    compared = comparison(rows, subject)
    if subject is None:
        body, found, title = join(_table_header(rows), compared), [], rows[0].runs[0].subject
    else:
        folder = run_folder(subject)
        saved = saved_model(folder / "model") if folder is not None else None
        found = layers_of(subject, saved)
        body = join(
            headline(subject),
            training(
                subject,
                saved.variances if saved is not None else {},
                {layer.name: layer.dense or 0 for layer in found},
            ),
            layers(subject, found),
            quality(subject, bins_of(subject, folder)),
            compared,
            facts(subject, file_sizes(folder) if folder is not None else {}),
        )
        title = f"{subject.name} · {subject.subject}"
    return Report(subject, tuple(found), tuple(rows), _document(f"{title} · rankfold", body))


def _table_header(rows: Sequence[Row]) -> Html:
    tables = list(dict.fromkeys(row.runs[0].subject for row in rows))
    runs = sum(len(row.runs) for row in rows)
    about = f"{len(rows)} row{'s' * (len(rows) != 1)}, {count(runs)} runs. {extremes(rows)}"
    return header(", ".join(tables), about)


def _document(title: str, body: Html) -> str:
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, title),
        Html(f'<link rel="icon" href="{_ICON}"/>'),
        Html(f"<style>{STYLE}</style>"),
    )
    footer = element(
        "footer", None, f"Made by rankfold {rankfold.__version__}. This page is one file and loads nothing."
    )
    page = element("body", None, element("main", None, body), footer)
    return f"<!DOCTYPE html>\n{element('html', {'lang': 'en'}, head, page)}\n"
