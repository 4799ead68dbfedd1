"""The warnings of a run, in words for those who train and do not write the library."""

from __future__ import annotations

from collections.abc import Sequence

from rankfold.tensorized_weights import weight_name

_COLLAPSE = " collapsed: "


def cautions(warnings: Sequence[str], num_layers: int, most_named: int | None = None) -> list[str]:
    """All warnings; those about layers of which nothing was left are one. Of these at most so many are named.

    >>> cautions(["a.tensor collapsed: rank 1", "a.tensor, b.tensor collapsed: all"], 9)[0][:52]
    'The data have shown no use for a, b (2 of 9 layers o'
    """
    names, others = collapsed(warnings), [text for text in warnings if _COLLAPSE not in text]
    if not names:
        return others
    shown = ", ".join(names[:most_named]) + (", …" if most_named is not None and len(names) > most_named else "")
    return [
        f"The data have shown no use for {shown} ({len(names)} of {num_layers} layers of factors); they are cut to "
        f"rank 1. A smaller KL weight (--kl-weight), or more data, may keep more of them.",
        *others,
    ]


def collapsed(warnings: Sequence[str]) -> list[str]:
    """The layers of which nothing was left; each is named once, though it may have been so at several cuts.

    >>> collapsed(["a.tensor collapsed: by one rule", "a.tensor, b.tensor collapsed: by another"])
    ['a', 'b']
    """
    lists = [text.split(_COLLAPSE)[0] for text in warnings if _COLLAPSE in text]
    return list(dict.fromkeys(weight_name(tensor) for names in lists for tensor in names.split(", ")))
