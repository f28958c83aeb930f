"""`muster launch` on three nodes over SSH: training, failures, stops, and hosts with some fault."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.deploy.core.agent.supervisor import SILENCE_SECONDS
from tests.cluster.start_faults import key_of, known_hosts
from tests.cluster.striking import clean_at
from tests.launching import MUSTER, ONE_THREAD, ROOT, Launched, Project
from tests.load import hold
from tests.waiting import PATIENCE, read_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

mostly_mpirun = pytest.mark.parametrize(
    "launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)]
)


def job_processes(cluster: Cluster) -> list[str]:
    return [f"{node}: {process.args}" for node in cluster.nodes for process in cluster.processes(node)]


def train(cluster: Cluster, folder: Path, *words: str, hosts: Path | None = None) -> tuple[str, list[float]]:
    """`muster launch` of the project's own training program, with its results in `folder`.

    Returns its last line, and the loss of each epoch.
    """
    where = str(hosts or cluster.hosts_file)
    patient = ("--start-timeout", "300")  # the start of torch on a busy machine
    command = [str(MUSTER), "launch", "--hosts", where, "--runs", str(folder), *patient, *ONE_THREAD, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=cluster.env, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = folder.iterdir()
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    return done.stdout.splitlines()[-1], [json.loads(line)["loss"] for line in metrics]


# 193 = 3 * 64 + 1: of the last batch, one digit, all ranks but the first have none. The same losses with any
# number of ranks show that these train one network; fifteen epochs, in make soak, that it learns.
SHORT = "--args=--epochs 2 --limit 193 --batch-size 64"


def hosts_with(cluster: Cluster, folder: Path, *slots: int) -> Path:
    """A hosts file with so many slots on each node: few, as every rank spends seconds to import torch."""
    (folder / ".muster").symlink_to(cluster.muster_dir)
    hosts = folder / "few.txt"
    hosts.write_text("".join(f"{node} slots={n}\n" for node, n in zip(cluster.nodes, slots, strict=True)))
    return hosts


def test_four_ranks_and_three_with_mpi_train_the_same(cluster: Cluster, tmp_path: Path) -> None:
    few = hosts_with(cluster, tmp_path, 2, 1, 1)
    line, losses = train(cluster, tmp_path / "runs", SHORT, hosts=few)
    assert " ranks=4 hosts=3 backend=gloo launcher=mpirun seconds=" in line
    (run,) = (tmp_path / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    hosts = [rank["host"] for rank in result["ranks"]]
    assert hosts == ["node1", "node1", "node2", "node3"]
    assert {path.name for path in (run / "logs").glob("rank-*.out")} == {"rank-0000@node1.out"}
    words = ("--backend", "mpi", "--per-host", "1", SHORT)
    line, of_three = train(cluster, tmp_path / "more", *words, hosts=few)
    assert " ranks=3 hosts=3 backend=mpi launcher=mpirun seconds=" in line
    assert len(losses) == 2
    assert of_three == pytest.approx(losses, abs=1e-5)


@pytest.mark.soak
def test_a_rank_on_each_host_under_torchrun_trains_as_one_rank_does(cluster: Cluster, tmp_path: Path) -> None:
    alone = train(cluster, tmp_path / "alone", "--np", "1", SHORT)[1]
    one_each = hosts_with(cluster, tmp_path, 1, 1, 1)
    line, losses = train(cluster, tmp_path / "runs", "--launcher", "torchrun", SHORT, hosts=one_each)
    assert " ranks=3 hosts=3 backend=gloo launcher=torchrun seconds=" in line
    assert losses == pytest.approx(alone, abs=1e-5)


@pytest.mark.soak
def test_six_ranks_on_three_hosts_train_as_the_readme_says(cluster: Cluster, tmp_path: Path) -> None:
    line, losses = train(cluster, tmp_path)
    found = re.fullmatch(r"accuracy=(0\.\d+) ranks=6 hosts=3 backend=gloo launcher=mpirun seconds=\S+", line)
    assert found, line
    assert float(found.group(1)) >= 0.97
    assert len(losses) == 15


@mostly_mpirun
def test_every_rank_is_where_the_plan_says_and_meets_at_one_address(project: Project, launcher: str) -> None:
    (project.path / "hosts.txt").write_text("node2 slots=1\nnode1 slots=3\nnode3 slots=2\n")
    done = project.launch("--launcher", launcher, "--script", "program.py")
    assert done.status == 0, done.output
    places = ["node2", "node1", "node1", "node1", "node3", "node3"]
    assert [rank["host"] for rank in done.result["ranks"]] == places
    said = [done.said(rank, host)["env"] for rank, host in enumerate(places)]
    assert [(env["RANK"], env["LOCAL_RANK"]) for env in said] == [*zip("012345", "001201", strict=True)]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in said}) == 1
    assert not said[0]["MASTER_ADDR"].startswith("127.")


NOISE = "echo welcome; echo oh >&2; cd /tmp; export RANK=7 WORLD_SIZE=9 OMPI_MCA_btl=self PYTHONPATH=/none"


# What `ssh -W` of a jump host does; it notes its process first.
FORWARD = """
import os, select, socket, sys
open(sys.argv[3], "w").write(str(os.getpid()))
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
while True:
    for ready in select.select([0, there], [], [])[0]:
        said = os.read(0, 65536) if ready == 0 else there.recv(65536)
        if not said:
            sys.exit()
        there.sendall(said) if ready == 0 else os.write(1, said)
