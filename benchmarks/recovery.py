"""Writes the section of docs/faults.md on recoveries: `python benchmarks/recovery.py [ROUNDS]`.

Each round is a run of tests/cluster/test_recovery.py, which appends its measurements to the file that
MUSTER_FAULTS_RECORD names. With 0 rounds, the section is made of the present file.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cluster.recoveries import RECOVERIES, medians  # noqa: E402  # from the checkout

PAGE = ROOT / "docs" / "faults.md"
HEADING = "## From a fault to the next step"
NEXT = "## Before a job runs"
LAUNCHERS = ("mpirun", "torchrun")
RECORD = Path(os.environ.get("MUSTER_RECOVERY_RECORD", ROOT / ".pytest_cache" / "recovery.jsonl"))
TEXT = """{heading}

Seconds from the fault to the first all_reduce of the next attempt: six ranks on the same three hosts with
Gloo and `--max-restarts 1 --min-hosts 2`. Medians of {rounds} on {machine}, which all hosts share.
Made by `python benchmarks/recovery.py` from [tests/cluster/recoveries.py](../tests/cluster/recoveries.py).

{table}

torchrun alone: `torchrun --standalone --nproc-per-node 6 --max-restarts 1` on one machine, so no host can be
lost.

The parts of a recovery after a killed rank, by `timings` in result.json. Parts overlap.

{parts}

Where hosts share few cores, the imports of the program are the longest part. A restart also reads the last
checkpoint, and repeats the steps since then.
"""


def main(rounds: int) -> None:
    """Run the rounds, then write the section."""
    RECORD.parent.mkdir(exist_ok=True)
    if rounds:
        RECORD.write_text("")
    for _ in range(rounds):
        words = [sys.executable, "-m", "pytest", "-q", "tests/cluster/test_recovery.py", "-m", "soak"]
        subprocess.run(words, cwd=ROOT, check=False, env={**os.environ, "MUSTER_FAULTS_RECORD": str(RECORD)})
    measured = [json.loads(line) for line in RECORD.read_text().splitlines()]
    if not measured:
        sys.exit(f"{RECORD}: nothing was measured; read the output of: pytest tests/cluster/test_recovery.py")
    PAGE.write_text(with_section(PAGE.read_text(), section(measured)))


def section_of(page: str) -> str:
    """Return the section of a page with the empty line after it; "" before the first measurement."""
    found = re.search(rf"^{HEADING}\n.*?^(?=## )", page, re.MULTILINE | re.DOTALL)
    return found.group() if found else ""


def with_section(page: str, text: str) -> str:
    """Return the page with this text as its section, before the faults of a start."""
    before, _, after = page.replace(section_of(page), "").partition(NEXT)
    return f"{before}{text}\n\n{NEXT}{after}"


def section(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of the section for these measurements."""
    counts = sorted({sum(_key(other) == _key(entry) for other in measured) for entry in measured})
    load = statistics.median(entry["load"] for entry in measured)
    rows = (
        (
            recovery.title,
            *(medians(measured, name, launcher) for launcher in (*LAUNCHERS, "torchrun alone")),
            str(recovery.ranks),
        )
        for name, recovery in RECOVERIES.items()
    )
    return TEXT.format(
        heading=HEADING,
        rounds=f"{counts[0]} to {counts[-1]} runs" if len(counts) > 1 else f"{counts[0]} runs",
        machine=f"{os.cpu_count()} cores at a load of {load:.0f}",
        table=_table(("fault", *LAUNCHERS, "torchrun alone", "ranks after"), rows),
        parts=_table(("part", *LAUNCHERS), _parts(measured)),
    ).rstrip("\n")


def _parts(measured: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    """Yield each part of a recovery of a killed rank with its median seconds for each launcher."""
    of_rank = [entry for entry in measured if entry["name"] == "rank" and entry["parts"]]
    for name in dict.fromkeys(name for entry in of_rank for name in entry["parts"]):
        times = (
            [
                entry["parts"][name]
                for entry in of_rank
                if entry["launcher"] == launcher and name in entry["parts"]
            ]
            for launcher in LAUNCHERS
        )
        yield name, *(f"{statistics.median(each):.2f}" if each else "" for each in times)


def _key(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["name"], entry["launcher"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
