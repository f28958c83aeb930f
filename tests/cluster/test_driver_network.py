"""The driver's own network fails: no host is blamed, and a restart keeps all hosts."""

from __future__ import annotations

import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.cluster.faults import NOBODY, PROGRAM, STRIKE
from tests.cluster.striking import clean_at
from tests.launching import MUSTER, Project
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

SILENT = "all 3 hosts have been silent for 10 s: this machine has lost its network"

COUNTS = """
import time
for step in range(60):
    print("step", step, flush=True)
    time.sleep(0.5)
"""


def for_each_node(cluster: Cluster, command: str) -> None:
    """Change how each node reaches its gateway, behind which the driver is; the nodes reach each other."""
    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(cluster.beside, node, command) for node in cluster.nodes]:
            future.result()


def cut_off(cluster: Cluster) -> None:
    gateway = "$(ip route show default | cut -d ' ' -f 3)"
    for_each_node(cluster, f"ip neigh replace {gateway} lladdr {NOBODY} nud permanent dev $card")


def connect(cluster: Cluster) -> None:
    gateway = "$(ip route show default | cut -d ' ' -f 3)"
    for_each_node(cluster, f"ip neigh delete {gateway} dev $card || true")


@pytest.mark.soak
def test_a_driver_without_network_blames_no_host(project: Project, cluster: Cluster) -> None:
    (project.path / "faulty.py").write_text(PROGRAM)
    for node in cluster.nodes:
        cluster.exec(node, ["rm", "-f", STRIKE])
    words = ("--script", "faulty.py", "--args=wait", "--max-restarts", "1")
    with project.start(*words) as driver:
        try:
            read_until(driver, "ready", 6)
            cut_off(cluster)
            said = read_until(driver, SILENT, 1)
            assert "restart 1 of 1 on node1, node2, node3" in said[-1], said
            connect(cluster)
            read_until(driver, "ready", 6)
            driver.send_signal(signal.SIGINT)
            assert driver.wait(PATIENCE) == 130
        finally:
            driver.kill()
            connect(cluster)
    clean_at(cluster, cluster.nodes, 20.0)


@pytest.mark.soak
def test_commands_blame_no_host_for_this_network(project: Project, cluster: Cluster) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(project.muster, "run", "--", "sh", "-c", "sleep 60")
        try:
            for node in cluster.nodes:
                cluster_has(cluster, node, "sleep 60")
            cut_off(cluster)
            done = running.result(PATIENCE)
        finally:
            connect(cluster)
    assert done.returncode == 3, done.stderr
    assert SILENT in done.stdout + done.stderr
    assert "frozen" not in done.stdout + done.stderr
    clean_at(cluster, cluster.nodes, 90.0)


def cluster_has(cluster: Cluster, node: str, command: str) -> None:
    wait_until(
        lambda: any(command in process.args for process in cluster.processes(node)), f"{command} on {node}"
    )


@pytest.mark.soak
def test_who_is_attached_is_connected_again_and_misses_nothing(project: Project, cluster: Cluster) -> None:
    (project.path / "counts.py").write_text(COUNTS)
    job = project.detach("--np", "1", "--script", "counts.py")
    with subprocess.Popen(
        [str(MUSTER), "logs", "--follow", job],
        cwd=project.path,
        env=project.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as watching:
        try:
            read_until(watching, "step 5", 1)
            cut_off(cluster)
            read_until(watching, "connecting again for up to 60 s", 1)
            connect(cluster)
            lines = read_until(watching, "step 59", 1)
            assert watching.wait(PATIENCE) == 0
        finally:
            watching.kill()
            connect(cluster)
    steps = [int(step) for step in re.findall(r"step (\d+)", "".join(lines))]
    assert steps == [*range(steps[0], 60)]
    assert any("node1: connected again" in line for line in lines), lines
