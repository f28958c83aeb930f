"""Writes pages into files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from ...common.durable import write_atomically
from .records import read
from .render import render
from .run_page import run_page

NAME = "report.html"


def write_page(html: str, path: Path) -> None:
    """Write a page for its user alone. OSError names the file."""
    write_atomically(path, html.encode(errors="replace"), durable=False)  # it can be made again


def write_report(folder: Path, path: Path | None = None) -> Path:
    """Write the page of the run in a folder; returns its path."""
    target = path or folder / NAME
    write_page(render("run.html", page=run_page(read(folder))), target)
    return target
