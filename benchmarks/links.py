"""Writes the table of docs/bench.md: `muster bench links` beside mpi4py's ping-pong, on the same two hosts.

    muster cluster up && .venv/bin/python benchmarks/links.py --hosts hosts.txt --rounds 7

The contestants alternate (A B C A B C ...) on the first two hosts of the file, a rank on each, and the table
has medians with their ranges. Latency is half of a round trip of 8 bytes. Bandwidth is that of messages of 8
MiB: one at a time in the ping-pong of mpi4py.bench, two at a time in a measurement of links.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from muster.deploy.core.hosts import hostfile  # noqa: E402  # the checkout's own, installed or not

PAGE = ROOT / "docs" / "bench.md"
BEGIN, END = "<!-- figures: benchmarks/links.py -->", "<!-- end of figures -->"
MUSTER = str(Path(sys.executable).parent / "muster")
SMALL, LARGE = 8, 8 << 20  # bytes


class Link(NamedTuple):
    """Seconds of a message one way, and bytes a second."""

    latency: float
    bandwidth: float


def muster(*words: str, hosts: Path) -> str:
    """What a command of muster prints."""
    done = subprocess.run(
        [MUSTER, *words], cwd=hosts.parent, stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    return done.stdout


def of_links(backend: str, hosts: Path) -> Link:
    """The link from the first host to the second, as `muster bench links` measures it."""
    said = json.loads(muster("bench", "links", "--backend", backend, "--json", hosts=hosts))
    first = said["links"][0]
    return Link(first["latency_s"], first["bytes_per_s"])


def of_ping_pong(hosts: Path) -> Link:
    """The same link by mpi4py.bench: its rows are size, MB/s, and seconds one way."""
    rows: dict[int, tuple[float, float]] = {}
    for size, loops in ((SMALL, 2000), (LARGE, 40)):
        words = [f"--min-size={size}", f"--max-size={size}", f"--loop={loops}", f"--loop-huge={loops}"]
        said = muster("launch", "-m", "mpi4py.bench", "pingpong", *words, hosts=hosts)
        row = re.search(rf"\b{size}\s+([\d.]+) \|\s+([\d.e+-]+)", said)
        if row is None:
            raise SystemExit(f"mpi4py.bench has no row of {size} bytes:\n{said}")
        rows[size] = (float(row[1]) * 1e6, float(row[2]))
    return Link(rows[SMALL][1], rows[LARGE][0])


def spread(values: Sequence[float], form: str) -> str:
    """`110 (98-131)`: the median and the range."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def table(measured: dict[str, list[Link]], rounds: int) -> str:
    """The text between the marks of the page."""
    ours = statistics.median(link.bandwidth for link in measured["mpi4py.bench pingpong"])
    lines = [
        f"Two containers of the practice cluster on {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f},"
        f" medians and ranges of {rounds} rounds:\n",
        "| | latency, µs | bandwidth, MB/s | ratio |",
        "|---|---|---|---|",
    ]
    for name, links in measured.items():
        latency = spread([link.latency * 1e6 for link in links], ".0f")
        bandwidth = spread([link.bandwidth / 1e6 for link in links], ".0f")
        ratio = statistics.median(link.bandwidth for link in links) / ours
        lines.append(f"| {name} | {latency} | {bandwidth} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and replace the table of the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=Path, default=Path("hosts.txt"))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    pair = hostfile.load(options.hosts)[:2]
    with tempfile.TemporaryDirectory(prefix="muster-links-") as folder:
        hosts = Path(folder, "hosts.txt")
        hosts.write_text("".join(f"{host.name} slots=1\n" for host in pair))
        (hosts.parent / ".muster").symlink_to(options.hosts.resolve().parent / ".muster")
        contestants: dict[str, Callable[[], Link]] = {
            "mpi4py.bench pingpong": partial(of_ping_pong, hosts),
            "`muster bench links --backend mpi`": partial(of_links, "mpi", hosts),
            "`muster bench links --backend gloo`": partial(of_links, "gloo", hosts),
        }
        measured: dict[str, list[Link]] = {name: [] for name in contestants}
        for _ in range(options.rounds):
            for name, measure in contestants.items():
                measured[name].append(measure())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    text = f"{BEGIN}\n\n{table(measured, options.rounds)}\n\n{END}"
    PAGE.write_text(before + text + rest.partition(END)[2])


if __name__ == "__main__":
    main()
