"""The rows of a table that have results, for the figures."""

from __future__ import annotations

from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places
from rankfold.experiments.summary import Row, summarize


class MissingResults(Exception):
    """There is nothing to draw a figure from; the message says how to get it."""


def rows_of(table: str, places: Places) -> dict[str, Row]:
    """All rows by name; an error if none has a result."""
    rows = {row.name: row for row in summarize(Request(table), places).rows}
    if not any(row.results for row in rows.values()):
        raise MissingResults(f"no results in {places.results / table}; run: rankfold reproduce {table}")
    return rows


def bayesian_rows(rows: dict[str, Row], format: str) -> list[Row]:
    """Those of a format that found their ranks with a posterior, and have results."""
    return [
        row
        for row in rows.values()
        if row.results and (row.spec.format, row.spec.method, row.spec.inference) == (format, "ard", "bayes")
    ]
