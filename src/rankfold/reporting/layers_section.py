"""Each layer: its format and modes, what it holds, and what was cut when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankfold.reporting.layers import Layer, sums_of
from rankfold.reporting.markup import Html, element, join, section
from rankfold.reporting.run import Cut, Run
from rankfold.reporting.wording import count, modes, ranks_change, times

Column = tuple[str, str]  # heading and class
_MOST_OPEN = 8  # cuts of a layer, and layers with cuts; longer lists are folded


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    caption: str,
    *,
    kinds: Mapping[int, str] | None = None,
    pairs: bool = False,
) -> Html:
    """A table that becomes one card per row on a narrow screen; the first column names the row.

    ``kinds`` are classes of rows, by their number; ``pairs`` puts two short cells beside each other on such a card.
    """
    head = [element("th", {"scope": "col", "class": kind or None}, name) for name, kind in columns]
    body = [element("tr", {"class": (kinds or {}).get(n)}, *_cells(columns, row)) for n, row in enumerate(rows)]
    return element(
        "table",
        {"class": "pairs" if pairs else None},
        element("caption", None, caption),
        element("thead", None, element("tr", None, *head)),
        element("tbody", None, *body),
    )


def _cells(columns: Sequence[Column], row: Sequence[str]) -> list[Html]:
    first, *rest = row
    cells = [element("th", {"scope": "row"}, first)]
    for (name, kind), cell in zip(columns[1:], rest, strict=True):
        cells.append(element("td", {"class": kind or None, "data-label": name}, cell))
    return cells


def layers(run: Run, found: Sequence[Layer]) -> Html | None:
    """The layers' table, or nothing for a dense network."""
    if not found:
        return None
    planted = ((run.record.get("data") or {}).get("planted") or {}).get("ranks") or {}
    columns: list[Column] = [("layer", ""), ("format and modes", ""), ("ranks", "n")]
    columns += [("planted", "n")] if planted else []
    columns += [("parameters", "n"), ("dense", "n"), ("smaller", "n")]
    sums = sums_of(run, found)
    rows = [_row(layer, planted) for layer in [*found, *sums]]
    counts = table(columns, rows, _caption(run, found), kinds={len(rows) - 1: "total"} if sums else None)
    return section("layers", "Layers", counts, _history_of_cuts(run))


def _caption(run: Run, found: Sequence[Layer]) -> str:
    shapes = ". Small: the shapes of the factors at the end" if any(layer.factor_shapes for layer in found) else ""
    counted = ". Only the layers listed are counted" if run.record["parameters"].get("of") == "layers" else ""
    return f"Ranks and parameters of each layer, from the first epoch to the last{shapes}{counted}"


def _row(layer: Layer, planted: Mapping[str, Sequence[int]]) -> list[str]:
    cells = [layer.name, _format(layer), ranks_change(layer.ranks_before, layer.ranks)]
    cells += [modes(planted.get(layer.name, ()))] if planted else []
    return [*cells, _parameters(layer), _or_dash(layer.dense), _smaller(layer)]


def _format(layer: Layer) -> str:
    """Format and modes, and below them in small print the shapes of the factors."""
    if not layer.format:
        return "–" if layer.ranks else ""
    dims = f" {modes(layer.in_dims)} × {modes(layer.out_dims)}" if layer.in_dims else ""
    owner = f", shared with {layer.shared_with}" if layer.shared_with is not None else ""
    shapes = ", ".join("×".join(map(str, shape)) for shape in layer.factor_shapes)
    return element("span", None, f"{layer.format}{dims}{owner}", element("small", None, shapes) if shapes else None)


def _parameters(layer: Layer) -> str:
    if layer.before is None or layer.after is None:
        return "–"
    return count(layer.after) if layer.before == layer.after else f"{count(layer.before)} → {count(layer.after)}"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else count(value)


def _smaller(layer: Layer) -> str:
    return "–" if layer.compression is None else times(layer.compression)


# What was cut when ------------------------------------------------------------------------------------


def _history_of_cuts(run: Run) -> Html:
    """By layer, the epochs in which it lost ranks."""
    cuts = run.cuts
    if not cuts:
        return element("p", {"class": "note"}, "No rank was cut during training.")
    by_layer = {layer: [cut for cut in cuts if cut.layer == layer] for layer in run.ranks_after}
    few = sum(map(bool, by_layer.values())) <= _MOST_OPEN
    lists = [_cuts_of(layer, found, few and len(found) <= _MOST_OPEN) for layer, found in by_layer.items() if found]
    return join(element("h3", None, "What was cut when"), element("div", {"class": "grid cuts"}, *lists))


def _cuts_of(layer: str, cuts: Sequence[Cut], is_open: bool) -> Html:
    items = [
        element("li", None, element("span", None, f"epoch {cut.epoch}"), ranks_change(cut.before, cut.after))
        for cut in cuts
    ]
    gone = sum(map(sum, (c.before for c in cuts))) - sum(map(sum, (c.after for c in cuts)))
    name = f"{gone} rank{'s' if gone != 1 else ''} cut in {len(cuts)} step{'s' if len(cuts) != 1 else ''}"
    return element(
        "details",
        {"open": "open" if is_open else None},
        element("summary", None, element("b", None, layer), " ", name),
        element("ol", None, *items),
    )
