"""The cost of a change of one file in the next launch: bytes from this machine, and time to the first line.

    .venv/bin/python benchmarks/edits.py                       # this machine
    .venv/bin/python benchmarks/edits.py --hosts hosts.txt     # after make cluster

Each round launches the same tree three times, in turn: unchanged, after a change of one file, after a new
file. The tree is a git repository of `--files` files of 4 KiB. Times are from the command to the first line
of the last rank; bytes are those of the frames to all hosts, without the source of the agent, which every
launch sends. The first launch, which sends the whole tree, is shown apart.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from muster.deploy.core.hosts import hostfile  # noqa: E402  # the checkout's own, installed or not

FILE_BYTES = 4096
PROGRAM = "print('started', flush=True)\n"
# The launch itself, in a process of its own, which also counts what it writes to agents.
COUNTED = """
import sys
from muster.deploy.core.connect import channel
from muster.deploy.cli.dispatch import main
sent, write = [0], channel.write_frame
class Counting:
    def __init__(self, stream): self.stream = stream
    def write(self, content): sent[0] += len(content); return self.stream.write(content)
    def flush(self): self.stream.flush()
channel.write_frame = lambda stream, *words: write(Counting(stream), *words)
sys.argv[0] = "muster"
try:
    main()
finally:
    open(NAME, "w").write(str(sent[0]))
"""


@dataclass(frozen=True)
class Cost:
    """Of one launch: seconds to the first line of its last rank, and bytes to all hosts."""

    seconds: float
    sent: int


def launch(hosts: Path, tree: Path, launcher: str) -> Cost:
    """Launch the tree's program on all hosts."""
    with tempfile.NamedTemporaryFile() as count:
        words = ("launch", "--hosts", str(hosts), "--launcher", launcher, "program.py")
        source = COUNTED.replace("NAME", repr(count.name))
        began, last = time.perf_counter(), 0.0
        command = [sys.executable, "-c", source, *words]
        with subprocess.Popen(command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            for line in process.stdout or ():
                if b"started" in line:
                    last = time.perf_counter() - began
        if process.returncode:
            sys.exit(f"the launch ended with {process.returncode}; see {tree / 'runs'}")
        return Cost(last, int(Path(count.name).read_text()))


def make_tree(tree: Path, files: int) -> None:
    """A git repository with a program and files of text that does not compress to nothing."""
    words = random.Random(1)  # noqa: S311  # the same tree each time
    (tree / "package").mkdir()
    for number in range(files):
        (tree / "package" / f"module{number}.py").write_text(
            f"X = '{words.randbytes(FILE_BYTES // 2).hex()}'\n"
        )
    (tree / "program.py").write_text(PROGRAM)
    (tree / ".gitignore").write_text("runs/\n")
    subprocess.run(["git", "-C", str(tree), "init", "-q"], check=True)
    subprocess.run(["git", "-C", str(tree), "add", "."], check=True)


def edit(tree: Path) -> None:
    """Change one file."""
    (tree / "package" / "module0.py").write_text(f"X = '{os.urandom(FILE_BYTES // 2).hex()}'\n")


def create(tree: Path) -> None:
    """Write a new file, which git does not track."""
    (tree / "package" / f"new{time.time_ns()}.py").write_text(f"X = '{os.urandom(FILE_BYTES // 2).hex()}'\n")


CHANGES: Mapping[str, Callable[[Path], None]] = {
    "unchanged": lambda tree: None,
    "one file changed": edit,
    "one file new": create,
}


def report(first: Cost, costs: Mapping[str, Sequence[Cost]], files: int, hosts: int) -> str:
    """A table of medians with their range."""
    lines = [
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; "
        f"{hosts} hosts, {files} files of {FILE_BYTES} bytes, {len(costs['unchanged'])} rounds in turns",
        "",
        "| tree | bytes sent | last rank's first line, s |",
        "|---|---|---|",
        f"| first launch | {first.sent} | {first.seconds:.2f} |",
    ]
    for name, row in costs.items():
        seconds = [cost.seconds for cost in row]
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"
        lines.append(f"| {name} | {round(statistics.median(cost.sent for cost in row))} | {spread} |")
    return "\n".join(lines)


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", type=Path, help="a hosts file (default: this machine, two ranks)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--launcher", choices=("mpirun", "torchrun"), default="mpirun")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree, here = Path(folder) / "tree", Path(folder) / "hosts.txt"
        tree.mkdir()
        here.write_text("localhost slots=2\n")
        hosts = options.hosts.resolve() if options.hosts else here
        make_tree(tree, options.files)
        first = launch(hosts, tree, options.launcher)
        costs: dict[str, list[Cost]] = {name: [] for name in CHANGES}
        for _ in range(options.rounds):
            for name, change in CHANGES.items():
                change(tree)
                costs[name].append(launch(hosts, tree, options.launcher))
        sys.stdout.write(report(first, costs, options.files, len(hostfile.load(hosts))) + "\n")


if __name__ == "__main__":
    main()
