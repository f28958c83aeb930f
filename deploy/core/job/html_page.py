"""Renders values as HTML by a template, and writes it: one file that loads nothing.

Every text is escaped: it may come from a host. The page's policy forbids scripts and external resources.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MusterError
from ..text.terminal import harmless_lines
from ..text.text import duration, number
from ..wire.durable import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
"""What all pages share."""


def render(template: Path, **values: Any) -> str:
    """The page of a template. `MusterError` if jinja2 is not installed."""
    return environment(template.parent).get_template(template.name).render(values)


@cache
def environment(folder: Path) -> Environment:
    """The templates of a folder, which extend those that all pages share."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # optional
    except ImportError:
        raise MusterError("a page needs jinja2, which is not installed here: pip install jinja2") from None
    made = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # HTML forbids control characters.
        finalize=lambda value: harmless_lines(value) if type(value) is str else value,
    )
    made.globals["style"] = (TEMPLATES / "style.css").read_text()
    made.filters |= {"duration": duration, "number": number}
    return made


def write_page(html: str, path: Path) -> None:
    """Write a page for its user alone. OSError names the file."""
    write_atomically(path, html.encode(errors="replace"), durable=False)  # it can be written again
