"""A hang on three hosts, with their torch 2.6: asked over SSH while it lasts, attached and detached."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.launching import Project
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

# DDP's own collectives come before the hang: torch 2.6 records none of them under Gloo.
PROGRAM = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
step = 7
print("ready", flush=True)
def read_shard():
    time.sleep(1000)
if rank == 1:
    read_shard()
dist.all_reduce(torch.ones(1000))
"""
WAYS = [("mpirun", True), ("torchrun", False)]


@pytest.fixture
def hanging(project: Project) -> Project:
    (project.path / "train.py").write_text(PROGRAM)
    (project.path / "hosts.txt").write_text("node1 slots=1\nnode2 slots=1\nnode3 slots=1\n")
    return project


@contextlib.contextmanager
def launched(project: Project, launcher: str, *, detached: bool) -> Iterator[str]:
    """The id of a job that hangs, or is about to."""
    words = ("--launcher", launcher, "--script", "train.py")
    if detached:
        job = project.detach(*words)
        try:
            ready = lambda: project.muster("logs", job).stdout.count("ready") == 3  # noqa: E731
            wait_until(ready, "3 ranks", patience=400)
            yield job
        finally:
            project.muster("stop", job)
        return
    with project.start(*words) as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 3)))
        assert found
        try:
            yield found[1]
        finally:
            driver.send_signal(signal.SIGINT)
            driver.communicate(timeout=PATIENCE)


def verdict_of(project: Project, job: str) -> dict[str, Any]:
    """The verdict, once it is called a hang."""
    answers: list[subprocess.CompletedProcess[str]] = []

    def hangs() -> bool:
        answers.append(project.muster("why", job, "--json"))
        return answers[-1].returncode == 1 and "where" in answers[-1].stdout.replace('"where": []', "")

    wait_until(hangs, lambda: f"a verdict, but: {answers[-1]}", pause=1, patience=400)
    loaded: dict[str, Any] = json.loads(answers[-1].stdout)
    return loaded


@pytest.mark.soak
@pytest.mark.parametrize(("launcher", "detached"), WAYS, ids=["mpirun-detached", "torchrun-attached"])
def test_a_hang_is_explained(hanging: Project, cluster: Cluster, launcher: str, *, detached: bool) -> None:
    with launched(hanging, launcher, detached=detached) as job:
        why = verdict_of(hanging, job)
        step = hanging.muster("eval", job, "step, rank // 3")
        stack = hanging.muster("eval", job, "__import__('torch').__version__[:3]", "--rank", "1", "--json")
    assert (why["kind"], why["culprits"], why["waiting"]) == ("absent", [1], [0, 2]), why
    assert why["where"] == ["train.py:11"]
    assert "all_reduce #" in why["operation"]
    assert "train.py:14" in why["headline"]
    assert why["cause"].startswith("rank 1 on node2 has not come: it is in read_shard (train.py:11)"), why
    assert (step.returncode, step.stdout) == (0, "ranks 0-2: (7, 0)\n"), step
    assert json.loads(stack.stdout)["ranks"]["1"]["value"] == "'2.6'", stack


@pytest.mark.soak
def test_a_stalled_detached_job_says_why_everywhere(hanging: Project, cluster: Cluster) -> None:
    job = hanging.detach("--stall-timeout", "30", "--script", "train.py")
    attached = hanging.muster("attach", job)
    assert attached.returncode == 3, attached
    assert "why: ranks 0,2 wait in all_reduce #" in attached.stdout, attached
    folder = hanging.path / "runs" / job
    why = json.loads((folder / "result.json").read_text())["why"]
    assert (why["culprits"], why["where"]) == ([1], ["train.py:11"]), why
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["type"] == "job.explained"] == [
        f"{why['headline']}\n{why['cause']}"
    ]
    assert why["headline"] in (folder / "report.html").read_text()


STEPS = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, 100_000):
    dist.all_reduce(torch.ones(1000))
    time.sleep(0.05)
    if step == 20:
        print("ready", flush=True)
"""


@pytest.fixture
def deaf(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """A function after which nothing that node3 sends to other nodes arrives."""
    others = [cluster.exec(node, ("hostname", "-i")).stdout.split()[0] for node in cluster.nodes[:2]]
    queues = (
        "qdisc replace dev $card root handle 1: htb default 1",
        *(f"class add dev $card parent 1: classid 1:{number} htb rate 10gbit" for number in (1, 2)),
        "qdisc add dev $card parent 1:2 blackhole",
        *(
            f"filter add dev $card parent 1: protocol ip u32 match ip dst {other}/32 flowid 1:2"
            for other in others
        ),
    )
    node = cluster.nodes[2]

    def strike() -> None:
        cluster.beside(node, " && ".join(f"tc {queue}" for queue in queues))

    yield strike
    cluster.beside(node, "tc qdisc del dev $card root || true")


@pytest.mark.soak
def test_a_network_that_loses_all_data(hanging: Project, cluster: Cluster, deaf: Callable[[], None]) -> None:
    (hanging.path / "train.py").write_text(STEPS)
    with launched(hanging, "torchrun", detached=False) as job:
        deaf()
        why: dict[str, Any] = {}

        def is_named() -> bool:
            why.update(json.loads(hanging.muster("why", job, "--json").stdout))
            return bool(why["hang"])

        wait_until(is_named, lambda: f"a verdict, but: {why}", pause=1)
    assert why["kind"] == "network", why
    assert re.search(r"rank \d on node\d has no answer from [\d.]+:\d+: look at the network", why["cause"]), (
        why
    )
