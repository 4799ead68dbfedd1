"""Docstrings as Markdown: roles become links, examples become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod):`(~?)([\w.]+)`")
_EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*\n?(?:(?P=indent).*\S.*\n?)*", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring when it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every module, class and function."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with links, fenced examples and no reStructuredText."""
    text = _ROLE.sub(_link, text).replace("``", "`")
    text = re.sub(r"^ *::$", "", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"\(\\?\*(?=[,)])", r"(\\*", text)  # the star of a shape is no emphasis
    text = re.sub(r"^Args: (.*)$", r"The arguments are \1:\n\nArgs:", text, flags=re.MULTILINE)
    return _EXAMPLE.sub(_fenced, text)


def _link(found: re.Match[str]) -> str:
    short, path = found[1], found[2]
    shown = path.rpartition(".")[2] if short else path
    return f"[`{shown}`][{path}]" if path.startswith("rankfold.") else f"`{shown}`"


def _fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    return f"{indent}```pycon\n{found[0].rstrip()}\n{indent}```\n"
