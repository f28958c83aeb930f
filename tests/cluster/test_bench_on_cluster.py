"""`muster bench links` on the practice cluster: a limited link is named, and figures agree with iperf3."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster
    from tests.launching import Project

pytestmark = pytest.mark.soak
OTHERS, LIMITED = 300, 30  # Mbit/s, which this machine sends beside other work too
QUEUE = "burst 128kb latency 50ms"
PAIR = ("node1", "node3")


def pid_of(cluster: Cluster, node: str) -> str:
    words = ("docker", "inspect", "--format", "{{.State.Pid}}", cluster.container(node))
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def address_of(cluster: Cluster, node: str) -> str:
    return cluster.exec(node, ("hostname", "-i")).stdout.split()[0]


def in_network_of(cluster: Cluster, node: str, *words: str) -> list[str]:
    """A command of this machine in the network of a node."""
    return ["nsenter", "--target", pid_of(cluster, node), "--net", *words]


def tc(cluster: Cluster, node: str, *commands: str) -> None:
    """Run commands of tc in the network of a node."""
    cluster.beside(node, " && ".join(f"tc {command}" for command in commands))


@pytest.fixture
def limited(cluster: Cluster) -> Iterator[None]:
    """Every node sends with OTHERS, and node1 to node3 with LIMITED."""
    queues = (
        "qdisc replace dev $card root handle 1: htb default 1",  # all that it does is to tell the two apart
        *(f"class add dev $card parent 1: classid 1:{number} htb rate 10gbit" for number in (1, 2)),
        f"qdisc add dev $card parent 1:1 handle 10: tbf rate {OTHERS}mbit {QUEUE}",
        f"qdisc add dev $card parent 1:2 handle 20: tbf rate {LIMITED}mbit {QUEUE}",
    )
    try:
        for node in cluster.nodes:
            tc(cluster, node, *queues)
        target = f"{address_of(cluster, PAIR[1])}/32"
        tc(
            cluster,
            PAIR[0],
            f"filter add dev $card parent 1: protocol ip u32 match ip dst {target} flowid 1:2",
        )
        yield
    finally:
        for node in cluster.nodes:
            cluster.beside(node, "tc qdisc del dev $card root || true")


def links(project: Project, *words: str) -> dict[str, Any]:
    done = project.fab("bench", "links", "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(("backend", "times"), [("gloo", 2), ("mpi", 1)])
def test_a_limited_link_is_named_each_time(project: Project, backend: str, times: int) -> None:
    for _ in range(times):
        slow = [
            (each["where"], each["source"], each["target"])
            for each in links(project, "--backend", backend)["slow"]
            if each["quantity"] == "bandwidth"
        ]
        assert slow == [("link", *PAIR)]


@pytest.mark.usefixtures("limited")
def test_the_matrix_agrees_with_iperf3(project: Project, cluster: Cluster) -> None:
    if not (shutil.which("iperf3") and shutil.which("nsenter")):
        pytest.skip("no iperf3 or nsenter here")
    measured = {(each["source"], each["target"]): each["bytes_per_s"] for each in links(project)["links"]}
    for (source, target), bytes_per_s in measured.items():
        with subprocess.Popen(in_network_of(cluster, target, "iperf3", "--server", "--one-off")) as server:
            time.sleep(1)
            client = ("iperf3", "--client", address_of(cluster, target), "--time", "2", "--json")
            done = subprocess.run(
                in_network_of(cluster, source, *client), capture_output=True, text=True, check=False
            )
            server.wait(30)
        judge = json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 8
        assert bytes_per_s == pytest.approx(judge, rel=0.1), (source, target)


@pytest.mark.usefixtures("limited")
def test_a_link_that_gets_slower_than_the_baseline_is_named(project: Project, cluster: Cluster) -> None:
    links(project, "--keep")
    tc(cluster, "node2", f"qdisc replace dev $card parent 1:1 handle 10: tbf rate {LIMITED}mbit {QUEUE}")
    slower = [each for each in links(project)["slower"] if each["quantity"] == "bandwidth"]
    assert {each["source"] for each in slower} == {"node2"}
