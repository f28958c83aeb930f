"""`muster bench links` on the practice cluster: a limited link is named, and figures agree with iperf3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.registry import docker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster
    from tests.launching import Project

pytestmark = pytest.mark.soak
OTHERS, LIMITED = 300, 30  # Mbit/s, which this machine sends beside other work too
QUEUE = "burst 128kb latency 50ms"
PAIR = ("node1", "node3")
IPERF3 = "muster-iperf3"
BUILD = """
FROM {base}
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends iperf3
ENTRYPOINT ["iperf3"]
"""


def address_of(cluster: Cluster, node: str) -> str:
    return cluster.exec(node, ("hostname", "-i")).stdout.split()[0]


def tc(cluster: Cluster, node: str, *commands: str) -> None:
    """Run commands of tc in the network of a node."""
    cluster.beside(node, " && ".join(f"tc {command}" for command in commands))


@pytest.fixture
def limited(cluster: Cluster) -> Iterator[None]:
    """Every node sends with OTHERS, and node1 to node3 with LIMITED."""
    queues = (
        "qdisc replace dev $card root handle 1: htb default 1",  # it only classifies packets
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
    done = project.muster("bench", "links", "--json", *words)
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


def bytes_per_s_of_iperf3(cluster: Cluster, source: str, target: str) -> float:
    """What iperf3 sends from one node to another, in containers that share the networks of both."""
    there, here = (f"--network=container:{cluster.container(node)}" for node in (target, source))
    # Without --rm: the engine may be removing a server that has ended when it is removed below.
    server = docker("run", "--detach", there, IPERF3, "--server", "--one-off", "--forceflush")
    try:
        wait_until(lambda: "listening" in docker("logs", server), lambda: f"iperf3 on {target}")
        told = docker(
            "run", "--rm", here, IPERF3, "--client", address_of(cluster, target), "--time", "2", "--json"
        )
        return float(json.loads(told)["end"]["sum_received"]["bits_per_second"]) / 8
    finally:
        docker("rm", "--force", server)


@pytest.mark.usefixtures("limited")
def test_the_matrix_agrees_with_iperf3(project: Project, cluster: Cluster) -> None:
    base = docker("inspect", "--format", "{{.Config.Image}}", cluster.container("node1"))
    docker("build", "--quiet", "--tag", IPERF3, "-", stdin=BUILD.format(base=base))
    measured = {(each["source"], each["target"]): each["bytes_per_s"] for each in links(project)["links"]}
    for (source, target), bytes_per_s in measured.items():
        judge = bytes_per_s_of_iperf3(cluster, source, target)
        assert bytes_per_s == pytest.approx(judge, rel=0.1), (source, target)
