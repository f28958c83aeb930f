"""Kills hosts of a job at random, and prints how long it heals: `python benchmarks/healing.py --rounds 100`.

Each round loses one of four hosts, also the first one, in tests/cluster/test_healing.py. That test fails if
steps before a checkpoint are lost, or if two attempts of a job overlap.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(rounds: int) -> int:
    """Run the rounds, print the table, and return the status of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder, "healing.jsonl")
        measured.touch()
        env = {**os.environ, "MUSTER_HEALING_ROUNDS": str(rounds), "MUSTER_FAULTS_RECORD": str(measured)}
        words = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "tests/cluster/test_healing.py"]
        status = subprocess.run(words, cwd=ROOT, env=env, check=False).returncode
        sys.stdout.write(table([json.loads(line) for line in measured.read_text().splitlines()]))
    return status


def table(entries: Sequence[dict[str, object]]) -> str:
    """The seconds with each launcher: median and maximum."""
    lines = ["| launcher | rounds | seconds |", "| --- | --- | --- |"]
    for launcher in dict.fromkeys(entry["launcher"] for entry in entries):
        lost = [float(str(entry["lost"])) for entry in entries if entry["launcher"] == launcher]
        figures = f"{statistics.median(lost):.1f} (at most {max(lost):.1f})"
        lines.append(f"| {launcher} | {len(lost)} | {figures} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    sys.exit(main(parser.parse_args().rounds))
