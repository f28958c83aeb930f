"""The tables of docs/train-tools.md, which are what the probe is held against."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.tools.probe_table import SYMBOLS

DOCUMENT = Path(__file__).parents[2] / "docs" / "train-tools.md"
GLOO = "Gloo, torch 2.13.0, 2 ranks on one host"
OURS = "Our MPI backend, torch 2.13.0, Open MPI 5.0.11, 2 ranks on one host"
DEBIAN_MPI = (
    "The MPI backend that is built into Debian's torch 2.6.0, Open MPI 5.0.7, 2 ranks in the node image"
)
DEBIAN_GLOO = "Gloo, torch 2.6.0, the same image"

Answers = dict[tuple[str, str], str]


def documented(heading: str) -> Answers:
    """The symbol of each operation and type below a heading; of a barrier, whose type is not varied, one."""
    _, found, rest = DOCUMENT.read_text().partition(f"## {heading}\n")
    assert found, f"no table {heading}"
    head, *rows = [line.strip() for line in rest.partition("\n## ")[0].splitlines() if line.strip()]
    answers: Answers = {}
    for row in rows:
        operation, _, marks = row.partition("  ")
        types = head.split() if len(marks.split()) > 1 else ["f32"]
        answers |= {(operation, name): mark for name, mark in zip(types, marks.split(), strict=True)}
    return answers


def told(output: str) -> Answers:
    """The same of what `python -m benchmarks.tools.probe --json` printed, for the CPU."""
    return {
        (cell["operation"], cell["dtype"]): SYMBOLS[cell["outcome"]]
        for cell in json.loads(output)["cells"]
        if cell["device"] == "cpu"
    }
