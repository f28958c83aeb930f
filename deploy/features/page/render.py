"""Renders values as HTML by the templates in this folder, and writes it: one file that loads nothing.

Every text is escaped: it may come from a host. The page's policy forbids scripts and external resources.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import MusterError
from ...core.text.terminal import harmless_lines
from ...core.text.text import duration, number
from ...core.wire.durable import write_atomically
from .records import read
from .run_page import run_page

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """The page of a template. `MusterError` if jinja2 is not installed."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # optional
    except ImportError:
        raise MusterError("a page needs jinja2, which is not installed here: pip install jinja2") from None
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # HTML forbids control characters.
        finalize=lambda value: harmless_lines(value) if type(value) is str else value,
    )
    environment.globals["style"] = (TEMPLATES / "style.css").read_text()
    environment.filters |= {"duration": duration, "number": number}
    return environment


def write_page(html: str, path: Path) -> None:
    """Write a page for its user alone. OSError names the file."""
    write_atomically(path, html.encode(errors="replace"), durable=False)  # it can be written again


def write_report(folder: Path, path: Path) -> Path:
    """Write the page of the run in a folder; returns its path."""
    write_page(render("run.html", page=run_page(read(folder))), path)
    return path
