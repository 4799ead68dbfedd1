"""Formulas of the pages as MathML, written when the site is built: no script, no font and no network to read them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

# what pymdownx.arithmatex leaves of $…$ and of $$…$$
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


# a function without brackets needs a space before its argument: log σ
_FUNCTION = re.compile(r'(<mi>log</mi>)(?!<mo stretchy="false">&#x00028;)')


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with every page's HTML."""
    html = _INLINE.sub(lambda found: mathml(found[1], "inline"), html)
    return _BLOCK.sub(lambda found: f'<div class="formula">{mathml(found[1], "block")}</div>', html)


def mathml(latex: str, display: str) -> str:
    """A formula in LaTeX as MathML."""
    converted = convert(unescape(latex), display=display)
    # the converter takes \\sim for an identifier, which has no space around it
    converted = converted.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    return _FUNCTION.sub(r'\1<mspace width="0.17em"/>', converted)
