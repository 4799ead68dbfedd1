"""Pages may link to files of the repository that lie outside docs/; the site takes them along.

Markdown files at the root become pages. Everything else is copied to ``repository/`` as it is.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"NOTATION.md": "reference/notation.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and all files that pages link to."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    wanted = {
        path
        for file in files.documentation_pages()
        for target in _LINK.findall(file.content_string)
        if (path := _path(file.src_uri, target)) is not None and path not in PAGES
    }
    for path in sorted(wanted):
        files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point the links to where the files are in the site."""
    here = page.file.src_uri

    def renamed(found: re.Match[str]) -> str:
        path = _path(here, found[0])
        if path is None:
            return found[0]
        return posixpath.relpath(PAGES.get(path, f"repository/{path}"), posixpath.dirname(here) or ".")

    return _LINK.sub(renamed, markdown)


def _path(page: str, target: str) -> str | None:
    """The file in the repository that a link of a page means, if it lies outside docs/."""
    sources = {place: source for source, place in PAGES.items()}
    folder = posixpath.dirname(sources.get(page, f"docs/{page}"))
    path = posixpath.normpath(posixpath.join(folder, target))
    inside = path.startswith(("docs/", ".."))
    return None if inside or not (ROOT / path).is_file() else path
