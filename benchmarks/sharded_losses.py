"""Whether training resumes with equal bits after a host was deleted in the middle of a sharded save.

    python benchmarks/sharded_losses.py --rounds 50

Three containers, each with a disk of its own, train an FSDP2 model over Gloo and save after every step. In
each round one of them is deleted with its disk between two operations on files of a save, a new container
takes its place, and the three train on from what is left. The state that they resume from, and the one at the
end, must be those of a training that nothing interrupts, to the last bit.

The containers run this Python, with its packages, from the disk here: on CPUs, FSDP2 needs a newer torch
than the node image's.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGE = "muster:cpu"
HOSTS, STEPS = 3, 4
OPERATIONS = 8  # on files, of a host in a save: three syncs and a rename for each of two ranks
LIMIT = 120.0  # seconds for any answer of a host
PORT = 29600
Said = dict[str, Any]


def docker(*arguments: str) -> None:
    """Run docker; raises CalledProcessError."""
    subprocess.run(["docker", *arguments], check=True, capture_output=True)


class Host:
    """A container that runs sharded_host.py."""

    def __init__(self, network: str, number: int) -> None:
        self.number, self.container = number, f"{network}-{number}-{os.urandom(3).hex()}"
        name = f"host{number}"
        command = ["docker", "run", "--interactive", "--rm", f"--name={self.container}", f"--hostname={name}"]
        command += [f"--network={network}", f"--network-alias={name}", "--user=0", "--env=OMP_NUM_THREADS=1"]
        command += [f"--volume={path}:{path}:ro" for path in {str(ROOT), sys.prefix, sys.base_prefix}]
        command += [f"--entrypoint={sys.executable}", IMAGE, str(Path(__file__).with_name("sharded_host.py"))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.said: queue.Queue[Said] = queue.Queue()
        self.errors: list[str] = []
        for reader, lines in ((self._hear, self.process.stdout), (self.errors.extend, self.process.stderr)):
            threading.Thread(target=reader, args=(lines,), daemon=True).start()

    def _hear(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.said.put(json.loads(line))

    def order(self, **what: object) -> None:
        """Have the host start a rank."""
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def until(self, key: str) -> list[Said]:
        """Return what the host says up to the first line with `key`; raises TimeoutError if none comes."""
        heard: list[Said] = [{}]
        try:
            while key not in heard[-1] and "ended" not in heard[-1]:
                heard.append(self.said.get(timeout=LIMIT))
        except queue.Empty:
            pass
        if key not in heard[-1]:
            last = "".join(self.errors[-20:])
            raise TimeoutError(f"host{self.number} does not say {key!r}, but {heard[1:]}\n{last}")
        return heard

    def delete(self) -> None:
        """Delete the container with its disk, whatever runs in it."""
        docker("rm", "--force", self.container)
        self.process.wait()


@dataclass
class Hosts:
    """The containers of a run, and the digest of the state after each step if nothing interrupts."""

    network: str
    hosts: list[Host]
    runs: int = 0
    expected: dict[int, str] = field(default_factory=dict)

    def train(self, out: str, victim: int = -1, operation: int = 0) -> None:
        """Start a training on all hosts; `victim` stops before that operation on files."""
        self.runs += 1
        for host in self.hosts:
            environment = {"RANK": str(host.number), "WORLD_SIZE": str(HOSTS), "LOCAL_RANK": "0"}
            environment |= {
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "host0",
                "MASTER_PORT": str(PORT + self.runs),
            }
            stop = operation if host.number == victim else None
            host.order(out=out, stop_before=stop, steps=STEPS, environment=environment)

    def replace(self, victim: int) -> None:
        """Delete a host, and start a new one of its name with an empty disk."""
        self.hosts[victim].delete()
        self.hosts[victim] = Host(self.network, victim)


@contextmanager
def hosts() -> Iterator[Hosts]:
    """Start the containers on a network of their own; the first training shows what to expect."""
    network = f"muster-losses-{os.getpid()}"
    docker("network", "create", network)
    made = Hosts(network, [])
    try:
        made.hosts += [Host(network, number) for number in range(HOSTS)]
        for host in made.hosts:
            host.until("ready")
        made.train("/run/expected")
        for host in made.hosts:
            heard = host.until("ended")
            made.expected.update({each["step"]: each["digest"] for each in heard if "step" in each})
        yield made
    finally:
        for host in made.hosts:
            host.delete()
        docker("network", "rm", network)


@dataclass(frozen=True)
class Outcome:
    """What one round came to."""

    victim: int
    operation: int
    complete: int
    """The last step of whose save a host said that it is complete."""
    found: int
    wrong: str
    """What was not as it must be, or nothing."""
    seconds: float
    """From the order to resume until every rank has the state."""


def lose(among: Hosts, victim: int, operation: int) -> Outcome:
    """Delete `victim` before that operation on files, replace it, and resume."""
    out = f"/run/{among.runs}"
    among.train(out, victim, operation)
    complete = _last(among.hosts[victim].until("stopped"), "complete")
    among.replace(victim)
    for host in among.hosts:
        if host.number != victim:
            complete = max(complete, _last(host.until("ended"), "complete"))
    among.hosts[victim].until("ready")
    among.train(out)
    started = time.monotonic()
    found = [host.until("found")[-1] for host in among.hosts]
    seconds = time.monotonic() - started
    heard = [host.until("ended") for host in among.hosts]
    return Outcome(
        victim, operation, complete, found[0]["found"], _wrong(among, found, heard, complete), seconds
    )


def _wrong(among: Hosts, found: list[Said], heard: list[list[Said]], complete: int) -> str:
    step = found[0]["found"]
    states = {each["digest"] for each in found} | {among.expected.get(step, "none")}
    last = {each["digest"] for lines in heard for each in lines if each.get("step") == STEPS}
    if step < max(complete, 1):
        return f"resumed from step {step}, though step {complete} was complete"
    if len(states) != 1:
        return f"the state of step {step} has other bits"
    if step < STEPS and last != {among.expected[STEPS]}:
        return "the state at the end has other bits"
    ends = [lines[-1]["ended"] for lines in heard]
    return "" if ends == [0] * HOSTS else f"the ranks ended with {ends}"


def _last(heard: list[Said], key: str) -> int:
    return max((each[key] for each in heard if key in each), default=0)


def moments(rounds: int) -> list[tuple[int, int]]:
    """Return a host and a number of operations for each round: evenly over the saves of steps 2 to STEPS."""
    chance = random.Random(rounds)  # noqa: S311 - the same moments in every run
    first, latest = OPERATIONS, STEPS * OPERATIONS
    places = [first + place * (latest - first) // rounds for place in range(rounds)]
    return [(chance.randrange(HOSTS), place) for place in places]


def table(outcomes: list[Outcome], seconds: float) -> list[str]:
    """Summarise a run."""
    right = [each for each in outcomes if not each.wrong]
    ahead = Counter(each.found - each.complete for each in right)
    resumed = [each.seconds for each in outcomes]
    cells = [len(outcomes), len(right), ahead[0], sum(ahead.values()) - ahead[0]]
    times = f"{median(resumed):.1f} ({min(resumed):.1f}-{max(resumed):.1f})"
    return [
        f"{HOSTS} containers, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {seconds:.0f} s in all",
        "",
        "| hosts deleted | resumed with equal bits | from the last complete step "
        "| from the one that was being saved | seconds to resume |",
        "|---|---|---|---|---|",
        f"| {' | '.join(map(str, cells))} | {times} |",
    ]


def main() -> None:
    """Run the rounds; the exit status is 1 if one was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    started, outcomes = time.monotonic(), []
    with hosts() as among:
        for victim, operation in moments(options.rounds):
            outcomes.append(lose(among, victim, operation))
            sys.stderr.write(f"{outcomes[-1]}\n")
    sys.stdout.write("\n".join(table(outcomes, time.monotonic() - started)) + "\n")
    raise SystemExit(any(each.wrong for each in outcomes))


if __name__ == "__main__":
    main()
