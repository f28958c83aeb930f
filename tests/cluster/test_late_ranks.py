"""Ranks that their hosts make late: a CPU quota, a busy neighbour. `muster why` says so."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.launching import Project
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

pytestmark = pytest.mark.soak

# Beside other work the looks themselves take long, and a rank is late by less.
LATE_SECONDS = 300.0
# Each rank computes for 20 ms of processor time, sleeps, and sends as many bytes as its argument says.
PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
gradients = torch.ones(int(sys.argv[1]) // 4)
step = 0
while True:
    step += 1
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        sum(range(1000))
    time.sleep(0.05)
    dist.all_reduce(gradients)
    if os.environ["RANK"] == "0" and step % 50 == 0:
        print("fifty steps", flush=True)
"""


@contextmanager
def training(project: Project, size: int) -> Iterator[str]:
    """A job with a rank on each node; gives its id once it has made fifty steps."""
    (project.path / "train.py").write_text(PROGRAM)
    (project.path / "hosts.txt").write_text("".join(f"node{number} slots=1\n" for number in (1, 2, 3)))
    words = ("--launcher", "mpirun", "--script", "train.py", f"--args={size}")
    with project.start(*words) as driver:
        try:
            lines = read_until(driver, "fifty steps", 1)
            found = re.search(r"job (\S+):", "".join(lines))
            assert found
            yield found[1]
        finally:
            driver.send_signal(signal.SIGINT)
            driver.communicate(timeout=PATIENCE)


def late(project: Project, job: str) -> list[dict[str, Any]]:
    """The ranks that `muster why` calls late."""
    done = project.muster("why", job, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["late"]
    return found


def update(cluster: Cluster, node: str, *words: str) -> None:
    subprocess.run(("docker", "update", *words, cluster.container(node)), check=True, capture_output=True)


def test_a_rank_whose_cpu_quota_is_used_up_is_named_with_it(project: Project, cluster: Cluster) -> None:
    with training(project, 4000) as job:
        update(cluster, "node2", "--cpus", "0.15")
        try:
            seen = wait_until(
                lambda: [one for one in late(project, job) if "quota" in one["cause"]],
                "a quota",
                patience=LATE_SECONDS,
            )
        finally:
            update(cluster, "node2", "--cpus", "2")
    assert {one["host"] for one in seen} == {"node2"}


def test_a_rank_on_a_host_with_a_busy_neighbour_is_named_with_it(project: Project, cluster: Cluster) -> None:
    with training(project, 4000) as job:
        update(cluster, "node3", "--cpuset-cpus", "1")
        for name in ("node1", "node2"):
            update(cluster, name, "--cpuset-cpus", "0")
        loop = "for i in 1 2 3 4; do timeout 300 sh -c 'while :; do :; done' & done; wait"
        command = ("docker", "exec", cluster.container("node3"), "sh", "-c", loop)
        with subprocess.Popen(command) as neighbour:
            try:
                seen = wait_until(
                    lambda: [one for one in late(project, job) if "waits for a processor" in one["cause"]],
                    "a neighbour",
                    patience=LATE_SECONDS,
                )
            finally:
                cluster.exec("node3", ("sh", "-c", "kill $(pgrep -x timeout)"))
                neighbour.wait(timeout=PATIENCE)
                for name in ("node1", "node2", "node3"):
                    update(cluster, name, "--cpuset-cpus", "0-1")
    assert {one["host"] for one in seen} == {"node3"}
