"""A job of four hosts that heals: hosts are killed at random, and come back.

The program counts steps. All ranks check each step that they agree on it, and every host saves it. So a
resumed job shows from which step it goes on.
"""

from __future__ import annotations

import queue
import random
import re
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

RESTART_PATIENCE = 3 * PATIENCE
"""Four Pythons import torch at once, on this machine's cores."""
EVERY = 5
"""Steps between two checkpoints."""
PROGRAM = f"""
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
path = os.path.join(os.environ["MUSTER_OUT"], "step")
newest = torch.tensor([int(open(path).read()) if os.path.exists(path) else 0])
dist.all_reduce(newest, dist.ReduceOp.MAX)
step = int(newest)
if rank == 0:
    print("resumed at", step, "with", ranks, "ranks at", time.time(), flush=True)
def save():
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    dist.barrier()
    if rank == 0:
        print("saved", step, "at", time.time(), flush=True)
while True:
    step += 1
    agreed = torch.tensor([step, -step])
    dist.all_reduce(agreed, dist.ReduceOp.MAX)
    assert agreed[0] == -agreed[1] == step, agreed
    if step % {EVERY} == 0:
        save()
    time.sleep(0.05)
"""
RESUMED = re.compile(r"resumed at (\d+) with (\d+) ranks at ([\d.]+)")
SAVED = re.compile(r"saved (\d+) at ([\d.]+)")


@dataclass(frozen=True)
class Round:
    """A lost host, and the seconds from its loss to the first step without it."""

    host: str
    lost: float
    resumed: int
    saved: int
    """The newest checkpoint that was complete when the host was lost."""


class Watched:
    """The output of a job, read as it comes."""

    def __init__(self, driver: subprocess.Popen[str]) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._driver, self.saved, self.said = driver, 0, list[str]()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until_resumed(self, ranks: int) -> tuple[int, float]:
        """The step at which an attempt with so many ranks goes on, and when."""
        deadline = time.monotonic() + RESTART_PATIENCE
        while True:
            line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            self.said.append(line)
            assert line, "the job has ended:\n" + "".join(self.said[-40:])
            if found := SAVED.search(line):
                self.saved = int(found.group(1))
            if (found := RESUMED.search(line)) and int(found.group(2)) == ranks:
                return int(found.group(1)), float(found.group(3))

    def until_saved(self, back: str = "") -> None:
        """Read on to the next checkpoint, to the line that this host is back, and all that was printed."""
        before, is_back = self.saved, not back
        while self.saved == before or not is_back or not self._lines.empty():
            line = self._lines.get(timeout=RESTART_PATIENCE)
            self.said.append(line)
            is_back = is_back or f"{back} answers again" in line
            if found := SAVED.search(line):
                self.saved = int(found.group(1))


def rounds(cluster: Cluster, driver: subprocess.Popen[str], number: int, seed: int) -> list[Round]:
    """Kill a host with a rank, chosen at random, so often. Each attempt has the host that was lost before."""
    job, chosen, done = Watched(driver), random.Random(seed), list[Round]()  # noqa: S311  # no secret
    job.until_resumed(len(cluster.nodes))
    job.until_saved()
    away = ""
    for _ in range(number):
        host = chosen.choice([node for node in cluster.nodes if node != away])
        struck, saved = time.time(), job.saved
        subprocess.run(["docker", "kill", cluster.container(host)], check=True, stdout=subprocess.DEVNULL)
        step, at = job.until_resumed(len(cluster.nodes) - 1)
        subprocess.run(["docker", "start", cluster.container(host)], check=True, stdout=subprocess.DEVNULL)
        job.until_saved(back=host)
        done.append(Round(host, at - struck, step, saved))
        away = host
    return done
