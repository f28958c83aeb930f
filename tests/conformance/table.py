"""Makes the table of docs/mpi-backend.md: which of our checks each backend passes.

python -m tests.conformance.table
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.checks import AREAS, names, words
from tests.conformance.supervisor import Outcome, Supervisor

Outcomes = Mapping[str, Outcome]


def both(folder: Path) -> list[str]:
    """Run the checks on our backend and on Gloo; returns the table."""
    outcomes = []
    for backend in ("mpi", "gloo"):
        (folder / backend).mkdir()
        outcomes.append(Supervisor(backend, folder / backend, "checks").run())
    return table(*outcomes)


def table(ours: Outcomes, gloo: Outcomes) -> list[str]:
    """Return one line for each area."""
    rows = ["| area | checks | ours pass | Gloo passes | what fails |", "|---|---|---|---|---|"]
    for module in AREAS:
        checks = [name for name in names() if name.startswith(f"{module}.")]
        failed = [_failed(name, ours[name], gloo[name]) for name in checks]
        passed = [sum(of[name].outcome == "pass" for name in checks) for of in (ours, gloo)]
        rows.append(
            f"| {row_start(module)} | {passed[0]} | {passed[1]} | {'; '.join(filter(None, failed))} |"
        )
    return rows


def row_start(module: str) -> str:
    """Return what a row begins with, which is known without a run."""
    return f"{AREAS[module]} | {sum(name.startswith(f'{module}.') for name in names())}"


def _failed(name: str, ours: Outcome, gloo: Outcome) -> str:
    who = [backend for backend, one in (("ours", ours), ("Gloo", gloo)) if one.outcome != "pass"]
    return f"{words(name)} ({', '.join(who)})" if who else ""


if __name__ == "__main__":
    sys.stdout.write("\n".join(both(Path(tempfile.mkdtemp(prefix="conformance-")))) + "\n")
