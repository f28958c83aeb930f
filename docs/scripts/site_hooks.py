"""Hooks of mkdocs for the build of the site: they replace links that leave docs/ by the file's name.

A page links to files of the checkout, such as `../train/main.py`, for readers of the repository. The site has
no such files, so it shows their names; with `repo_url` in mkdocs.yml it links to them there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import PurePosixPath
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the text of a page for mkdocs."""
    folder = PurePosixPath("docs", page.file.src_uri).parent
    return replace_outside_links(markdown, folder, config.get("repo_url") or "")


def replace_outside_links(markdown: str, folder: PurePosixPath, repo_url: str = "") -> str:
    """Replace each relative link of a page in `folder` that leads out of docs/."""

    def replaced(match: re.Match[str]) -> str:
        words, target, _ = match.groups()
        path = posixpath.normpath(folder / target)
        if path.startswith("docs/"):
            return match.group()
        if repo_url:
            return f"[{words}]({repo_url.rstrip('/')}/blob/main/{path})"
        return words if words == path or "`" in words else f"{words} (`{path}`)"

    return _LINK.sub(replaced, markdown)
