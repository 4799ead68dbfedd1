"""Reads pages and drawings back, with nothing of the code that wrote them."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "circle", "hr", "img", "line", "link", "meta", "path", "rect"}


@dataclass
class Node:
    tag: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag, kind=None):
        """Every element below with this tag and class, in order."""
        found = []
        for child in self.children:
            if isinstance(child, Node):
                if child.tag == tag and (kind is None or kind in child.attributes.get("class", "").split()):
                    found.append(child)
                found += child.all(tag, kind)
        return found

    def by_id(self, name):
        return next(n for tag in ("section", "div") for n in self.all(tag) if n.attributes.get("id") == name)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = Node("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute of {tag} is given twice"
        node = Node(tag, dict(attrs))
        self.open[-1].children.append(node)
        assert tag not in VOID, f"<{tag}> is not closed by />"
        self.open.append(node)

    def handle_startendtag(self, tag, attrs):
        assert tag in VOID, f"<{tag}/> has no content and is not of the kind that has none"
        self.open[-1].children.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self.open[-1].children.append(data)


def parse(html):
    """The tree of a page in which every element is closed where it should be."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root], f"{reader.open[-1].tag} is never closed"
    return reader.root


# Drawings ---------------------------------------------------------------------------------------------


def tick_value(text):
    """``20 k`` and ``1e−6`` as numbers."""
    for unit, power in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if text.endswith(unit):
            return float(text[:-1].replace("−", "-")) * power
    return float(text.replace("−", "-"))


def axis(svg, side):
    """From positions to values, as the first and the last number beside the axis say."""
    ticks = [
        (float(t.attributes[side]) - (3.5 if side == "y" else 0), tick_value(t.text)) for t in svg.all("text", side)
    ]
    (a, low), (b, high) = ticks[0], ticks[-1]
    middle, value = ticks[1]
    is_log = len(ticks) > 2 and low > 0 and abs(value / low - (high / low) ** (1 / (len(ticks) - 1))) < 1e-6 * value
    if is_log:
        return lambda p: low * (high / low) ** ((p - a) / (b - a))
    assert abs((middle - a) * (high - low) - (value - low) * (b - a)) < 0.02 * abs((high - low) * (b - a))
    return lambda p: low + (p - a) / (b - a) * (high - low)


def points(d):
    """The corners of a path of M, L, H and V."""
    x = y = 0.0
    found = []
    for command, numbers in re.findall(r"([MLHV])([^MLHV]*)", d):
        values = [float(v) for v in numbers.split()]
        x, y = (values[0], y) if command == "H" else (x, values[0]) if command == "V" else values
        found.append((x, y))
    return found
