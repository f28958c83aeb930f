"""Prints what was measured, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import torch

from muster.deploy.features.bench.programs.outcomes import BROKEN, REFUSED, RIGHT, WRONG
from muster.train.job.group import Job
from muster.train.reporting.terminal import headline

from .probe_cells import DIES, DTYPES, HANGS, Measured

SYMBOLS = {RIGHT: "+", REFUSED: "-", WRONG: "WRONG", BROKEN: "broken", HANGS: "hangs", DIES: "dies"}
Tables = dict[str, list[Measured]]


def as_text(group: Job, tables: Tables) -> str:
    """Return a table for each backend and device, then the cells that are neither right nor refused."""
    lines = [f"{headline(group)}, torch {torch.__version__}"]
    for backend, measured in tables.items():
        for device in dict.fromkeys(result.cell.device for result in measured):
            lines += ["", f"{backend} on {device}    + right    - refused in so many words", ""]
            lines += _table([result for result in measured if result.cell.device == device])
        for result in measured:
            if result.outcome not in {RIGHT, REFUSED}:
                cell = result.cell
                lines.append(f"{cell.operation} of {cell.dtype}: {result.outcome}: {result.said}")
    return "\n".join(lines) + "\n"


def _table(measured: Sequence[Measured]) -> list[str]:
    symbols = {(result.cell.operation, result.cell.dtype): SYMBOLS[result.outcome] for result in measured}
    operations = list(dict.fromkeys(result.cell.operation for result in measured))
    width = max(map(len, operations))
    columns = {
        name: max(len(name), *(len(symbols.get((operation, name), "")) for operation in operations))
        for name in DTYPES
    }
    lines = [" " * width + "".join(f"  {name:>{columns[name]}}" for name in DTYPES)]
    for operation in operations:
        row = "".join(f"  {symbols.get((operation, name), ''):>{columns[name]}}" for name in DTYPES)
        lines.append(f"{operation:<{width}}{row}".rstrip())
    return lines


def as_json(group: Job, tables: Tables) -> str:
    """Return every cell, with the message of the backend."""
    cells = [
        {"backend": backend, **asdict(result.cell), "outcome": result.outcome, "said": result.said}
        for backend, measured in tables.items()
        for result in measured
    ]
    about = {"torch": torch.__version__, "ranks": group.world_size, "hosts": group.host_count}
    return json.dumps({**about, "cells": cells}, indent=1) + "\n"
