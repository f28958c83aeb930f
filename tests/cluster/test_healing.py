"""Hosts of a job are killed at random, the first one included; the job trains on, and takes them back."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from tests.cluster.conftest import ROOT, Cluster
from tests.cluster.healing import PROGRAM, Detached, rounds
from tests.cluster.test_faults import record
from tests.launching import ONE_THREAD, Project
from tests.load import hold
from tests.waiting import PATIENCE, wait_until

ROUNDS = int(os.environ.get("MUSTER_HEALING_ROUNDS", "10"))
LOST_SECONDS, BACK_SECONDS, STANDBY_SECONDS = 15.0, 30.0, 30.0


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
    restarts = ("--max-restarts", "1000", "--min-hosts", "2", "--grow")
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
    hold("from a host's start to a step with it", max(each.back for each in done), BACK_SECONDS)


def lose_a_host(job: Detached, host: str) -> tuple[float, float]:
    """Kill a host, start it again; the seconds to the first checkpoints without it, and with it."""
    before, struck = job.attempts()[-1], time.time()
    subprocess.run(["docker", "kill", job.cluster.container(host)], check=True, stdout=subprocess.DEVNULL)
    job.down.add(host)
    without = job.until_resumed(struck, len(job.cluster.nodes) - 1)
    assert without.resumed >= before.saved, f"steps after a checkpoint were lost with {host}"
    started = time.time()
    subprocess.run(["docker", "start", job.cluster.container(host)], check=True, stdout=subprocess.DEVNULL)
    job.down.clear()
    again = job.until_resumed(without.began, len(job.cluster.nodes))
    return without.began - struck, again.began - started


@pytest.fixture
def detached(project: Project, four_nodes: Cluster) -> Iterator[Detached]:
    (project.path / "heals.py").write_text(PROGRAM)
    (project.path / "hosts.txt").write_text("".join(f"{node} slots=1\n" for node in four_nodes.nodes))
    restarts = ("--standby", "--max-restarts", "1000", "--min-hosts", "2", "--grow")
    name = project.detach("--script", "heals.py", *restarts, *ONE_THREAD)
    job = Detached(four_nodes, name)
    job.until_resumed(0.0, len(four_nodes.nodes))
    yield job
    stopped = project.fab("stop", name)
    assert "stopped by muster stop" in stopped.stdout, stopped
    attempts = job.attempts()
    for one, next_one in itertools.pairwise(attempts):
        assert one.last < next_one.began, f"two drivers at once: {one}, {next_one}"
    wait_until(lambda: not any(map(four_nodes.processes, four_nodes.nodes)), "the end of all processes")


@pytest.mark.soak
@pytest.mark.timeout(600 + 200 * ROUNDS)
def test_a_detached_job_survives_its_first_host(detached: Detached) -> None:
    chosen = random.Random(ROUNDS)  # noqa: S311  # no secret
    for number in range(ROUNDS):
        driver, _ = detached.driver()
        host = driver if number == 0 else chosen.choice(detached.cluster.nodes)
        wait_until(lambda: "standby driver waits" in log_of(detached), "a standby driver", pause=0.5)
        lost, back = lose_a_host(detached, host)
        record(name="standby", launcher="mpirun", host=host, driver=driver, lost=lost, back=back)
        hold("from a lost host to the next step", lost, STANDBY_SECONDS)


def log_of(job: Detached) -> str:
    return job.on(job.driver()[0], "tail -n 5 run/logs/driver.log; cat run/logs/driver.log")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_driver_that_stood_still_loses_its_job_to_the_standby_driver(detached: Detached) -> None:
    wait_until(lambda: "standby driver waits" in log_of(detached), "a standby driver", pause=0.5)
    host, pid = detached.driver()
    struck = time.time()
    detached.cluster.exec(host, ("kill", "-STOP", str(pid)))
    detached.until_resumed(struck, len(detached.cluster.nodes))
    assert detached.driver()[0] != host
    detached.cluster.exec(host, ("kill", "-CONT", str(pid)))
    wait_until(lambda: not detached.on(host, f"ps -o pid= -p {pid}"), "the end of the first driver")
    assert "another driver has the job" in detached.on(host, "cat run/logs/driver.log")
    detached.until_resumed(struck, len(detached.cluster.nodes))
