"""Makes HTML of values, by the templates beside this file. One file, which asks nobody for anything.

Every text is escaped: it may come from a host. The page's policy forbids scripts and all that is elsewhere.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...console.terminal import harmless
from ...console.text import duration, number
from ...errors import MusterError

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """The page of a template. `MusterError` where jinja2 is not installed: it is where muster is."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  # only pages need it
    except ImportError:
        raise MusterError("a page needs jinja2, which is not installed here: pip install jinja2") from None
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _clean(value) if type(value) is str else value,
    )
    environment.globals["style"] = (TEMPLATES / "style.css").read_text()
    environment.filters |= {"duration": duration, "number": number}
    return environment


def _clean(text: str) -> str:
    """The text without control characters, which HTML forbids; line ends stay."""
    return "\n".join(map(harmless, text.split("\n")))
