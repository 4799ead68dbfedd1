"""HTML and SVG from plain functions. Text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import final

Value = str | int | float | None
_EMPTY = {"br", "circle", "hr", "image", "img", "line", "meta", "path", "rect"}


@final
class Html(str):
    """Text that is markup: it is put into a page as it is."""

    __slots__ = ()


def element(name: str, attributes: Mapping[str, Value] | None = None, *children: str | None) -> Html:
    """An element with its attributes and children; those that are ``None`` are left out.

    >>> element("p", {"class": "note"}, "1 < 2, ", element("b", None, "always"))
    '<p class="note">1 &lt; 2, <b>always</b></p>'
    """
    start = name + "".join(
        f' {key}="{escape(_text(value))}"' for key, value in (attributes or {}).items() if value is not None
    )
    if name in _EMPTY:
        return Html(f"<{start}/>")
    return Html(f"<{start}>{join(*children)}</{name}>")


def section(name: str, title: str, *parts: str | None) -> Html:
    """A section of the page under its heading."""
    return element("section", {"id": name}, element("h2", None, title), *parts)


def header(title: str, about: str, *parts: str | None) -> Html:
    """The top of every page."""
    over, below = element("p", {"class": "over"}, "rankfold report"), element("p", {"class": "about"}, about)
    return element("header", None, over, element("h1", None, title), below, *parts)


def join(*children: str | None) -> Html:
    """Markup and text one after the other.

    >>> join("a & b", Html("<br/>"), None)
    'a &amp; b<br/>'
    """
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None))


def _text(value: Value) -> str:
    """Coordinates need two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
