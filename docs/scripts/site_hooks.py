"""Hooks of mkdocs for the build of the site: they replace links that leave docs/, and mark short code.

A page links to files of the checkout, such as `../train/demo/main.py`, for readers of the repository. The
site has no such files, so it shows their names. Where pyproject.toml has the address of the repository, the
site links to it, and to these files there.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

_SHORT_CODE = re.compile("<code>([^<\\n]{1,28})</code>")
_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> None:
    """Set the address of the repository, if pyproject.toml has it; mkdocs has set everything else."""
    config.repo_url = repository((Path(__file__).parents[2] / "pyproject.toml").read_text())


def repository(pyproject: str) -> str | None:
    """Return the address of the repository that a pyproject.toml names."""
    found = re.search(r'^Repository = "(.+)"$', pyproject, re.MULTILINE)
    return found[1] if found else None


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return the text of a page for mkdocs."""
    folder = PurePosixPath("docs", page.file.src_uri).parent
    address = config.get("repo_url") or ""
    return replace_outside_links(markdown, folder, address)


def on_page_content(html: str, **_: Any) -> str:
    """Mark short code, such as `--stall-timeout`: style.css keeps it on one line."""
    return _SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def replace_outside_links(markdown: str, folder: PurePosixPath, repo_url: str = "") -> str:
    """Replace each relative link of a page in `folder` that leads out of docs/."""

    def replaced(match: re.Match[str]) -> str:
        text, target, _ = match.groups()
        path = posixpath.normpath(folder / target)
        if path.startswith("docs/"):
            return match.group()
        if repo_url:
            return f"[{text}]({repo_url.rstrip('/')}/blob/main/{path})"
        return text if text == path or "`" in text else f"{text} (`{path}`)"

    return _LINK.sub(replaced, markdown)
