"""The navigation: sections in this order, and in each of them the named pages first, then all others there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {
    "Tutorials": ("tutorials", ["first-model"]),
    "How-to": (
        "how-to",
        [
            "tensorize-a-model",
            "choose-and-read-ranks",
            "custom-training-loops",
            "uncertainty",
            "save-and-load",
            "export",
            "train-your-own",
            "report",
            "lightning",
            "huggingface",
            "distributed",
            "reproduce-the-paper",
        ],
    ),
    "Explanation": ("explanation", ["method", "paper-errata", "performance", "peers", "distributed"]),
    "Results": ("results", ["mnist", "cifar10", "imdb", "large-tables", "synthetic"]),
    "Reference": ("reference", ["index", "models", "layers", "training", "pruning", "predicting", "integrations"]),
}
_LAST = [{"Questions": "faq.md"}, {"Changelog": "changelog.md"}, {"Contributing": "contributing.md"}]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Called by mkdocs before anything is read."""
    config.nav = [{"Home": "index.md"}, *_sections(), *_LAST]
    return config


def _sections() -> list[dict[str, Any]]:
    found = {title: _pages(folder, first) for title, (folder, first) in SECTIONS.items()}
    found["Reference"].append("reference/notation.md")
    return [{title: pages} for title, pages in found.items() if pages]


def _pages(folder: str, first: list[str]) -> list[str]:
    there = {path.stem for path in (DOCS / folder).glob("*.md")}
    names = [name for name in first if name in there] + sorted(there.difference(first))
    return [f"{folder}/{name}.md" for name in names]
