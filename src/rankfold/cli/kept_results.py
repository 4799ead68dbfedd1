"""Where the results of a request are kept, and the commands that make and show them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rankfold.experiments.planning import Request
from rankfold.experiments.results import Places

Kept = tuple[Request, Places]


def command_to_make(request: Request, places: Places) -> str:
    """That makes the results where they are looked for."""
    return _command("reproduce", request, places)


def command_to_show(request: Request, places: Places) -> str:
    """That shows the results; those of an edition are in a folder of results of its own."""
    return _command("table", request, request.edition_places(places))


def kept_elsewhere(request: Request, places: Places) -> Iterator[Kept]:
    """Results of other options, and of the editions, which are in folders below that of the results."""
    below = sorted(folder for folder in places.results.glob("*/") if folder.name not in _variant_names(request))
    for folder in (places.results, *below):
        for other in _variants(request):
            kept = other, replace(places, results=folder)
            if kept != (request, places) and _has_results(*kept):
                yield kept


def kept_in_folder_itself(request: Request, places: Places) -> Kept | None:
    """What was meant by a folder that holds the results of a variant, such as ``results/quick``."""
    above = replace(places, results=places.results.parent)
    for other in _variants(request):
        if folder_of(other, above) == places.results / request.table and _has_results(other, above):
            return other, above
    return None


def folder_of(request: Request, places: Places) -> Path:
    """Where the results of this table are."""
    return request.places(places).results / request.table


def _has_results(request: Request, places: Places) -> bool:
    return any(folder_of(request, places).glob("*-seed*.json"))


def _command(name: str, request: Request, places: Places) -> str:
    words = ["rankfold", name, request.table, *(f"--{option}" for option in request.variant)]
    if places.experiments != Places.experiments:
        words += ["--experiments", str(places.experiments)]
    if places.results != Places.results:
        words += ["--results", str(places.results)]
    return shlex.join(words)


def _variants(request: Request) -> list[Request]:
    """The same request with all options that keep results apart, those that it has first."""
    both = (False, True)
    variants = [replace(request, quick=quick, validation=validation) for quick in both for validation in both]
    return [request, *(other for other in variants if other != request)]


def _variant_names(request: Request) -> set[str]:
    return {"-".join(other.variant) for other in _variants(request)}
