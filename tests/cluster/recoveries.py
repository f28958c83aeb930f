"""The table of faults after which a job trains on; the tests and docs/faults.md are made from it.

Six ranks on three hosts repeat a small all_reduce. The clock runs from the fault to the first all_reduce of
the next attempt: the nodes are containers, with this machine's clock.
"""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.faults import now_and
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

READY = "ready for a fault"
# The tensor outlives the group. Before torch 2.8 the destructor of the group keeps the interpreter locked and
# waits for the threads of Gloo, and a thread that drops the last reference to a tensor needs that lock
# (pytorch#154976).
PROGRAM = f"""
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
attempt = os.environ.get("MUSTER_RESTART", os.environ.get("TORCHELASTIC_RESTART_COUNT"))
first, ranks, tensor = dist.get_rank() == 0, dist.get_world_size(), torch.ones(8)
for step in range(10**6):
    dist.all_reduce(tensor)
    if first and step == 0:
        print("attempt", attempt, "of", ranks, "ranks made a step at", time.time(), flush=True)
    if first and step == 20 and attempt == "0":
        print("{READY}", os.getpid(), flush=True)
    if attempt != "0" and step == 40:
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""
STEP = re.compile(r"attempt (\d+) of (\d+) ranks made a step at ([\d.]+)")
AGENT = "$(pgrep -f '^python3 -c .muster agent')"


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One row of the table. `struck`: the host that is lost, if one is."""

    title: str
    strike: Callable[[Cluster], float]
    """Returns the time of the fault."""
    ranks: int
    """The number of ranks of the next attempt."""
    struck: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recovered:
    """How a job went on. Seconds from the fault to the first step of the next attempt; None: it made none."""

    seconds: float | None
    ranks: int
    status: int
    output: str


def on_node3(command: str, cluster: Cluster) -> float:
    return now_and(cluster, "node3", command)


def at_once(action: str, node: str, cluster: Cluster) -> float:
    """Strike a container without Compose, which takes 0.2 s to answer."""
    container = cluster.container(node)
    began = time.time()
    subprocess.run(["docker", action, container], check=True, stdout=subprocess.DEVNULL)
    return began


RECOVERIES: Mapping[str, Recovery] = {
    "rank": Recovery(
        title="a rank is killed (SIGKILL)",
        strike=partial(on_node3, "kill -9 $(pgrep -nf '[r]ecovers.py')"),
        ranks=6,
    ),
    "preloaded": Recovery(
        title="a rank is killed (SIGKILL), with `--preload`",
        # The newest process has the imports for the next attempt.
        strike=partial(on_node3, "kill -9 $(pgrep -f '[r]ecovers.py' | sort -n | tail -2 | head -1)"),
        ranks=6,
        words=("--preload",),
    ),
    "host": Recovery(
        title="a host is gone", strike=partial(at_once, "kill", "node3"), ranks=4, struck="node3"
    ),
    "host-preloaded": Recovery(
        title="a host is gone, with `--preload`",
        strike=partial(at_once, "kill", "node3"),
        ranks=4,
        struck="node3",
        words=("--preload",),
    ),
    "head": Recovery(
        title="the first host is gone", strike=partial(at_once, "kill", "node1"), ranks=4, struck="node1"
    ),
    "spare": Recovery(
        title="the first host is gone, with a spare host (`--np 4`)",
        strike=partial(at_once, "kill", "node1"),
        ranks=4,
        struck="node1",
        words=("--np", "4"),
    ),
    "ready": Recovery(
        title="a host is gone, with a spare host that is ready (`--np 4 --spares 1`)",
        strike=partial(at_once, "kill", "node2"),
        ranks=4,
        struck="node2",
        words=("--np", "4", "--spares", "1"),
    ),
    "agent": Recovery(
        title="the agent of a host is killed", strike=partial(on_node3, f"kill -9 {AGENT}"), ranks=4
    ),
    "frozen": Recovery(
        title="a host freezes", strike=partial(at_once, "pause", "node3"), ranks=4, struck="node3"
    ),
    "frozen-preloaded": Recovery(
        title="a host freezes, with `--preload`",
        strike=partial(at_once, "pause", "node3"),
        ranks=4,
        struck="node3",
        words=("--preload",),
    ),
}


def recovered(output: str, struck_at: float, status: int) -> Recovered:
    """What the output of a job says about its second attempt."""
    found = [(int(attempt), int(ranks), float(at)) for attempt, ranks, at in STEP.findall(output)]
    again = next(((ranks, at - struck_at) for attempt, ranks, at in found if attempt), None)
    return Recovered(again[1] if again else None, again[0] if again else 0, status, output)


def torchruns_own(folder: Path) -> Recovered:
    """The same with torchrun alone: six ranks on this machine, `--max-restarts 1`, one of them killed."""
    program = folder / "recovers.py"
    program.write_text(PROGRAM)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "6", "--max-restarts", "1"]
    said: list[str] = []
    struck_at = 0.0
    with subprocess.Popen(
        [sys.executable, *words, str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as torchrun:
        assert torchrun.stdout is not None
        for line in torchrun.stdout:
            said.append(line)
            if READY in line and not struck_at:
                struck_at = time.time()
                _kill_another(torchrun.pid, int(line.split()[-1]))
        status = torchrun.wait(PATIENCE)
    return recovered("".join(said), struck_at, status)


def _kill_another(torchrun: int, first: int) -> None:
    """Kill a rank that is not rank 0."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    other = next(int(child) for child in children if int(child) != first)
    subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(other)], check=True)


def medians(measured: Sequence[Mapping[str, Any]], name: str, launcher: str) -> str:
    """The median seconds; how many jobs made no step again; nothing if it was not measured."""
    entries = [entry for entry in measured if (entry["name"], entry["launcher"]) == (name, launcher)]
    times = [entry["recovered"] for entry in entries if entry["recovered"] is not None]
    never = len(entries) - len(times)
    failed = [f"never, {never} of {len(entries)}"] if never else []
    return ", ".join([*([f"{statistics.median(times):.1f}"] if times else []), *failed])