"""


@pytest.mark.timed
def test_a_host_behind_a_proxy_is_reached_and_its_end_noticed(project: Project, cluster: Cluster) -> None:
    (project.path / "forward.py").write_text(FORWARD)
    with known_hosts(project, cluster, "", ""):
        config = project.path / ".muster" / "ssh_config"
        words = f"{sys.executable} {project.path}/forward.py %h %p {project.path}/.muster/proxy"
        config.write_text(f"Host node3\n  ProxyCommand {words}\n{config.read_text()}")
        with project.start("--script", "program.py", "--args=wait") as process:
            read_until(process, "waiting", 6)
            began = time.monotonic()
            os.kill(int((project.path / ".muster" / "proxy").read_text()), signal.SIGKILL)
            said = process.communicate(timeout=PATIENCE)[0]
            seconds = time.monotonic() - began
    assert process.returncode == 3
    assert "FAILED  node3: the SSH connection to its agent is gone" in said
    hold("until the end of a proxy command was noticed", seconds, 5.0, excludes=SILENCE_SECONDS)
    clean_at(cluster, cluster.nodes, 5.0)


def test_a_job_of_somebody_else_is_not_touched(project: Project, cluster: Cluster) -> None:
    with project.start("--script", "program.py", "--args=wait") as other:
        read_until(other, "waiting", 6)
        assert project.launch("--script", "program.py", "--args=exit 4").status == 3
        assert other.poll() is None
        other.send_signal(signal.SIGINT)
        other.communicate(timeout=PATIENCE)
    clean_at(cluster, cluster.nodes)


# ---- hosts that are wrong ---------------------------------------------------------------------------------


def refused(project: Project, *words: str) -> Launched:
    done = project.launch("--script", "program.py", *words)
    assert "Traceback" not in done.output
    assert not (project.path / "runs").exists()
    return done


def test_between_nodes_a_changed_host_key_is_refused_too(cluster: Cluster) -> None:
    """Muster itself needs no way from node to node; mpirun by hand does, and its trust is pinned as well."""
    wrong = cluster.exec("node1", ["cat", "/etc/muster/ssh/known_hosts"]).stdout.replace(
        key_of(cluster, "node2"), key_of(cluster, "node1")
    )
    cluster.exec("node1", ["sh", "-c", "cat > /tmp/wrong_hosts"], stdin=wrong)
    done = cluster.exec("node1", ["ssh", "-o", "GlobalKnownHostsFile=/tmp/wrong_hosts", "node2", "true"])
    assert done.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_every_host_that_cannot_be_reached_is_named_at_once(project: Project, cluster: Cluster) -> None:
    hosts = "node1 slots=2\nnode2 slots=2 port=1\nnowhere.invalid slots=2\nnode3 slots=2 user=stranger\n"
    (project.path / "hosts.txt").write_text(hosts)
    done = refused(project)
    assert done.status == 3
    assert re.search(r"node2: .*connect to host 127.0.0.1 port 1: .*refused", done.output)
    assert re.search(r"nowhere\.invalid: .*Could not resolve hostname nowhere\.invalid", done.output)
    assert "node3: stranger@127.0.0.1: Permission denied" in done.output


@mostly_mpirun
def test_start_up_files_may_print_and_set_things(launcher: str, project: Project, cluster: Cluster) -> None:
    script = "/root/.muster/jobs/20261120-090000-0001/bin/rank.py train.py"
    waits = f"python3 -c 'import time; time.sleep(300)' {script} > /dev/null 2>&1 & echo $!"
    pid = cluster.exec("node2", ["sh", "-c", waits], user="root").stdout.strip()
    cluster.exec("node2", ["sh", "-c", f"echo {shlex.quote(NOISE)} >~/.bashrc"])
    try:
        assert "welcome" in cluster.ssh("node2", "true").stdout
        done = project.launch("--launcher", launcher, "--script", "program.py")
    finally:
        cluster.exec("node2", ["kill", pid], user="root")
        cluster.exec("node2", ["sh", "-c", "cp /etc/skel/.bashrc ~"])
    note = r"note: node2 is busy: job 20261120-090000-0001 of root, [\d.]+ m?s\n"
    assert re.search(note, done.output), done.output
    assert done.status == 0, done.output
    assert "DONE    6 ranks on 3 hosts" in done.output


# ---- the data network -------------------------------------------------------------------------------------


@pytest.fixture
def second_network(cluster: Cluster) -> Iterator[str]:
    """Another network that all nodes are on, by an interface of another name than the first; its CIDR."""
    name = f"{cluster.env['COMPOSE_PROJECT_NAME']}_data"
    docker("network", "create", name)
    try:
        for node in cluster.nodes:
            docker("network", "connect", name, cluster.container(node))
        yield docker("network", "inspect", "--format", "{{(index .IPAM.Config 0).Subnet}}", name)
    finally:
        for node in cluster.nodes:
            docker("network", "disconnect", "--force", name, cluster.container(node))
        docker("network", "rm", name)


def docker(*words: str) -> str:
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()


def test_every_plane_keeps_to_the_network_that_is_chosen(project: Project, second_network: str) -> None:
    done = project.launch("--script", "program.py", "--network", second_network)
    assert done.status == 0, done.output
    address = done.said(0, "node1")["env"]["MASTER_ADDR"]
    assert ipaddress.ip_address(address) in ipaddress.ip_network(second_network)
    plan = (done.folder / "plan.txt").read_text()
    for name in ("GLOO_SOCKET", "NCCL_SOCKET", "OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include"):
        interfaces = set(re.findall(rf"{name}\w*=(\w+)", plan))
        assert interfaces, name
        assert interfaces == set(re.findall(r"MUSTER_INTERFACE=(\w+)", plan)), name


def test_a_network_that_the_head_is_not_on_is_refused(project: Project) -> None:
    done = refused(project, "--network", "203.0.113.0/24")
    assert done.status == 3
    assert "node1: has no address on --network 203.0.113.0/24, only 1" in done.output
