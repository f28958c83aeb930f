"""Leases on the practice cluster: two users, eight fake GPUs on each node, kills of everything."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.deploy.core.connect.fanout import ask_every
from muster.deploy.core.plan.spec import LaunchSpec
from muster.deploy.core.wire.users import own_name
from muster.deploy.features.leases import driver as leasing
from muster.deploy.features.leases.messages import LEASES
from muster.deploy.features.leases.plan import LeaseOptions
from tests.cluster import lease_races as races
from tests.launching import Project
from tests.waiting import read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

HOLDS = """
import fcntl, os, sys, time
seen = os.environ["CUDA_VISIBLE_DEVICES"]
rank = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0))
own = seen.split(",")[rank]
lock = open(f"/tmp/own-{own}", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError if the rank of another job has it
print("holds", own, "of", seen, "process", os.getpid(), flush=True)
time.sleep(float(sys.argv[1]))
"""

# The barrier lets every rank print before the first one fails: the launcher kills the rest.
FAILS_ONCE = """
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
sys.exit(os.environ["MUSTER_RESTART"] == "0")
"""


@pytest.fixture
def gpus(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    races.give_gpus(cluster)
    monkeypatch.setattr(leasing, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(leasing, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(leasing, "SLOWEST_POLL", 0.2)
    yield cluster
    races.take_gpus(cluster)


@pytest.fixture
def holding(project: Project, gpus: Cluster) -> Project:
    (project.path / "holds.py").write_text(HOLDS)
    return project


def require_fair(race: races.Race) -> None:
    assert race.ledger.overlaps == []
    assert race.errors == []
    assert race.passed == 0


def test_racing_jobs_of_two_users_never_share_a_gpu_and_a_starved_one_gets_its_turn(gpus: Cluster) -> None:
    race = races.race(gpus, 4, 12)
    require_fair(race)
    assert race.ledger.counts["granted"] >= 20
    assert races.leftovers(gpus) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_jobs_race(gpus: Cluster) -> None:
    race = races.race(gpus, 10, int(os.environ.get("MUSTER_LEASE_RACE", "1000")) // 10)
    if record := os.environ.get("MUSTER_LEASE_RECORD"):
        figures = {**race.ledger.counts, "seconds": race.seconds, "turn": race.turn, "passed": race.passed}
        figures |= {"overlaps": len(race.ledger.overlaps), "left": len(races.leftovers(gpus))}
        Path(record).write_text(json.dumps(figures) + "\n")
    require_fair(race)
    assert race.ledger.counts["agents killed"] > 0
    assert races.leftovers(gpus) == []


def test_a_host_that_is_killed_keeps_no_lease(gpus: Cluster) -> None:
    hosts = "node1", "node2", "node3"
    with races.agents(gpus) as racer:
        spec = LaunchSpec(job="20261126-080000-0001", hosts=racer.hosts).having(LeaseOptions(races.GPUS))
        racer.lease(spec.job, spec)
        gpus.kill("node2")
        gpus.start("node2")
        races.give_gpus(gpus, "node2")
        with races.agents(gpus) as other:
            found = ask_every(other.connected().channels, LEASES, 60.0).require_all()
            assert {host: sum(gpu.is_free for gpu in found[host].gpus) for host in hosts} == {
                "node1": 0,
                "node2": races.GPUS,
                "node3": 0,
            }
    assert races.leftovers(gpus) == []


@pytest.mark.parametrize(
    "victim", ["agent", *(pytest.param(victim, marks=pytest.mark.soak) for victim in ("rank", "driver"))]
)
def test_after_kill_9_of_a_part_the_gpus_are_free(holding: Project, gpus: Cluster, victim: str) -> None:
    words = ("--gpus", "2", "--np", "4", "--script", "holds.py", "--args=600")
    with holding.start(*words) as launch:
        read_until(launch, "holds ", 4)
        listed = json.loads(holding.muster("free", "--json").stdout)
        leased = {
            node: [gpu["index"] for gpu in found["gpus"] if gpu["job"]] for node, found in listed.items()
        }
        assert leased == {"node1": [0, 1], "node2": [0, 1], "node3": []}
        refused = holding.launch("--gpus", "8", "--script", "holds.py", "--args=0")
        assert refused.status == 3
        gpu = listed["node1"]["gpus"][0]
        assert gpu["user"] == f"{own_name()} (muster)"
        assert f"GPUs 0-1: job {gpu['job']} of {gpu['user']} for" in refused.output
        if victim == "driver":
            os.kill(launch.pid, signal.SIGKILL)
        else:
            name = {"rank": "holds.py 600", "agent": "muster agent"}[victim]
            done = gpus.exec("node2", ("pkill", "-9", "-f", name))  # root may not: a node has no capability
            assert done.returncode == 0, done.stderr
        launch.communicate()
    wait_until(lambda: races.leftovers(gpus) == [], "the end of the leases", patience=60.0)


@pytest.mark.soak
def test_a_restart_keeps_its_gpus(holding: Project, gpus: Cluster) -> None:
    (holding.path / "fails.py").write_text(HOLDS + FAILS_ONCE)
    with races.agents(gpus) as racer:
        spec = LaunchSpec(job="20261126-080000-0001", hosts=racer.hosts).having(LeaseOptions(5))
        racer.lease(spec.job, spec)
        words = ("--gpus", "2", "--max-restarts", "1", "--script", "fails.py", "--args=0")
        ran = holding.launch(*words)
    assert ran.status == 0, ran.output
    held = sorted(re.findall(r"node\d\] holds (\d) of (\S+)", ran.output))
    assert held == [("5", "5,6")] * 6 + [("6", "5,6")] * 6, ran.output
    assert races.leftovers(gpus) == []
