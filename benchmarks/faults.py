"""Writes the measured tables of docs/faults.md: `python benchmarks/faults.py [ROUNDS]`.

Each round is a run of tests/cluster/test_faults.py, which appends its measurements to the file that
MUSTER_FAULTS_RECORD names. The first round empties that file; with 0 rounds, the tables are made of the
present file. All other text of the page stays.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.peers import NAMES, PEERS  # noqa: E402  # from the checkout
from muster.deploy.core.text.text import count  # noqa: E402
from tests.cluster.faults import FAULTS, LAUNCHERS  # noqa: E402
from tests.cluster.start_faults import START_FAULTS  # noqa: E402

LONGEST_SAYING = 160
RECORD = Path(os.environ.get("MUSTER_FAULTS_RECORD", ROOT / ".pytest_cache" / "faults.jsonl"))


def main(rounds: int) -> None:
    """Run the rounds, then write the document."""
    RECORD.parent.mkdir(exist_ok=True)
    if rounds:
        RECORD.write_text("")  # the figures of an earlier tree would count among those of this one
    for _ in range(rounds):
        words = [sys.executable, "-m", "pytest", "-q", "tests/cluster/test_faults.py"]
        subprocess.run(words, cwd=ROOT, check=False, env={**os.environ, "MUSTER_FAULTS_RECORD": str(RECORD)})
    measured = [json.loads(line) for line in RECORD.read_text().splitlines()]
    if not measured:
        sys.exit(f"{RECORD}: no fault was measured; read the output of: pytest tests/cluster/test_faults.py")
    page = ROOT / "docs" / "faults.md"
    page.write_text(with_figures(page.read_text(), measured))


def with_figures(page: str, measured: Sequence[dict[str, Any]]) -> str:
    """Return the page with the tables of these measurements."""
    counts = {(entry["name"], entry["launcher"]): 0 for entry in measured}
    for entry in measured:
        counts[entry["name"], entry["launcher"]] += 1
    rounds = sorted(set(counts.values()))
    load = statistics.median(entry["load"] for entry in measured if "load" in entry)
    rows = f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else count(rounds[0], "round")
    medians = f"Medians of {rows} on {os.cpu_count()} cores at a load of {load:.0f}."
    page = re.sub(r"^Medians of .*", medians, page, count=1, flags=re.MULTILINE)
    running = (
        (
            fault.title,
            f"{fault.within:g}",
            *(seconds(measured, name, launcher) for launcher in LAUNCHERS),
            str(fault.status),
            f"`{named}`" if (named := said(measured, name)) else "its driver is gone",
        )
        for name, fault in FAULTS.items()
    )
    starting = (
        (
            fault.title,
            f"{fault.within:g}",
            seconds(measured, name, "mpirun"),
            str(fault.status),
            f"`{said(measured, name)}`",
        )
        for name, fault in START_FAULTS.items()
    )
    peers = (
        (title, *(seconds(measured, name, launcher) for launcher in LAUNCHERS), *PEERS[name])
        for name, title in titles()
        if name in PEERS
    )
    for section, head, lines in (
        ("While a job runs", ("fault", "limit, s", *LAUNCHERS, "status", "the verdict names"), running),
        ("Before a job runs", ("fault", "limit, s", "seconds", "status", "message"), starting),
        ("Compared with six launchers", ("fault", *(f"Muster, {name}" for name in LAUNCHERS), *NAMES), peers),
    ):
        page = with_table(page, section, table(head, lines))
    return page


def with_table(page: str, section: str, text: str) -> str:
    """Return the page with another first table in a section."""
    before, heading, after = page.partition(f"\n## {section}\n")
    return before + heading + re.sub(r"^\|.*?$(?!\n\|)", lambda _: text, after, count=1, flags=re.M | re.S)


def titles() -> Iterable[tuple[str, str]]:
    """Yield the name and the title of every fault."""
    yield from ((name, fault.title) for name, fault in FAULTS.items())
    yield from ((name, fault.title) for name, fault in START_FAULTS.items())


def seconds(measured: Iterable[dict[str, Any]], name: str, launcher: str) -> str:
    """Return the medians of the verdict and of the end, `0.7 / 1.0`; "" if the fault was not measured."""
    entries = [entry for entry in measured if (entry["name"], entry["launcher"]) == (name, launcher)]
    kinds = ("verdict",) if name in START_FAULTS else ("verdict", "clean")
    return " / ".join(median(entries, kind) for kind in kinds) if entries else ""


def median(measured: Iterable[dict[str, Any]], kind: str) -> str:
    """Return the median in seconds; a dash without measurements, as a killed driver writes no verdict."""
    times = [entry[kind] for entry in measured if entry[kind] is not None]
    return f"{statistics.median(times):.1f}" if times else "-"


def said(measured: Iterable[dict[str, Any]], name: str) -> str:
    """Return the text of a verdict on the fault, without the parts that differ each time."""
    text = next((entry["named"] for entry in measured if entry["name"] == name and entry["named"]), "")
    for pattern, short in ((r"/\S+/(?=known_hosts)", ""), (r"SHA256:[\w+/]+", "SHA256:…"), (r"\|", r"\|")):
        text = re.sub(pattern, short, text)
    return text if len(text) <= LONGEST_SAYING else f"{text[:LONGEST_SAYING]}…"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
