"""Formulas of the pages as MathML, written when the site is built: no script, no font and no network to read them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

# what pymdownx.arithmatex leaves of $…$ and of $$…$$
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs with every page's HTML."""
    html = _INLINE.sub(lambda found: convert(unescape(found[1])), html)
    return _BLOCK.sub(lambda found: f'<div class="formula">{_block(found[1])}</div>', html)


def _block(latex: str) -> str:
    return convert(unescape(latex), display="block")
