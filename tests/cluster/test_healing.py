"""Hosts of a job are killed at random, the first one included; each takes part again after the next loss."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from tests.cluster.conftest import ROOT, Cluster
from tests.cluster.healing import PROGRAM, rounds
from tests.cluster.test_faults import record
from tests.launching import ONE_THREAD, Project
from tests.load import hold
from tests.waiting import PATIENCE, wait_until

ROUNDS = int(os.environ.get("MUSTER_HEALING_ROUNDS", "10"))
LOST_SECONDS = 15.0


@pytest.fixture
def four_nodes(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with a fourth node."""
    files = os.pathsep.join((cluster.env["COMPOSE_FILE"], str(ROOT / "tests/cluster/four-nodes.yaml")))
    port = str(int(cluster.env["MUSTER_PORT3"]) + 1)
    env = {**cluster.env, "COMPOSE_FILE": files, "MUSTER_PORT_OF_NODE4": port}
    nodes = replace(cluster, env=env, nodes=(*cluster.nodes, "node4"))
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.compose("rm", "--stop", "--force", "node4")
        cluster.start()


@pytest.mark.soak
@pytest.mark.timeout(300 + 200 * ROUNDS)
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_job_heals_whichever_host_is_lost(launcher: str, project: Project, four_nodes: Cluster) -> None:
    (project.path / "heals.py").write_text(PROGRAM)
    (project.path / "hosts.txt").write_text("".join(f"{node} slots=1\n" for node in four_nodes.nodes))
    restarts = ("--max-restarts", "1000", "--min-hosts", "2")
    words = ("--launcher", launcher, "--script", "heals.py", *restarts, *ONE_THREAD)
    with project.start(*words) as driver:
        try:
            done = rounds(four_nodes, driver, ROUNDS, seed=ROUNDS)
            driver.send_signal(signal.SIGINT)
            assert driver.wait(PATIENCE) == 130
        finally:
            driver.kill()
    for each in done:
        record(name="healing", launcher=launcher, **asdict(each))
        assert each.resumed >= each.saved, f"steps after a checkpoint were lost: {each}"
    wait_until(lambda: not any(map(four_nodes.processes, four_nodes.nodes)), "the end of all processes")
    hold("from a lost host to the next step", max(each.lost for each in done), LOST_SECONDS)
