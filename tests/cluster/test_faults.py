"""What breaks while a job runs: each fault is noticed, named, and leaves nothing, in bounded time.

The ranks only sleep, so no collective tells them of each other: what is noticed, the keepers noticed.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.cluster.test_cluster_launch import job_processes
from tests.launching import Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


@dataclass(frozen=True)
class Fault:
    """What is done to a running job, and what must come of it."""

    launcher: str
    strike: Callable[[Cluster], None]
    status: int
    verdict: str
    seconds: float
    mend: Callable[[Cluster], None] = lambda cluster: None


def kill_by_name(node: str, name: str, number: int = signal.SIGKILL) -> Callable[[Cluster], None]:
    def strike(cluster: Cluster) -> None:
        (*_, pid) = (one.pid for one in cluster.processes(node) if one.args.startswith(name))
        cluster.exec(node, ["kill", f"-{number}", str(pid)])

    return strike


def network(action: str) -> Callable[[Cluster], None]:
    def strike(cluster: Cluster) -> None:
        words = ["docker", "network", action, "muster-test_cluster", cluster.container("node3")]
        subprocess.run(
            [*words[:3], *(["--alias", "node3"] if action == "connect" else []), *words[3:]], check=True
        )

    return strike


FAULTS = {
    "prted": Fault(
        "mpirun", kill_by_name("node2", "/usr/bin/prted"), 255, "node2: mpirun's daemon ended with", 5
    ),
    "mpirun": Fault("mpirun", kill_by_name("node1", "prterun"), 137, "node1: mpirun ended with SIGKILL", 5),
    "torchrun": Fault(
        "torchrun",
        kill_by_name("node2", "/usr/bin/python3 -m torch.distributed.run"),
        137,
        "node2: torchrun ended with SIGKILL",
        5,
    ),
    "wrapper": Fault(
        "mpirun", kill_by_name("node3", "/usr/bin/python3 -IS"), 137, "on node3: SIGKILL (9)", 5
    ),
    "keeper": Fault(
        "mpirun",
        kill_by_name("node3", "python3 -c # muster keeper"),
        3,
        "node3: the line to its keeper is gone",
        5,
    ),
    "shutdown": Fault(
        "mpirun",
        lambda cluster: cluster.stop("node3"),
        3,
        "node3: the line to its keeper is gone",
        8,
        lambda cluster: cluster.start("node3"),
    ),
    "frozen": Fault(
        "mpirun",
        lambda cluster: cluster.pause("node3"),
        3,
        "node3: silent for 10 s: frozen, or cut off from the network",
        15,
        lambda cluster: cluster.start("node3"),
    ),
    "frozen-torchrun": Fault(
        "torchrun",
        lambda cluster: cluster.pause("node3"),
        3,
        "node3: silent for 10 s: frozen, or cut off from the network",
        15,
        lambda cluster: cluster.start("node3"),
    ),
    "cut-off": Fault(
        "mpirun",
        network("disconnect"),
        3,
        "node3: the line to its keeper is gone",
        15,
        network("connect"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_in_time_and_leaves_nothing(name: str, project: Project, cluster: Cluster) -> None:
    fault = FAULTS[name]
    words = ("--launcher", fault.launcher, "--script", "program.py", "--args=wait")
    with project.start(*words) as process:
        assert process.stdout is not None
        waiting = 0
        while waiting < 6:
            waiting += "waiting" in process.stdout.readline()
        fault.strike(cluster)
        began = time.monotonic()
        try:
            output = process.communicate(timeout=fault.seconds)[0]
            noticed = time.monotonic() - began
            if name == "cut-off":  # a host that nobody reaches cleans itself
                wait_until_clean(cluster, began, 16.0)
        finally:
            fault.mend(cluster)
    assert fault.verdict in output
    assert process.returncode == fault.status, output
    wait_until_clean(cluster, time.monotonic(), 5.0)
    print(f"{name}: verdict after {noticed:.1f} s")  # noqa: T201  # read with pytest -rP


def wait_until_clean(cluster: Cluster, began: float, seconds: float) -> None:
    while left := job_processes(cluster):
        assert time.monotonic() - began < seconds, f"still there after {seconds} s: {left}"
        time.sleep(0.1)
