"""The cost of bringing a data set to many hosts: Muster, scp -r, rsync and clush --copy, in one run.

    .venv/bin/python benchmarks/data.py --hosts 3 16 --megabytes 1000 --files 100000

The hosts are simulated (lab.py). This machine's disk holds a copy for each host: choose sizes by that.
Figures that carry over: the bytes that left the client, and each time as a multiple of scp's in the same run.
scp and rsync run for all hosts at once. Programs that are not installed are left out.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import FAB, ROOT, Cost, Lab, docker, lab, measure  # type: ignore[import-not-found]  # beside this script

SMALL = 4096
RECEIVED = "/sys/class/net/eth0/statistics/rx_bytes"


def make(folder: Path, megabytes: int, files: int) -> Path:
    """A folder with one large file, or with many small ones; nothing in it can be compressed."""
    folder.mkdir()
    if megabytes:
        with (folder / "large").open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(1_000_000))
    for number in range(files):
        place = folder / f"{number // 1000:03d}"
        place.mkdir(exist_ok=True)
        (place / f"{number % 1000:03d}").write_bytes(os.urandom(SMALL))
    return folder


def contestants(made: Lab, folder: Path, count: int) -> dict[str, tuple[str, ...]]:
    """The command of each contestant."""
    config, names = str(made.ssh_config), made.names[:count]

    def each(command: str) -> tuple[str, ...]:
        started = " ".join(f'{command.replace("%h", name)} & pids="$pids $!";' for name in names)
        return "sh", "-c", f'pids=; {started} for pid in $pids; do wait "$pid" || exit 1; done'

    here = shlex.quote(str(folder))
    commands = {
        "scp -r": each(f"scp -F {config} -q -r {here} %h:copied"),
        "muster data push": (str(FAB), "data.push", str(folder), "pushed"),
        "muster data push, again": (str(FAB), "data.push", str(folder), "pushed"),
    }
    on_hosts = docker("exec", made.container, "sh", "-c", "command -v rsync || true")
    if shutil.which("rsync") and on_hosts:
        commands["rsync -a"] = each(f"rsync -a -e 'ssh -F {config}' {here}/ %h:synced/")
    if shutil.which("clush"):
        words = ("clush", "-S", "-q", "-f", "64", "-o", f"-F {config}", "-w", ",".join(names))
        commands["clush --copy"] = (*words, "--copy", str(folder), "--dest", "copied-too")
    return commands


def clear(made: Lab) -> None:
    """Remove what an earlier round has pushed."""
    script = "chmod -R u+w /home/h*/.muster 2>/dev/null; rm -rf /home/h*/.muster"
    docker("exec", made.container, "sh", "-c", script, check=True)


def clear_copies(made: Lab) -> None:
    """Remove what the others have copied: the disk has room for the copies of one contestant."""
    script = "rm -rf /home/h*/copied* /home/h*/synced"
    docker("exec", made.container, "sh", "-c", script, check=True)


def received(made: Lab) -> int:
    """The bytes that came to the container; what hosts give each other stays in it."""
    return int(docker("exec", made.container, "cat", RECEIVED, check=True))


def row(who: str, costs: Sequence[tuple[Cost, int]], scp: float | None) -> str:
    """A line of the table."""
    wall = statistics.median(cost.wall for cost, _ in costs)
    client = statistics.median(cost.client for cost, _ in costs)
    sent = statistics.median(size for _, size in costs) / 1e6
    ratio = f"{wall / scp:.2f}" if scp else "-"
    return f"| {who} | {wall:.1f} | {ratio} | {client:.1f} | {sent:.1f} |"


def table(what: str, count: int, costs: Mapping[str, Sequence[tuple[Cost, int]]]) -> str:
    """The table of one folder and one number of hosts."""
    by_scp = [cost.wall for cost, _ in costs.get("scp -r", ())]
    scp = statistics.median(by_scp) if by_scp else None
    rows = [row(who, all_costs, scp) for who, all_costs in costs.items()]
    head = f"| {what}, {count} hosts | seconds | of scp's | client CPU, s | MB from the client |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows, ""])


def main() -> None:
    """Run the rounds and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[3])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--image", default="muster:cpu", help="with rsync in it, rsync takes part")
    parser.add_argument(
        "--only", nargs="+", default=[""], help="contestants whose names begin so; ratios need scp"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        lab(Path(place), max(options.hosts), options.image) as made,
    ):
        (made.folder / "fabfile.py").write_text((ROOT / "fabfile.py").read_text())
        folders = {}
        if options.megabytes:
            one = make(made.folder / "one", options.megabytes, 0)
            folders[f"{options.megabytes} MB in one file"] = one
        if options.files:
            many = make(made.folder / "many", 0, options.files)
            folders[f"{options.files} files of {SMALL} bytes"] = many
        for what, folder in folders.items():
            for count in options.hosts:
                made.only(count)
                costs: dict[str, list[tuple[Cost, int]]] = {}
                for _ in range(options.rounds):
                    clear(made)
                    for who, words in contestants(made, folder, count).items():
                        if not who.startswith(tuple(options.only)):
                            continue
                        before = received(made)
                        cost = measure(words, made)
                        costs.setdefault(who, []).append((cost, received(made) - before))
                        clear_copies(made)
                        sys.stderr.write(f"{what}, {count} hosts, {who}: {costs[who][-1]}\n")
                sys.stdout.write(table(what, count, costs) + "\n")
                sys.stdout.flush()
    sys.stdout.write(f"{os.cpu_count()} cores for all, load {os.getloadavg()[0]:.1f} at the end\n")


if __name__ == "__main__":
    main()
